"""How far it is, on a terminal."""

import contextlib
import shutil
import sys
import time

WIDTH = 30


@contextlib.contextmanager
def shown(total, title):
    """A bar on a terminal: give what to call after each of so many steps."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    begin, done = time.monotonic(), 0

    def draw():
        left = f"{(time.monotonic() - begin) / done * (total - done):.0f} s left" if done else ""
        bar = ("#" * (WIDTH * done // total)).ljust(WIDTH, ".")
        line = f"{100 * done // total:3}% {bar} {left:12} {title}"
        print(f"\r{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    def advance():
        nonlocal done
        done += 1
        draw()

    draw()
    try:
        yield advance
    finally:
        print(file=sys.stderr)
