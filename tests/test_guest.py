"""A guest in any process: beside other pools and numba's own threads, in workers however they start, at any size."""

import asyncio
import concurrent.futures
import pathlib
import subprocess
import sys
import textwrap

import joblib
import numpy as np
import pytest
from calls import NORMS, call, inputs

import fastnorm
from fastnorm import _interpreter

BEGIN = """
import os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
import numpy as np
import fastnorm

X = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)

def right():
    return fastnorm.layer_norm(X)

def work(_=None):
    return bool((fastnorm.layer_norm(X) == right()).all()) and fastnorm.get_num_threads() >= 1
"""


def run(tmp_path, text, **environment):
    """The output of a program of its own, which may be imported by the workers that it starts."""
    import os

    program = tmp_path / "program.py"
    program.write_text(BEGIN + textwrap.dedent(text))
    root = str(pathlib.Path(fastnorm.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


# ------------------------------------------------------------------------------------------------- how workers start
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pools_however_they_start(tmp_path, method):
    """After parallel work in the parent, which goes on working."""
    text = f"""
        if __name__ == "__main__":
            import multiprocessing
            fastnorm.set_num_threads(2)
            wanted = right()
            with multiprocessing.get_context("{method}").Pool(3) as pool:
                print(pool.map_async(work, range(6)).get(120) == [True] * 6, (right() == wanted).all())
    """
    assert run(tmp_path, text) == "True True"


@pytest.mark.slow
def test_children_of_children(tmp_path):
    """A server that preloads: every generation computes in parallel, then forks."""
    text = """
        def generation(n):
            fastnorm.set_num_threads(2)
            if not work():
                os._exit(1)
            if n:
                child = os.fork()
                if child == 0:
                    generation(n - 1)
                if os.waitpid(child, 0)[1]:
                    os._exit(1)
            if n < 3:
                os._exit(0)
        generation(3)
        print(work())
    """
    assert run(tmp_path, text) == "True"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_do_not_crowd_one_another(tmp_path, method):
    """One thread a worker, unless somebody says otherwise."""
    text = f"""
        def number(_=None):
            return fastnorm.get_num_threads()
        if __name__ == "__main__":
            import concurrent.futures, multiprocessing
            number()
            context = multiprocessing.get_context("{method}")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                print(set(pool.map(number, range(4))), number() == len(os.sched_getaffinity(0)))
            os.environ["FASTNORM_NUM_THREADS"] = "3"
            if "{method}" != "forkserver":  # its environment is that of the time when it was started
                with context.Pool(2) as pool:
                    print(set(pool.map(number, range(4))))
            else:
                print({{3}})
    """
    environment = {"FASTNORM_NUM_THREADS": "", "OMP_NUM_THREADS": ""}
    assert run(tmp_path, text, **environment).split("\n") == ["{1} True", "{3}"]


# -------------------------------------------------------------------------------------------------- beside others
@pytest.mark.slow
@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_beside_numbas_own_threads(tmp_path, layer):
    """A parallel function of the user's runs at the same time, whatever layer numba has chosen; forks afterwards."""
    text = """
        import threading, numba
        @numba.njit(parallel=True, nogil=True)
        def total(x):
            s = 0.0
            for i in numba.prange(x.size):
                s += x[i]
            return s
        flat = X.ravel().astype(np.float64)
        total(flat)
        fastnorm.set_num_threads(2)
        wanted, wrong = right(), []
        def norms():
            for _ in range(20):
                if not (right() == wanted).all():
                    wrong.append(1)
        guests = [threading.Thread(target=norms) for _ in range(3)]
        for guest in guests:
            guest.start()
        for _ in range(30):
            total(flat)
        for guest in guests:
            guest.join()
        child = os.fork()
        if child == 0:
            os._exit(0 if work() else 1)
        print(not wrong, os.waitpid(child, 0)[1])
    """
    assert run(tmp_path, text, NUMBA_THREADING_LAYER=layer) == "True 0"


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_inside_a_parallel_loop(tmp_path, layer):
    """Called from the threads of a user's own `prange`."""
    text = """
        import numba
        wanted = right()
        def same():
            return bool((right() == wanted).all())
        @numba.njit(parallel=True, nogil=True)
        def loop(n):
            good = np.zeros(n, np.bool_)
            for i in numba.prange(n):
                with numba.objmode(ok="boolean"):
                    ok = same()
                good[i] = ok
            return good
        print(loop(12).all())
    """
    assert run(tmp_path, text, NUMBA_THREADING_LAYER=layer) == "True"


def right(x):
    return float(np.abs(fastnorm.layer_norm(x)).sum()), fastnorm.get_num_threads()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threading", "multiprocessing", "loky"])
def test_joblib(rng, backend):
    x = rng.standard_normal((1024, 1024)).astype(np.float32)
    wanted, _ = right(x)
    results = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(right)(x) for _ in range(6))
    assert [y for y, _ in results] == [wanted] * 6
    if backend == "loky":  # it tells its workers how many threads are theirs, by OMP_NUM_THREADS
        assert {threads for _, threads in results} == {max(1, joblib.cpu_count() // 2)}


@pytest.mark.slow
def test_dask_workers(tmp_path):
    """Two processes of two threads each."""
    text = """
        if __name__ == "__main__":
            import distributed
            with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
                with distributed.Client(cluster) as client:
                    print(client.gather(client.map(work, range(8))) == [True] * 8)
    """
    assert run(tmp_path, text) == "True"


def test_executors(rng):
    x = rng.standard_normal((1024, 1024)).astype(np.float32)
    wanted = right(x)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(right, [x] * 12)) == [wanted] * 12

    async def many():
        return await asyncio.gather(*[asyncio.to_thread(right, x) for _ in range(12)])

    assert asyncio.run(many()) == [wanted] * 12


# ------------------------------------------------------------------------------------------------------------ size
def pages():
    """Pages of memory that this process has now."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="nothing tells how much memory is in use")
@pytest.mark.parametrize("norm", NORMS)
def test_no_growth(norm):
    """In a process of its own, as others have threads of other libraries."""
    path = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})"
    subprocess.run([sys.executable, "-c", f"{path}; import test_guest; test_guest.grow({norm!r})"], check=True)


def grow(norm):
    """10**5 small calls and 10**3 large ones: less than 11 bytes a small call, and less than what two large calls return.

    The allocator keeps, or gives back, what one of these returned: as much as twice the largest array, by its own rule.
    """
    rng, results = np.random.default_rng(0), 2 if norm.startswith("add_") else 1
    for shape, calls, bytes_allowed in [((4, 64), 100_000, 1 << 20), ((600, 1024), 1000, 2 * results * 600 * 1024 * 4)]:
        arrays = inputs(norm, rng, shape)
        for _ in range(30):
            call(norm, arrays, 1)
        before = pages()
        for _ in range(calls):
            call(norm, arrays, 1)
        assert (pages() - before) * 4096 <= bytes_allowed


@pytest.mark.parametrize("norm", NORMS)
def test_every_rank(rng, norm):
    for rank in range(1, 33):
        shape = (1,) * (rank - 1) + (4,)
        arrays = inputs(norm, rng, shape)
        wanted = call(norm, [a.reshape(1, 4) for a in arrays], -1)
        axis = -1 if norm != "group_norm" or rank > 1 else 0
        for y, one in zip(call(norm, arrays, axis), wanted, strict=True):
            assert y.shape == shape
            np.testing.assert_array_equal(y.reshape(1, 4), one)
    count = [1] if norm == "group_norm" else []
    with pytest.raises(np.exceptions.AxisError, match=f"{norm}: "):
        getattr(fastnorm, norm)(*[np.float32(3)] * len(arrays), *count, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10**8, 1), (1, 10**8), (1 << 21, 1025)])
def test_many_elements(shape):
    """10**8 rows of one element, a row of 10**8, and more than 2**31 elements: of a row that is read again and again."""
    row = np.linspace(-3, 3, shape[1], dtype=np.float16)
    x = np.broadcast_to(row, shape)
    for norm in (fastnorm.rms_norm, fastnorm.layer_norm):
        wanted = norm(row)
        y = norm(x)
        assert y.shape == shape
        for part in (y[0], y[-1], y[len(y) // 2]):
            np.testing.assert_array_equal(part, wanted)
        assert all((y[i : i + 65536] == wanted).all() for i in range(0, len(y), 65536 * 64))
        del y


def test_a_result_too_large_for_memory():
    row = np.ones(1 << 20)
    with pytest.raises(MemoryError):
        fastnorm.rms_norm(np.broadcast_to(row, (1 << 30, 1 << 20)))
    assert (row == 1).all()


# ---------------------------------------------------------------------------------------------------- interpreters
def test_subinterpreters_are_refused(tmp_path):
    (tmp_path / "guest.py").write_text("try:\n    import fastnorm\nexcept ImportError as error:\n    print(error)\n")
    text = """
        try:
            import _interpreters
        except ImportError:
            import _xxsubinterpreters as _interpreters
        program = open(os.path.join(os.path.dirname(__file__), "guest.py")).read()
        _interpreters.run_string(_interpreters.create(), program)
    """
    assert run(tmp_path, text).startswith("fastnorm does not support subinterpreters: ")


def test_free_threaded_builds_are_refused():
    with pytest.raises(ImportError, match=r"^fastnorm does not support free-threaded builds of Python: "):
        _interpreter.check(abiflags="t")
    _interpreter.check(abiflags="d")
