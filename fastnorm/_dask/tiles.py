"""A chunk as a matrix of rows, and its tiles: what is computed at once, in float64, so that little memory is needed.

In float64 the squares of any float32 are in range, and sums of them exact beyond what the result shows. For a chunk of
float64 the formulas scale what needs it.
"""

import math

import numpy as np

from .._arguments import as_rows
from .._two_passes import for_rounding

_SIZES = {"numpy": 1 << 16, "cupy": 1 << 24}  # elements: half a megabyte is within a core's cache; a GPU wants much at once


def matrix(x, axes):
    """The rows of `x` along some axes, as (rows, elements)."""
    view = as_rows(x, axes)
    return view.reshape(math.prod(view.shape[:-1]), view.shape[-1])


def from_matrix(y, shape, axes):
    """The array of a shape whose rows along some axes are these."""
    if len(axes) > 1:
        return y.reshape(shape)
    others = [n for a, n in enumerate(shape) if a != axes[0]]
    return np.moveaxis(y.reshape(*others, shape[axes[0]]), -1, axes[0])


def tiles(rows):
    """For some rows at a time: a slice of them, and the slices of their elements."""
    n_rows, n = rows.shape
    size = _SIZES[type(rows).__module__.partition(".")[0]]
    width = max(1, min(n, size))
    height = max(1, size // width)
    for top in range(0, max(n_rows, 1), height):
        yield slice(top, top + height), [slice(left, left + width) for left in range(0, n, width)]


def stacked(found):
    """Named tuples of numbers, or of arrays of one number a row, as one for all rows."""
    fields = zip(*found, strict=True)
    return type(found[0])(*(field[0] if np.ndim(field[0]) == 0 else np.concatenate(field) for field in fields))


def widened(tile):
    """A tile in float64, each row contiguous: NumPy then adds it up in pairs, else in one long chain."""
    return tile.astype(np.float64, order="C")


def of_rows(known, top):
    """What is known of some rows, as columns beside them."""
    return type(known)(*(field if np.ndim(field) == 0 else field[top, None] for field in known))


def put(y, target):
    """Round a result to its dtype, once."""
    target[...] = for_rounding(y, target)
