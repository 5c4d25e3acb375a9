"""How things lie in memory: arrays as rows or columns with as few axes before them as can be; blocks; scratch.

Free of numba, for the schedules: a process whose kernels are all cached never imports a kernel's source.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

SMALL = 1 << 15  # elements: up to here a call is one call of the ufunc, whatever the strides
BLOCK = 512  # elements of a row that are summed together, see `blocks`
LANES = 64  # numbers that a kernel computes with at once: chains of a row, or columns
SLAB = 1 << 19  # bytes of a slab of columns: it stays in the second cache from one reading to the next
NARROW, WIDE = 256, 2048  # columns: a slab narrower than this loses more to short runs than it saves; then wide ones
FEW = 8  # elements of a row up to which its mean is summed exactly: 6 ns an element
CHAIN_LEVELS = 7  # partial sums of a tree over the 64 chains of a block


def result_rows(centred):
    """Rows of scratch for what applying needs of each column: inverse, scale, common; shift, mean, unlift."""
    return 6 if centred else 3


def scratch_rows(n, centred):
    """Rows of scratch for the kernel over columns, for a normalised axis of length n."""
    quantities = 2 if centred else 1
    levels = (-(-n // BLOCK)).bit_length() + 1
    return result_rows(centred) + quantities * CHAIN_LEVELS + (1 + quantities) * levels


def slab_width(n, n_columns, itemsize):
    """Columns a slab, in whole registers: what fits the second cache, unless that is too narrow."""
    fitting = SLAB // (n * itemsize)
    width = fitting if fitting >= NARROW else WIDE
    return -(-min(width, n_columns) // LANES) * LANES


class Planes(NamedTuple):
    """The same elements as a stack of matrices: one axis of planes, then rows x n, or n x columns."""

    x: np.ndarray
    out: np.ndarray
    by_columns: bool


def planes(x, out):
    """View arrays whose last axis is normalised as `Planes`; None if it takes more than one axis to count the planes.

    As rows where the normalised axis is contiguous in both; as columns where it is not, but another axis is.
    """
    n, itemsize = x.shape[-1], x.itemsize
    if x.flags.c_contiguous and out.flags.c_contiguous:
        return Planes(x.reshape(1, -1, n), out.reshape(1, -1, n), False)
    lead = _merged(x, out)
    contiguous = n == 1 or x.strides[-1] == out.strides[-1] == itemsize
    columns = not contiguous and bool(lead) and lead[-1][1:] == (itemsize, itemsize)
    inner = lead.pop() if lead else (1, 0, 0)
    if len(lead) > 1:
        return None
    outer = lead.pop() if lead else (1, 0, 0)
    return Planes(_stack(x, outer, inner, 1, columns), _stack(out, outer, inner, 2, columns), columns)


def _merged(x, out):
    """The axes before the last as (length, stride in x, stride in out), longest strides first, merged where both allow."""
    axes = [a for a in zip(x.shape[:-1], x.strides, out.strides, strict=False) if a[0] != 1]
    axes.sort(key=lambda a: (-abs(a[1]), -abs(a[2])))
    merged: list[tuple[int, int, int]] = []
    for length, x_stride, out_stride in axes:
        if merged and merged[-1][1] == length * x_stride and merged[-1][2] == length * out_stride:
            length *= merged.pop()[0]
        merged.append((length, x_stride, out_stride))
    return merged


def _stack(array, outer, inner, which, columns):
    length, stride = array.shape[-1], array.strides[-1]
    matrix = [(length, stride), (inner[0], inner[which])]
    if not columns:
        matrix.reverse()
    shape = (outer[0], *(a[0] for a in matrix))
    strides = (outer[which], *(a[1] for a in matrix))
    return as_strided(array, shape, strides)


def row_count(x):
    """The number of rows of a prepared array."""
    return math.prod(x.shape[:-1])
