"""Refuse, in clear words, interpreters that NumPy and numba do not work in: they would fail later and say less."""

import importlib
import sys


def check(abiflags=None, number=None):
    """Raise ImportError unless this is the main interpreter of a build with the GIL."""
    if "t" in (getattr(sys, "abiflags", "") if abiflags is None else abiflags):
        raise ImportError("fastnorm does not support free-threaded builds of Python: numba needs one with the GIL")
    if (_number() if number is None else number) != 0:
        raise ImportError("fastnorm does not support subinterpreters: NumPy and numba do not. Use the main interpreter")


def _number():
    """The number of this interpreter; that of the main one is 0."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, before it
        try:
            current = importlib.import_module(name).get_current()
        except ImportError:
            continue
        return int(current[0] if isinstance(current, tuple) else current)
    return 0


check()
