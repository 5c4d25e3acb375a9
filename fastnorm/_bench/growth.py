"""What a graph of `_dask` costs a cluster, by formula: its tasks, and at most how many bytes its workers send one another.

A result moves when a task that needs it runs elsewhere, and once to each worker at most. So counted are results, each as often
as there are other workers with a task for it. Bytes are those that Dask counts: of arrays, without headers.
"""

from typing import NamedTuple

WIDTH = 16  # results that a task joins: Dask's default, and that of `_dask.graph.tree_width`
A_RESULT = 128  # bytes that Dask counts for a tuple of arrays beside them, at most
STATISTICS = {"rms_norm": 24, "unit_norm": 24, "layer_norm": 40}  # bytes for a row: numbers in float64
FACTORS = {"rms_norm": 17, "unit_norm": 17, "layer_norm": 41}


class Growth(NamedTuple):
    """Tasks of a function's own, beside those that make its input, and bytes that move at most."""

    tasks: int
    results: int  # bytes of what its tasks give one another
    inputs: int  # bytes of chunks of the input, which Dask moves where it finds that to even the load


def joins(n, width=WIDTH):
    """Tasks that join `n` results in a tree; none for one."""
    if n < 2:
        return 0
    return 1 if n <= width else -(-n // width) + joins(-(-n // width), width)


def whole_rows(n_chunks):
    """A norm of chunks that hold whole rows: each is a task, which runs where the chunk is."""
    return Growth(n_chunks, 0, 0)


def cut_rows(norm, n_bands, n_pieces, n_rows, chunk_bytes, workers):
    """A norm of rows in `n_pieces` chunks each, `n_rows` to a chunk, in `n_bands` bands of rows, without a weight."""
    n_joins = joins(n_pieces)
    statistics = (n_pieces + n_joins - 1) * (STATISTICS[norm] * n_rows + A_RESULT)
    factors = (min(workers, n_pieces) - 1) * (FACTORS[norm] * n_rows + A_RESULT)
    moving = 0 if workers == 1 else n_bands * (statistics + factors)
    twice = min(workers - 1, 2)  # a chunk is measured, and normalised
    return Growth(n_bands * (2 * n_pieces + n_joins), moving, twice * n_bands * n_pieces * chunk_bytes)


def causal_attention(n_chunks, chunk, heads, key_heads, size, itemsize, workers):
    """Attention of a sequence to itself in `n_chunks` chunks of `chunk` positions, each with all heads of `size` features."""
    n_pairs = n_chunks * (n_chunks + 1) // 2
    n_joins = sum(joins(n) for n in range(1, n_chunks + 1))
    part = heads * chunk * (max(itemsize, 4) * (size + 1)) + A_RESULT  # a result and its logarithms, in float32 or wider
    moving = (n_pairs - 1 + n_joins - (n_chunks - 1)) * part  # all but the first chunk's, and the roots of the trees
    readers = sum(min(n, workers - 1) for n in range(1, n_chunks + 1))  # of chunks of queries; as many of those of keys
    inputs = readers * (heads + 2 * key_heads) * chunk * size * itemsize
    return Growth(n_pairs + n_joins + n_chunks, 0 if workers == 1 else moving, inputs)
