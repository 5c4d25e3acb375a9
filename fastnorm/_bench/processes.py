"""What needs processes of its own: imports, first calls, and a neighbour that keeps a core busy."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import fastnorm

ROUNDS = {"full": (9, 3), "quick": (3, 1), "smoke": (1, 1)}  # warm processes, cold ones (which compile, for seconds)


def start_times(start, size):
    """Seconds that a `Start`'s program reports, a process each."""
    if start.cold:
        return [_cold(start.program) for _ in range(ROUNDS[size][1])]
    _run(start.program)  # files into the page cache, machine code into the cache folder
    return [_run(start.program) for _ in range(ROUNDS[size][0])]


def _cold(program):
    with tempfile.TemporaryDirectory() as folder:
        return _run(program, FASTNORM_CACHE_DIR=folder)


def _run(program, **environment):
    """The number that a program prints. It imports the same fastnorm as this process, wherever that came from."""
    here = str(pathlib.Path(fastnorm.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


@contextlib.contextmanager
def busy_core(wanted):
    """Keep one core busy (the last of those allowed, where a process can be tied to one) if that is `wanted`."""
    if not wanted:
        yield
        return
    program = "print(flush=True)\nwhile True: pass"
    if hasattr(os, "sched_setaffinity"):
        program = f"import os; os.sched_setaffinity(0, [{max(os.sched_getaffinity(0))}])\n" + program
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as neighbour:
        neighbour.stdout.readline()  # it is running now
        try:
            yield
        finally:
            neighbour.kill()
