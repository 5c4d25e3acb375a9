"""Threads: how many, who works, what happens to errors, interrupts and forks."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from calls import call, inputs
from compare import NORMS, assert_same_bits

import fastnorm
from fastnorm._cpu import processors
from fastnorm._cpu import threads as module
from fastnorm._cpu.threads import share


def in_process(program, timeout=120, **environment):
    """Standard output of a program in a fresh interpreter."""
    program = "import os, sys, threading, time\nimport numpy as np\nimport fastnorm\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("n", [1, 2, 8])
def test_every_piece_once(threads, n):
    threads(n)
    for total, step in ((0, 1), (1, 1), (10, 3), (100, 1), (5, 100)):
        seen = []
        share(lambda a, b: seen.append((a, b)), total, step)  # noqa: B023 - called before the loop goes on
        assert sorted(seen) == [(a, min(a + step, total)) for a in range(0, total, step)]


def test_workers_help(threads):
    threads(3)
    met = threading.Barrier(3)
    share(lambda a, b: met.wait(20), 3, 1)  # three at once, or the barrier breaks


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="for Linux")
def test_a_worker_leaves_its_callers_processor():
    """And may use all that it could use before."""
    allowed = os.sched_getaffinity(0)
    found = []

    def worker():
        for number in 20 * list(allowed):
            os.sched_setaffinity(0, {number})
            os.sched_setaffinity(0, allowed)
            here = processors.current()
            processors.leave(here)
            found.append((here, processors.current(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert len(found) == 20 * len(allowed)
    assert all({before, after} <= allowed and still == allowed for before, after, still in found)
    assert any(before != after for before, after, _ in found) or len(allowed) == 1
    assert os.sched_getaffinity(0) == allowed


def test_where_processors_have_no_numbers(threads, monkeypatch):
    monkeypatch.setattr(processors, "_sched_getcpu", None)
    threads(2)
    seen = []
    share(lambda a, b: seen.append(a), 9, 1)
    assert sorted(seen) == list(range(9))


def test_an_error_reaches_the_caller(threads):
    threads(4)

    def work(a, b):
        if a == 7:
            raise LookupError("piece 7")

    for _ in range(20):
        with pytest.raises(LookupError, match="piece 7"):
            share(work, 50, 1)


def test_calls_within_calls(threads):
    threads(2)
    seen = []
    share(lambda a, b: share(lambda c, d: seen.append((a, c)), 3, 1), 4, 1)
    assert sorted(seen) == [(a, c) for a in range(4) for c in range(3)]


def test_set_and_get():
    n = fastnorm.get_num_threads()
    with fastnorm.set_num_threads(1):
        assert fastnorm.get_num_threads() == 1
        others = []
        thread = threading.Thread(target=lambda: others.append(fastnorm.get_num_threads()))
        thread.start()
        thread.join()
        assert others == [1]
        with fastnorm.set_num_threads(np.int64(3)):
            assert fastnorm.get_num_threads() == 3
    assert fastnorm.get_num_threads() == n
    for bad in (np.array(2.7), np.array([2, 3])):
        with pytest.raises(TypeError, match="set_num_threads: n must"):
            fastnorm.set_num_threads(bad)
    for error, bad in (
        (ValueError, 0),
        (ValueError, -1),
        (TypeError, 1.5),
        (TypeError, "2"),
        (TypeError, None),
        (TypeError, True),
    ):
        with pytest.raises(error, match="set_num_threads: n must"):
            fastnorm.set_num_threads(bad)
    assert fastnorm.get_num_threads() == n


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"FASTNORM_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": "\u00b2"}, None),
        ({"FASTNORM_NUM_THREADS": "0"}, None),
        ({"FASTNORM_NUM_THREADS": "9" * 5000, "OMP_NUM_THREADS": "2"}, 2),
        ({}, None),
    ],
)
def test_default(monkeypatch, environment, wanted):
    for name in ("FASTNORM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if wanted is None:
        assert 1 <= module._default() <= allowed
    else:
        assert module._default() == wanted


def test_quota(tmp_path):
    groups = tmp_path / "cgroup"
    groups.write_text("0::/box/inner\n")
    inner = tmp_path / "fs" / "box" / "inner"
    inner.mkdir(parents=True)
    quota = lambda: module._quota(64, tmp_path / "fs", groups)  # noqa: E731
    assert quota() == 64
    (inner / "cpu.max").write_text("max 100000\n")
    assert quota() == 64
    (inner.parent / "cpu.max").write_text("250000 100000\n")
    assert quota() == 3
    (inner / "cpu.max").write_text("50000 100000\n")
    assert quota() == 1
    groups.write_text("5:cpu:/box\n")
    v1 = tmp_path / "fs" / "cpu"
    v1.mkdir()
    (v1 / "cpu.cfs_quota_us").write_text("-1")
    (v1 / "cpu.cfs_period_us").write_text("100000")
    assert quota() == 64
    (v1 / "cpu.cfs_quota_us").write_text("400000")
    assert quota() == 4


@pytest.mark.parametrize("norm", ["rms_norm", "group_norm", "add_layer_norm"])
def test_eight_threads_at_once(rng, norm):
    arrays = inputs(norm, rng, (1200, 1024))
    axes = (1, -2)
    wanted = {axis: call(norm, arrays, axis) for axis in axes}
    wrong = []

    def work():
        for _ in range(6):
            for axis in axes:
                for y, right in zip(call(norm, arrays, axis), wanted[axis], strict=True):
                    if not (y == right).all():
                        wrong.append(axis)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_fork_after_use():
    printed = in_process(
        """
        import warnings
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
        x = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)
        with fastnorm.set_num_threads(2):
            wanted = fastnorm.rms_norm(x)
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    os._exit(0 if (fastnorm.rms_norm(x) == wanted).all() else 1)
                assert os.waitpid(child, 0)[1] == 0
            print((fastnorm.rms_norm(x) == wanted).all())
        """
    )
    assert printed == "True"


@pytest.mark.slow
def test_pool_of_forked_processes():
    printed = in_process(
        """
        import multiprocessing, warnings
        warnings.simplefilter("ignore")
        x = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)
        wanted = fastnorm.rms_norm(x)
        def work(_):
            return bool((fastnorm.rms_norm(x) == wanted).all())
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(pool.map_async(work, range(9)).get(60))
        """
    )
    assert printed == str([True] * 9)


LONG_CALLS = {
    "rms_norm": "fastnorm.rms_norm(x, out=out)",
    "columns": "fastnorm.layer_norm(x.T, axis=1, out=out.T)",
    "groups": "fastnorm.group_norm(x.reshape(3, 32, -1), 4, out=out.reshape(3, 32, -1))",
    "one group": "fastnorm.group_norm(x.reshape(1, 96, -1), 1, out=out.reshape(1, 96, -1))",
    "sums": "fastnorm.add_rms_norm(x.reshape(-1, 4096), out.reshape(-1, 4096), out=out.reshape(-1, 4096))",
}


@pytest.mark.parametrize(
    "what", ["rms_norm", *(pytest.param(w, marks=pytest.mark.slow) for w in LONG_CALLS if w != "rms_norm")]
)
@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_c(n, what):
    """A long call ends within half a second, and the library goes on."""
    printed = in_process(
        f"""
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its children to ignore it
        fastnorm.set_num_threads({n})
        x = np.zeros((3, 1 << 25), np.float32)
        x += 1
        out = np.empty_like(x)
        fastnorm.rms_norm(x[0, :1 << 18])  # compiles what the loop needs, since an interrupt there is another matter
        fastnorm.rms_norm(x[:, :100000])
        {LONG_CALLS[what]}
        out[...] = 0
        def press():
            time.sleep(0.3)
            press.at = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press).start()
        try:
            while True:
                {LONG_CALLS[what]}
        except KeyboardInterrupt:
            print(time.perf_counter() - press.at < 0.5)
        print(bool(np.allclose(fastnorm.rms_norm(x[:, :100000]), 1)))
        """
    )
    assert printed.split() == ["True", "True"]


@pytest.mark.parametrize("exception", [KeyboardInterrupt, TimeoutError, SystemExit])
def test_interrupt_while_others_work(threads, exception):
    """The caller's memory is written to until `share` returns, so it waits for its helpers, even twice interrupted."""
    threads(2)

    def raises(number, frame):
        raise exception

    before = signal.signal(signal.SIGINT, raises)
    try:
        _interrupt_twice(exception)
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt_twice(exception):
    inside, finished = threading.Event(), []
    caller = threading.current_thread()

    def work(a, b):
        if threading.current_thread() is caller:
            inside.wait(10)
            raise exception
        inside.set()
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.3)
        finished.append(a)

    with pytest.raises(exception):
        share(work, 2, 1)
    assert finished


def test_interrupt_while_workers_are_called(threads, monkeypatch):
    """Ctrl-C between calling a worker and starting to work: the worker does nothing after the call was left."""
    threads(2)
    offer = module._pool.offer

    def interrupted(job, helpers):
        offer(job, helpers)
        raise KeyboardInterrupt

    monkeypatch.setattr(module._pool, "offer", interrupted)
    done = []
    with pytest.raises(KeyboardInterrupt):
        share(lambda a, b: (time.sleep(0.01), done.append(a)), 1000, 1)
    left = len(done)
    time.sleep(0.1)
    assert len(done) == left < 1000


def test_no_threads_to_be_had(threads, monkeypatch):
    """Where no thread can be started the caller does all of the work."""
    monkeypatch.setattr(module, "_pool", module._Pool())

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads(4)
    seen = []
    share(lambda a, b: seen.append(a), 10, 1)
    assert seen == list(range(10))


def test_numba_keeps_its_threads(rng):
    import numba

    before = numba.get_num_threads()
    with fastnorm.set_num_threads(1):
        fastnorm.rms_norm(rng.standard_normal((64, 64)))
        assert numba.get_num_threads() == before


@pytest.mark.parametrize("norm", NORMS)
def test_large_result_is_right(rng, norm):
    arrays = inputs(norm, rng, (3000, 1000) if norm != "group_norm" else (30, 100, 1000))
    for axis in (1, 0):
        with fastnorm.set_num_threads(1):
            wanted = call(norm, arrays, axis)
        for y, one in zip(call(norm, arrays, axis), wanted, strict=True):
            assert_same_bits(y, one)


@pytest.mark.skipif(sys.platform != "linux", reason="the mode is set by glibc's function")
def test_the_floating_point_mode_of_the_host_does_not_matter(rng):
    """A thread takes on the mode of the one that starts it: workers must not keep what another library has set."""
    printed = in_process(
        """
        import ctypes, platform
        set_rounding = ctypes.CDLL("libm.so.6").fesetround
        get_rounding = ctypes.CDLL("libm.so.6").fegetround
        up = 0x800 if platform.machine() == "x86_64" else 0x400000
        x = np.random.default_rng(0).standard_normal((4096, 512), np.float32)
        fastnorm.set_num_threads(1)
        wanted = fastnorm.rms_norm(x)
        fastnorm.set_num_threads(2)
        set_rounding(up)
        first = fastnorm.rms_norm(x)
        print(get_rounding() == up)
        set_rounding(0)
        print(bool((first == wanted).all()), bool((fastnorm.rms_norm(x) == wanted).all()))
        """
    )
    assert printed.split() == ["True"] * 3
