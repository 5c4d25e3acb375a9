"""Tasks and bytes of the formulas in `_bench/growth.py`, beside what graphs hold and workers send."""

import importlib.util
import pathlib

import dask
import dask.array as da
import distributed
import numpy as np
import pytest

import fastnorm
from fastnorm._bench import growth

SCRIPT = pathlib.Path(__file__).parent.parent / "bench" / "scaling.py"


def own_tasks(y, *inputs):
    """Tasks that a function has added to the graphs of its arguments, before anything is optimised."""
    return len(set(y.dask) - {key for one in inputs for key in one.dask})


def random(shape, chunks, seed=0, dtype=np.float32):
    return da.random.default_rng(seed).random(shape, chunks=chunks).astype(dtype)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 32, 33, 255, 256, 257, 300])
def test_trees(n):
    x = random((1, 9 * n), (1, 9))
    planted = [key for key in fastnorm.layer_norm(x).dask if "factors" in key[0]]
    assert len(planted) == growth.joins(n)


def test_tasks_of_norms():
    x = random((60, 4000), (10, 4000))
    assert own_tasks(fastnorm.rms_norm(x), x) == growth.whole_rows(6).tasks
    for n_pieces in (2, 16, 20):
        x = random((60, 4000), (10, 4000 // n_pieces))
        for norm in growth.STATISTICS:
            predicted = growth.cut_rows(norm, 6, n_pieces, 10, 0, 1)
            assert own_tasks(getattr(fastnorm, norm)(x), x) == predicted.tasks
            assert predicted[1:] == (0, 0)


@pytest.mark.parametrize("n_chunks", [1, 2, 16, 17, 40])
def test_tasks_of_attention(n_chunks):
    q = random((2, 10 * n_chunks, 8), (2, 10, 8))
    y = fastnorm.attention(q, q, q, is_causal=True)
    predicted = growth.causal_attention(n_chunks, 10, 2, 2, 8, 4, 1)
    assert own_tasks(y, q) == predicted.tasks
    assert predicted[1:] == (0, 0)


def test_bytes_of_a_row():
    """What the formulas count for a row is what a chunk's statistics have, and what follows from them."""
    x = random((1000, 64), (1000, 8))
    for norm in growth.STATISTICS:
        graph = getattr(fastnorm, norm)(x).dask
        keys = [next(key for key in graph if key[0].startswith(f"{norm}-{what}")) for what in ("statistics", "factors")]
        results = dask.get(graph, keys)
        expected = growth.STATISTICS[norm], growth.FACTORS[norm]
        for result, a_row in zip(results, expected, strict=True):
            assert sum(np.asarray(field).nbytes for field in result if np.ndim(field)) == 1000 * a_row
            assert dask.sizeof.sizeof(result) <= 1000 * a_row + growth.A_RESULT


# ------------------------------------------------------------------------------------------------------- what moves
@pytest.fixture(scope="module", params=[2, 3])
def client(request):
    fastnorm.warm_up(["rms_norm", "attention"], ["float16", "float32"])  # here: else workers stand still to compile
    settings = {
        "distributed.admin.low-level-log-length": 100_000,
        "distributed.scheduler.active-memory-manager.start": False,  # it drops copies, which may be sent again
        "distributed.scheduler.work-stealing": False,  # an idle worker takes tasks, and with them their chunks
    }
    options = {"n_workers": request.param, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(processes=True, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def received(dask_worker):
    """The keys and sizes of what a worker got from others."""
    return [(str(key), size) for entry in dask_worker.transfer_incoming_log for key, size in entry["keys"].items()]


def moved(client, y, inputs):
    """Bytes that workers send one another while they compute `y`: results of its tasks, and chunks of its inputs."""
    inputs = dask.persist(*inputs)
    distributed.wait(inputs)
    client.run(lambda dask_worker: dask_worker.transfer_incoming_log.clear())
    result = y(*inputs).persist()
    distributed.wait(result)
    of_inputs = {str(key) for one in inputs for key in one.dask}
    entries = [entry for worker in client.run(received).values() for entry in worker]
    assert len(entries) > 0
    return [sum(size for key, size in entries if (key in of_inputs) is given) for given in (False, True)]


@pytest.mark.slow
def test_bytes_that_move(client):
    workers = len(client.nthreads())
    x = random((4096, 2048), (512, 256))
    for norm in growth.STATISTICS:
        results, chunks = moved(client, getattr(fastnorm, norm), [x])
        predicted = growth.cut_rows(norm, 8, 8, 512, 512 * 256 * 4, workers)
        assert 0 < results <= predicted.results
        assert chunks <= predicted.inputs
    for dtype in (np.float32, np.float16):
        q = random((4, 1800, 32), (4, 100, 32), dtype=dtype)
        k, v = (random((2, 1800, 32), (2, 100, 32), seed, dtype) for seed in (1, 2))
        results, chunks = moved(client, lambda *qkv: fastnorm.attention(*qkv, is_causal=True), [q, k, v])
        predicted = growth.causal_attention(18, 100, 4, 2, 32, q.dtype.itemsize, workers)
        assert 0 < results <= predicted.results
        assert 0 < chunks <= predicted.inputs


@pytest.mark.slow
def test_whole_rows_stay_where_they_are(client):
    x = random((4096, 2048), (128, 2048)).persist()
    distributed.wait(x)
    client.run(lambda dask_worker: dask_worker.transfer_incoming_log.clear())
    distributed.wait(fastnorm.rms_norm(x).persist())
    sizes = [size for worker in client.run(received).values() for _, size in worker]
    assert not sizes


@pytest.mark.slow
@pytest.mark.skipif(not SCRIPT.exists(), reason="an installation without the repository")
def test_the_script_tells_every_case(capsys):
    spec = importlib.util.spec_from_file_location("scaling", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(["--rounds", "1", "--size", "smoke"])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert len(rows) == 9
    for _, _, _, tasks, by_formula, *_ in rows:
        assert int(tasks) == int(by_formula)
