"""How things lie in memory: arrays as rows or columns with as few axes before them as can be; blocks; scratch.

Free of numba, for the schedules: a process whose kernels are all cached never imports a kernel's source.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

SMALL = 1 << 15  # elements: up to here a call is one call of the ufunc, whatever the strides
BLOCK = 512  # elements of a row that are summed together, see `blocks`
DEPTH = 64  # levels of a tree of blocks: enough for any row that fits into memory
LANES = 64  # numbers that a kernel computes with at once: chains of a row, or columns
SLAB = 1 << 19  # bytes of a slab of columns: it stays in the second cache from one reading to the next
NARROW = 256  # columns: a narrower slab loses more to short runs than it saves, even if this one has to be read twice
AHEAD_ROWS = 8  # rows of a slab of which lines are asked for ahead: axis 0 of 4096 x 4096 at 0.55 of copy instead of 0.47
FEW = 8  # elements of a row up to which its mean is summed exactly: 6 ns an element
SLOTS = 5  # numbers that the statistics of a piece take: scale, count, squares, lost, total (if they are about a shift)
CHAIN_LEVELS = 6  # partial sums of a tree over the 64 chains of a block


def result_rows(centred):
    """Rows of scratch for what applying needs of each column: inverse, scale, common; shift, mean, unlift."""
    return 6 if centred else 3


def scratch_rows(n, centred):
    """Rows of scratch for the kernel over columns, for a normalised axis of length n: results, sums, peaks, trees."""
    quantities = 2 if centred else 1
    return result_rows(centred) + quantities * CHAIN_LEVELS + 1 + (2 + quantities) * levels_of(n)


def levels_of(n):
    """Levels of a tree of the blocks of a row, and one more."""
    return (-(-n // BLOCK)).bit_length() + 1


def softmax_scratch_rows(n):
    """Rows of scratch for softmax over columns: how each is compared, its sums, its tree, two totals."""
    return 3 + CHAIN_LEVELS + levels_of(n) + 2


def slab_width(n, n_columns, itemsize):
    """Columns a slab, in whole registers: what fits the second cache, unless that is too narrow."""
    width = min(max(SLAB // (n * itemsize), NARROW), n_columns)
    return -(-width // LANES) * LANES


class Planes(NamedTuple):
    """The same elements of some arrays as stacks of matrices: one axis of planes, then rows x n, or n x columns."""

    arrays: list[np.ndarray]
    by_columns: bool


def planes(*arrays):
    """View arrays of one shape, whose last axis is normalised, as `Planes`; None if it takes more axes to count the planes.

    As rows where the normalised axis is contiguous in all; as columns where it is not, but another axis is.
    """
    n = arrays[0].shape[-1]
    if all(a.flags.c_contiguous for a in arrays):
        return Planes([a.reshape(1, -1, n) for a in arrays], False)
    lead = merged(arrays)
    dense = tuple(a.itemsize for a in arrays)
    contiguous = n == 1 or tuple(a.strides[-1] for a in arrays) == dense
    columns = not contiguous and bool(lead) and lead[-1][1] == dense
    nothing = 1, (0,) * len(arrays)
    inner = lead.pop() if lead else nothing
    if len(lead) > 1:
        return None
    outer = lead.pop() if lead else nothing
    return Planes([_stack(a, i, outer, inner, columns) for i, a in enumerate(arrays)], columns)


def tasks(view):
    """Arrays whose first axis is for threads to share, and the kernel's dimension that it is: "r", or None for planes."""
    if len(view.arrays[0]) > 1:
        return view.arrays, None
    return [a[0] for a in view.arrays], "r"


def are_dense(*arrays):
    """True if the elements along the last axis are neighbours in all arrays."""
    return all(a.strides[-1] == a.itemsize for a in arrays)


def merged(arrays):
    """The axes before the last as (length, strides), longest strides first, merged where all arrays allow."""
    axes = [(a[0], a[1:]) for a in zip(arrays[0].shape[:-1], *[a.strides for a in arrays], strict=False) if a[0] != 1]
    axes.sort(key=lambda axis: [-abs(stride) for stride in axis[1]])
    merged: list[tuple[int, tuple[int, ...]]] = []
    for length, strides in axes:
        if merged and merged[-1][1] == tuple(length * stride for stride in strides):
            length *= merged.pop()[0]
        merged.append((length, strides))
    return merged


def _stack(array, i, outer, inner, columns):
    matrix = [(array.shape[-1], array.strides[-1]), (inner[0], inner[1][i])]
    if not columns:
        matrix.reverse()
    shape = (outer[0], *(a[0] for a in matrix))
    strides = (outer[1][i], *(a[1] for a in matrix))
    return as_strided(array, shape, strides)


def row_count(x):
    """The number of rows of a prepared array."""
    return math.prod(x.shape[:-1])


# RoPE: heads that share the reading of a row of the tables. With one, 0.40 of copy instead of 0.56 (one thread).
HEADS = 2
STAGED = 1024  # elements of room for a row of these, where the result cannot be streamed from registers

# Softmax: what is wanted of a row, and the steps of the work on a piece of a long one.
PROBABILITY, LOGARITHM = range(2)
LARGEST, SUM, APART, RESULT = range(4)
KEPT = 8192  # elements of a row up to which its exponentials are kept, in the second cache, and not taken twice
