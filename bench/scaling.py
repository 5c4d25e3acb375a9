"""How Dask arrays grow over one and two workers of one thread: ``python bench/scaling.py [--rounds 5] [--size full]``.

Strong scaling: the same work for one worker and for two. Weak: two have twice as much. Workers are processes of this machine,
which the scheduler and this script share with them. Chunks lie on the workers before the clock starts; a round runs each case
once with either cluster, and medians are told. Results are checked against float64 before.

Tasks and bytes stand beside those of `fastnorm/_bench/growth.py`. Efficiency is the work that a worker does in a second, as
part of what one alone does.
"""

import argparse
import contextlib
import functools
import statistics
import time
from typing import Any, NamedTuple

import dask
import dask.array as da
import distributed
import numpy as np
from rich.console import Console
from rich.table import Table

import fastnorm
from fastnorm._bench import attention_oracles, growth, oracles

EVERY = 499  # a row of so many is checked
ROWS = {"full": (2048, 4096), "smoke": (64, 256)}  # of a chunk of whole rows
CHUNK = {"full": 512, "smoke": 32}  # positions in a chunk of attention
HEADS, KEY_HEADS, SIZE = 8, 2, 64


class Case(NamedTuple):
    """What is computed, of how much, and what the formula says."""

    title: str
    inputs: list
    function: Any
    check: Any
    work: float  # numbers to normalise, or operations on them
    predicted: Any  # of the number of workers


def random(shape, chunks, seed=0):
    """A Dask array of normal numbers in float32."""
    return da.random.default_rng(seed).standard_normal(shape, dtype=np.float32, chunks=chunks)


def normalised(norm, n_pieces, size, times):
    """A norm of 8 chunks, or of `times` as many."""
    rows, width = ROWS[size]
    chunks = rows if n_pieces == 1 else rows * n_pieces, width // n_pieces
    n_bands = 8 * times // n_pieces
    x = random((n_bands * chunks[0], width), chunks)

    def check(y, x):
        found, given = dask.compute(y[::EVERY], x[::EVERY])
        np.testing.assert_allclose(found, getattr(oracles, norm)(given), rtol=0, atol=1e-5)

    def predicted(workers):
        if n_pieces == 1:
            return growth.whole_rows(n_bands)
        return growth.cut_rows(norm, n_bands, n_pieces, chunks[0], 4 * chunks[0] * chunks[1], workers)

    title = f"{norm}, {'whole rows' if n_pieces == 1 else f'in {n_pieces} chunks'}"
    return Case(title, [x], getattr(fastnorm, norm), check, x.size, predicted)


def attended(size, n_chunks):
    """Causal attention of a sequence to itself."""
    chunk = CHUNK[size]
    q = random((HEADS, n_chunks * chunk, SIZE), (HEADS, chunk, SIZE))
    k, v = (random((KEY_HEADS, n_chunks * chunk, SIZE), (KEY_HEADS, chunk, SIZE), seed) for seed in (1, 2))

    def check(y, q, k, v):
        y, q, k, v = dask.compute(y, q, k, v)
        for i in (0, chunk, n_chunks * chunk - 1):
            wanted = attention_oracles.attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1])[0]
            np.testing.assert_allclose(y[:, i : i + 1], wanted, rtol=0, atol=1e-5)

    function = functools.partial(fastnorm.attention, is_causal=True)
    predicted = functools.partial(growth.causal_attention, n_chunks, chunk, HEADS, KEY_HEADS, SIZE, 4)
    operations = 4 * HEADS * SIZE * q.shape[1] * (q.shape[1] + 1) / 2
    return Case("causal attention", [q, k, v], function, check, operations, predicted)


def cases(size):
    """For each function the work of one worker, and about twice as much."""
    yield [normalised("rms_norm", 1, size, times) for times in (1, 2)]
    yield [normalised("layer_norm", 4, size, times) for times in (1, 2)]
    yield [attended(size, n_chunks) for n_chunks in (8, 11)]  # 36 and 66 pairs


# ------------------------------------------------------------------------------------------------------- measuring
@contextlib.contextmanager
def cluster(workers):
    """A client of so many workers."""
    options = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options, memory_limit=0) as local, distributed.Client(local) as client:
        client.run(fastnorm.warm_up)
        yield client


def sent(dask_worker):
    """Bytes that a worker got from others since it was last asked, and in how many pieces."""
    sizes = [size for entry in dask_worker.transfer_incoming_log for size in entry["keys"].values()]
    dask_worker.transfer_incoming_log.clear()
    return np.array([sum(sizes), len(sizes)])


class Measured:
    """A case on a cluster: its chunks lie there, and its result is right."""

    def __init__(self, case, client):
        self.case, self.client, self.workers = case, client, len(client.nthreads())
        with client.as_current():
            self.inputs = client.persist(case.inputs)
            distributed.wait(self.inputs)
            self.y = case.function(*self.inputs)
            self.tasks = len(set(self.y.dask) - {key for one in self.inputs for key in one.dask})
            case.check(client.persist(self.y), *self.inputs)
        self.seconds, self.bytes = [], []

    def round(self):
        """Once more, by the clock."""
        with self.client.as_current():
            self.client.run(sent)
            began = time.perf_counter()
            distributed.wait(self.client.persist(self.y))
            self.seconds.append(time.perf_counter() - began)
            self.bytes.append(sum(self.client.run(sent).values())[0])

    def speed(self):
        """Work of a worker in a second."""
        return self.case.work / statistics.median(self.seconds) / self.workers


def seconds_of_a_task(client, count):
    """What the scheduler, the client and the workers need for a task that does nothing."""
    began = time.perf_counter()
    distributed.wait(client.map(str, range(count), pure=False))
    return (time.perf_counter() - began) / count


def main(arguments=None):
    """Print the table, and what the page on growth takes from it."""
    parser = argparse.ArgumentParser(description="Weak and strong scaling of Dask arrays over one and two workers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=list(ROWS), default="full")
    options = parser.parse_args(arguments)
    console = Console(width=128)
    table = Table(
        "what", "scaling", "workers", "tasks", "by formula", "sent, MB", "at most", "seconds", "from to", "efficiency"
    )
    settings = {"distributed.admin.low-level-log-length": 100_000}
    with dask.config.set(settings), cluster(1) as one, cluster(2) as two:
        for small, large in cases(options.size):
            alone, strong, weak = Measured(small, one), Measured(small, two), Measured(large, two)
            for _ in range(options.rounds):
                for measured in (alone, strong, weak):
                    measured.round()
            for name, measured in (("", alone), ("strong", strong), ("weak", weak)):
                predicted = measured.case.predicted(measured.workers)
                table.add_row(
                    measured.case.title,
                    name,
                    str(measured.workers),
                    str(measured.tasks),
                    str(predicted.tasks),
                    f"{statistics.median(measured.bytes) / 1e6:.1f}",
                    f"{(predicted.results + predicted.inputs) / 1e6:.1f}",
                    f"{statistics.median(measured.seconds):.2f}",
                    f"{min(measured.seconds):.2f} {max(measured.seconds):.2f}",
                    f"{measured.speed() / alone.speed():.2f}",
                )
            console.print(f"{small.title}: {alone.speed() / 1e9:.2f} billion numbers or operations a second, one worker alone")
        count = 1000 if options.size == "full" else 100
        tasks = [statistics.median(seconds_of_a_task(client, count) for _ in range(3)) * 1e3 for client in (one, two)]
    console.print(table)
    console.print(f"a task that does nothing: {tasks[0]:.2f} ms with one worker, {tasks[1]:.2f} ms with two")


if __name__ == "__main__":
    main()
