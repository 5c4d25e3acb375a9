"""The one place for: serial or parallel, how many threads, and who takes which piece of the work.

A small pool of our own. The caller takes its share, standing workers take the rest, piece by piece, so that a worker
that is late or has lost its core costs one piece and no more. numba's layers are not used: GNU OpenMP aborts a forked
child, `workqueue` aborts when two Python threads meet in it, and both spin at a barrier while another process has the core.

Work is Python calling kernels that release the GIL. Between two pieces the interpreter runs, so that Ctrl-C is heard.
"""

import os
import pathlib
import queue
import sys
import threading

from .._checks import integer_of
from . import processors


class _Job:
    """A range cut into pieces that any thread may take."""

    def __init__(self, work, total, step):
        self._work = work
        self._pieces = iter(range(0, total, step))  # `next` on it is one step of the interpreter, hence safe among threads
        self._total, self._step = total, step
        self._changed = threading.Condition()
        self._open, self._helpers, self._error = True, 0, None
        self._processor = None  # the caller's

    def run(self, helping=False):
        """Take pieces until none is left."""
        for start in self._pieces:
            if not self._open:
                return
            here = processors.current()
            if not helping:
                self._processor = here
            elif here is not None and here == self._processor:
                processors.leave(here)
            self._work(start, min(start + self._step, self._total))

    def help(self):
        """`run` in a worker, unless the caller has finished already: its errors are the caller's to raise."""
        with self._changed:
            if not self._open:
                return
            self._helpers += 1
        error = None
        try:
            self.run(helping=True)
        except BaseException as exception:
            error = exception
        with self._changed:
            self._helpers -= 1
            if error is not None:
                self._error, self._open = error, False
            self._changed.notify_all()

    def close(self):
        """Let nobody start any more, wait for those who work, and raise what went wrong there."""
        interrupt = None
        while True:
            try:
                with self._changed:
                    self._open = False
                    while self._helpers:
                        self._changed.wait()
                break
            except BaseException as exception:  # of a signal's handler. Helpers write to the caller's memory: wait for them
                interrupt = exception
        if interrupt or self._error:
            raise interrupt or self._error


class _Pool:
    """Standing workers, started when first needed, gone in a forked child."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def offer(self, job, helpers):
        """Let up to `helpers` workers help; none at all (no thread to be had) is allowed."""
        if self._started < helpers:
            with self._lock:
                try:
                    while self._started < helpers:
                        threading.Thread(target=self._stand, name="fastnorm", daemon=True).start()
                        self._started += 1
                except RuntimeError:  # a limit on threads, or the interpreter is shutting down
                    helpers = self._started
        for _ in range(helpers):
            self._jobs.put(job)

    def _stand(self):
        while True:
            self._jobs.get().help()


def share(work, total, step):
    """Call ``work(start, stop)`` for pieces of ``range(total)``, on up to `get_num_threads` threads at once."""
    job = _Job(work, total, step)
    helpers = min(get_num_threads(), -(-total // step)) - 1
    try:
        if helpers > 0:
            _pool.offer(job, helpers)
        job.run()
    finally:
        job.close()


def get_num_threads():
    """Return the number of threads that one call of this library may use.

    Returns
    -------
    int
        What `set_num_threads` set; before that ``FASTNORM_NUM_THREADS``, else ``OMP_NUM_THREADS``, else 1 in a worker of
        `multiprocessing` (hence of `concurrent.futures` and Dask), where others have the other processors, else the number of
        processors that this process may use by its affinity and by the quota of its container.

    Examples
    --------
    >>> import fastnorm
    >>> fastnorm.get_num_threads() >= 1
    True
    """
    global _default_number
    if _num_threads is not None:
        return _num_threads
    if _default_number is None:
        _default_number = _default()
    return _default_number


class set_num_threads:  # noqa: N801 - a function that is a context manager too
    """Set how many threads one call of this library may use, in the whole process.

    It takes effect at once; used in a ``with`` statement, the number from before comes back at its end. Results do
    not depend on it. Other libraries, numba included, keep their own numbers.

    Parameters
    ----------
    n : int
        At least 1. More than there are processors is allowed, and slower.

    Raises
    ------
    TypeError
        If `n` is not an integer.
    ValueError
        If `n` is below 1.

    Examples
    --------
    >>> import fastnorm
    >>> with fastnorm.set_num_threads(1):
    ...     fastnorm.get_num_threads()
    1
    """

    def __init__(self, n):
        global _num_threads
        number = integer_of("set_num_threads", "n", n)
        if number < 1:
            raise ValueError(f"set_num_threads: n must be at least 1, got {n}")
        self._before = _num_threads
        _num_threads = number

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        global _num_threads
        _num_threads = self._before


def _default():
    for name in ("FASTNORM_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()  # OpenMP allows a list, one number a level
        if first.isascii() and first.isdigit() and len(first) < 6 and int(first) > 0:
            return int(first)
    if _is_worker():
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(allowed)))


def _is_worker():
    """True in a process that `multiprocessing` has started."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _quota(otherwise, root="/sys/fs/cgroup", groups="/proc/self/cgroup"):
    """Processors that the container's quota allows, rounded up: of cgroup v2, or v1."""
    try:
        lines = pathlib.Path(groups).read_text().splitlines()
        unified = next((line[3:] for line in lines if line.startswith("0::")), "/")
        here = pathlib.Path(root, unified.lstrip("/"))
        for folder in [here, *here.parents]:
            limit = folder / "cpu.max"
            if limit.is_file():
                quota, period = limit.read_text().split()
                if quota != "max":
                    otherwise = min(otherwise, -(-int(quota) // int(period)))
            if folder == pathlib.Path(root):
                break
        v1 = pathlib.Path(root, "cpu")
        if (v1 / "cpu.cfs_quota_us").is_file():
            quota, period = (int((v1 / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            if quota > 0:
                otherwise = min(otherwise, -(-quota // period))
    except (OSError, ValueError):
        pass  # no such files: no quota
    return otherwise


def _after_fork():
    global _pool, _default_number
    _pool = _Pool()  # threads do not survive a fork, and the lock may have been held
    _default_number = None  # the child may be a worker among others


_pool = _Pool()
_num_threads = None  # what `set_num_threads` set
_default_number = None
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
