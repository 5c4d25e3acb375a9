"""Dask arrays that no worker has the memory for: a cluster of processes whose memory is limited.

Dask's nannies kill a worker at 95 % of its limit, so one that is still there kept below it; its peak is asked for as well.
"""

import os
import pathlib

import dask
import dask.array as da
import distributed
import numpy as np
import psutil
import pytest

import fastnorm
from fastnorm._bench import attention_oracles, oracles

pytestmark = pytest.mark.slow

LIMIT = 400_000_000  # bytes for each of two workers; 200 million are taken by Python and the libraries
EVERY = 997  # a row of so many is looked at


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spilled")


@pytest.fixture(scope="module")
def workers(folder):
    fastnorm.warm_up(["rms_norm", "attention"])  # here, since compilers need more memory than a worker has
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": LIMIT, "local_directory": folder}
    with (
        distributed.LocalCluster(processes=True, dashboard_address=":0", **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def client(workers):
    """Workers that must be the same ones, and have kept to their memory, at the end of a test."""
    before = workers.run(os.getpid)
    yield workers
    assert workers.run(os.getpid) == before
    peaks = workers.run(peak)
    assert all(0 < one < 1.1 * LIMIT for one in peaks.values()), peaks  # Dask looks but every tenth of a second


def peak():
    """The most memory that this process has ever held."""
    if not pathlib.Path("/proc/self/status").exists():
        return psutil.Process().memory_info().rss
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def on_disk(dask_worker):
    """Bytes that a worker has on its disk, and those that it has written there so far."""
    return np.array([dask_worker.data.spilled_total.disk, dask_worker.data.cumulative_metrics["disk-write", "bytes"]])


def random(shape, chunks, seed=0):
    """Numbers that workers draw when a chunk is needed."""
    return da.random.default_rng(seed).random(shape, chunks=chunks)


@pytest.mark.parametrize(
    ("norm", "chunks", "axis"),
    [
        pytest.param("rms_norm", (500, 4096), -1, id="whole rows"),
        pytest.param("layer_norm", (500, 1024), -1, id="cut rows"),
        pytest.param("rms_norm", (500, 4096), 0, id="rows longer than memory"),
    ],
)
def test_larger_than_memory(client, norm, chunks, axis):
    """More than twice the memory of all workers. Rows along the first axis end with the last chunk: all wait on the disk."""
    x = random((52_000, 4096), chunks)
    assert x.nbytes > 2 * 2 * LIMIT
    y = getattr(fastnorm, norm)(x, axis=axis, eps=0.0)
    some = np.s_[::EVERY] if axis else np.s_[:, ::EVERY]
    before = sum(client.run(on_disk).values())
    found = y[some].compute()  # of each chunk a few numbers
    left, written = sum(client.run(on_disk).values()) - before
    np.testing.assert_allclose(found, getattr(oracles, norm)(x[some].compute(), axis=axis, eps=0.0), rtol=0, atol=1e-11)
    assert left == 0
    if axis == 0:
        assert written > x.nbytes - 2 * LIMIT
    else:  # chunks pass through; of cut rows, some may wait for others, as Dask happens to order tasks
        assert written < x.nbytes / (20 if norm == "rms_norm" else 2)


def test_results_that_are_kept_are_spilled(client, folder):
    """And come back with their bits."""
    x = random((26_000, 4096), (500, 4096))
    assert x.nbytes > 2 * LIMIT
    y = fastnorm.rms_norm(x).persist()
    distributed.wait(y)
    left, _ = sum(client.run(on_disk).values())
    assert left > y.nbytes - 2 * LIMIT
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >= left
    given, found = dask.compute(x[::EVERY], y[::EVERY])
    assert (found == fastnorm.rms_norm(given)).all()


def test_attention_to_more_keys_than_a_worker_can_hold(client):
    """The last 400 of 262144 positions."""
    q = random((4, 400, 64), (4, 100, 64)).astype(np.float32)
    k, v = (random((4, 1 << 18, 64), (4, 1 << 13, 64), seed).astype(np.float32) for seed in (1, 2))
    assert k.nbytes + v.nbytes > LIMIT
    y = fastnorm.attention(q, k, v, is_causal=True).compute()
    q, k, v = (a.compute(scheduler="threads") for a in (q, k, v))
    for head, i in ((0, 0), (2, 150), (3, 399)):
        seen = np.s_[head : head + 1, : k.shape[1] - 399 + i]
        wanted = attention_oracles.attention(q[head : head + 1, i : i + 1], k[seen], v[seen])[0]
        np.testing.assert_allclose(y[head : head + 1, i : i + 1], wanted, rtol=0, atol=1e-5)


# --------------------------------------------------------------------------------------------------------- threads
def busy_threads(n_threads=None):
    """How many threads of this process a large call has kept busy; others of a worker have some work, too."""
    x = np.ones((20_000, 1024), np.float32)
    fastnorm.rms_norm(x, out=x)
    before = {one.id: one.user_time for one in psutil.Process().threads()}
    with fastnorm.set_num_threads(n_threads or fastnorm.get_num_threads()):
        for _ in range(100):
            fastnorm.rms_norm(x, out=x)
    spent = [one.user_time - before.get(one.id, 0) for one in psutil.Process().threads()]
    return sum(one > max(spent) / 4 for one in spent)


def test_workers_together_use_each_core_once(client):
    """A task keeps one thread busy, however large its arrays are; two when told to, which shows that they are counted."""
    threads = client.nthreads()
    tasks = [client.submit(busy_threads, workers=[worker], pure=False) for worker in threads]
    assert client.gather(tasks) == list(threads.values()) == [1, 1]
    assert client.submit(busy_threads, 2, pure=False).result() == 2
