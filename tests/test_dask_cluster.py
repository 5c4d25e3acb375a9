"""Dask arrays on a cluster of processes: right, one thread a task, and so also when a worker dies."""

import os
import signal
import time

import dask.array as da
import distributed
import numpy as np
import pytest

import fastnorm
from fastnorm._bench import attention_oracles, oracles

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_norms_and_attention(client, rng):
    x, q = rng.standard_normal((64, 2000), np.float32), rng.standard_normal((2, 4, 200, 16), np.float32)
    weight = rng.standard_normal(2000, np.float32)
    whole = fastnorm.rms_norm(da.from_array(x, (10, 2000)), weight)
    assert (whole.compute() == fastnorm.rms_norm(x, weight)).all()
    cut = fastnorm.layer_norm(da.from_array(x + 1000, (10, 300)), weight)
    np.testing.assert_allclose(cut.compute(), oracles.layer_norm(x + 1000, weight), atol=1e-5)
    lazy = da.from_array(q, (1, 2, 50, 16))
    out = fastnorm.attention(lazy, lazy, lazy, is_causal=True)
    np.testing.assert_allclose(out.compute(), attention_oracles.attention(q, q, q, is_causal=True)[0], atol=1e-5)


def test_a_worker_uses_one_thread_a_task(client):
    """Dask starts as many tasks as a worker has threads; were each of them to use all cores, they would crowd one another."""
    assert set(client.run(fastnorm.get_num_threads).values()) == {1}


def slow(block, block_info=None):
    time.sleep(0.05)
    return np.random.default_rng(block_info[0]["chunk-location"]).standard_normal(block.shape)


def test_a_worker_that_dies(client):
    """Its tasks and what it held are made again, and nothing counts twice."""
    x = da.zeros((400, 4000), chunks=(20, 200)).map_blocks(slow, dtype=float)
    y = fastnorm.layer_norm(x + 1e6, eps=0.0)
    future = client.compute(y)
    pid = next(iter(client.run(os.getpid).values()))
    time.sleep(2)  # of the five or more that it takes
    assert any(client.processing().values())
    assert not future.done()
    os.kill(pid, signal.SIGKILL)
    result = future.result(timeout=300)
    assert pid not in client.run(os.getpid).values()
    given = x.compute() + 1e6
    np.testing.assert_allclose(result, fastnorm.layer_norm(given, eps=0.0), rtol=1e-9, atol=1e-12)
