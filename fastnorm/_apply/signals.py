"""Signals: all of them interrupt as Ctrl-C does, and none at a moment when that would leave something behind."""

import contextlib
import signal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextlib.contextmanager
def interrupted_by(*names):
    """Let these signals interrupt as Ctrl-C does, unless they are ignored."""

    def interrupt(number, frame):
        raise KeyboardInterrupt(number)

    with _handled(names, interrupt):
        yield


@contextlib.contextmanager
def held():
    """Let no signal interrupt before the end of the block. Processes that it starts do not inherit that."""
    arrived = []
    try:
        with _handled(NAMES, lambda number, frame: arrived.append(number)):
            yield
    finally:
        for number in arrived[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled(names, handler):
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
