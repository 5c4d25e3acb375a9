"""Schedules of softmax, its logarithm and the logarithm of its sum; as `norms` for the norms."""

import functools

import numpy as np

from .._vocabulary import COMPUTED, STORED, finite_in, name_of
from . import launch
from .layout import over_rows, row_stride

PROBABILITY, LOGARITHM, SUM = "softmax", "log_softmax", "logsumexp"  # what a kernel is made for


def softmax(x, scale, out):
    """Softmax of prepared arrays, along the last axis."""
    _run(PROBABILITY, x, scale, out)


def log_softmax(x, scale, out):
    """The logarithm of softmax."""
    _run(LOGARITHM, x, scale, out)


def logsumexp(x, out):
    """The logarithm of the sum of exponentials; `out`, contiguous, is of the shape of `x` without its last axis."""
    if x.size == 0:
        out.fill(-np.inf)
    else:
        over_rows(lambda sources, _: _launch(SUM, sources[0], 1.0, out, out.itemsize), [x], [])


def _run(what, x, scale, out):
    if x.size:
        over_rows(lambda sources, targets: _launch(what, sources[0], scale, targets[0], row_stride(targets[0])), [x], [out])


def _launch(what, x, scale, out, out_stride):
    """A block a row, or a warp."""
    n, stride = x.shape[-1], row_stride(x)
    stored, computed, sign, scale = _constants(scale, name_of(x.dtype))
    threads = launch.block_size(n, computed.itemsize)
    whole = n * computed.itemsize <= threads * launch.HELD
    places = [x.data.ptr, stride, n * x.itemsize] + ([out.data.ptr, out_stride] if what != SUM else [])
    aligned = launch.moves_wide(places)
    short = threads == launch.WARP
    maker = f"fastnorm._cuda.softmax_kernels:{'short_' if short else ''}rows"
    run = launch.kernel(maker, what, stored, aligned, whole)
    rows = x.size // n
    for first in range(0, rows, launch.MOST_BLOCKS):
        at = x.data.ptr + first * stride, stride, out.data.ptr + first * out_stride, out_stride
        grid, block, behind = (min(rows - first, launch.MOST_BLOCKS),), (threads,), ()
        if short:
            grid, block, behind = (-(-grid[0] // launch.SHORT_ROWS),), (launch.WARP, launch.SHORT_ROWS), grid
        run(grid, block, (*at, sign, scale, n, *behind))


@functools.lru_cache(maxsize=256)
def _constants(scale, dtype):
    """Names of the dtypes stored and computed; the sign of the scale, and the scale."""
    stored = STORED[dtype]
    computed = np.dtype(COMPUTED[stored])
    return stored, computed, computed.type(-1 if scale < 0 else 1), finite_in(scale, computed)
