"""Which processor a thread runs on, and how a worker leaves its caller's.

After a pause of a tenth of a second Linux may wake a worker on the very processor that its caller keeps busy, though another
one is idle, and leave both there for up to 40 ms: two threads then are as slow as one. On a virtual machine of two processors
causal attention 8 x 1024 x 64 took 13 ms instead of 7, and with this 8 to 9; beside a process that keeps one of them busy, 9.6
instead of 13.6, where one thread takes 14.
"""

import ctypes
import os


def current():
    """The number of the processor that this thread runs on, as threads see it on Linux; elsewhere None."""
    return _sched_getcpu() if _sched_getcpu else None


def leave(number):
    """Move this thread off a processor, if it may use another one. Which it may use stays as it was."""
    try:
        allowed = os.sched_getaffinity(0)
        if others := allowed - {number}:
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)
    except OSError:  # forbidden, or the processors have just gone: then it stays
        pass


def _find():
    try:
        return ctypes.PyDLL(None).sched_getcpu if hasattr(os, "sched_setaffinity") else None
    except (AttributeError, OSError):  # a C library without it
        return None


_sched_getcpu = _find()
