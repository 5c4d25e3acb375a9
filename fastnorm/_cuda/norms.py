"""Schedules: how a norm of prepared CuPy arrays becomes a launch. Free of numba, as is a process whose kernels are on disk."""

import functools
import math

import cupy
import numpy as np

from .._math import NORMS
from .._two_passes import apart
from .._vocabulary import COMPUTED, RANGES, STORED, name_of
from . import launch, layout
from .layout import over_rows, row_stride

SUMMED, FOUND = 3, 4  # numbers that kernels leave of a piece, and of a long row


def _normalise(norm, x, parameters, eps, out):
    """Normalise the rows of `x`. `parameters`: the weight, and the bias of a norm that has one; None for one not given."""
    if row_stride(x) is None and _is_short(x):
        source, target = layout.columns(x), layout.columns(out)
        if source and target and source.inner == target.inner:
            _launch_columns(norm, x, parameters, eps, out, source, target)
            return
    _run("rows", norm, (x,), parameters, eps, (out,))


def _is_short(x):
    """False for rows that are cut into pieces, whose sums have an order of their own."""
    return x.shape[-1] * np.dtype(COMPUTED[STORED[name_of(x.dtype)]]).itemsize < launch.LONG


def _add(norm, x, residual, parameters, eps, out, kept):
    """Keep x + residual, and normalise its rows. `kept` may be x or residual, and so may `out`."""
    if x.dtype == residual.dtype:
        _run("sum_rows", norm, (x, residual), parameters, eps, (out, kept))
    else:
        apart(cupy, functools.partial(_normalise, norm), x, residual, parameters, eps, out, kept)


def group_norm(x, parameters, eps, out):
    """Normalise each group of channels. Axes of `x`: batch, groups, any before the channels, channels of a group, any after."""
    _, n_groups, _, channels, inner = x.shape
    _run("groups", "layer_norm", (x,), parameters, eps, (out,), 3, (n_groups, channels, inner))


rms_norm = functools.partial(_normalise, "rms_norm")
unit_norm = functools.partial(_normalise, "unit_norm")
layer_norm = functools.partial(_normalise, "layer_norm")
add_rms_norm = functools.partial(_add, "rms_norm")
add_layer_norm = functools.partial(_add, "layer_norm")


def _run(maker, norm, inputs, parameters, eps, outputs, axes=1, shape=()):
    """Launch a kernel over rows, which are the last axes of arrays of one shape."""
    if outputs[0].size == 0:
        return
    parameters = [p if p is None or p.flags.c_contiguous else cupy.ascontiguousarray(p) for p in parameters]
    over_rows(
        lambda sources, targets: _launch(maker, norm, sources + targets, parameters, eps, axes, shape), inputs, outputs, axes
    )


def _launch(maker, norm, arrays, parameters, eps, axes, shape):
    """A block a row; more rows than a grid can have take several launches."""
    x = arrays[0]
    n = math.prod(x.shape[-axes:])
    dtype, computed, eps, lifted_eps = _constants(norm, eps, name_of(x.dtype))
    at, strides = [a.data.ptr for a in arrays], [row_stride(a, axes) for a in arrays]
    parameters_at = [0 if p is None else p.data.ptr for p in parameters]
    threads = launch.block_size(n, computed.itemsize)
    numbers = [n * x.itemsize, *at, *strides, *([] if shape else parameters_at)]  # what channels need is loaded one by one
    whole = n * computed.itemsize <= threads * launch.HELD
    short = maker == "rows" and threads == launch.WARP
    maker = f"fastnorm._cuda.rows:{'short_' if short else ''}{maker}"
    aligned, rows = launch.moves_wide(numbers), x.size // n
    weight_at, bias_at = (*parameters_at, 0)[:2]
    if maker.endswith(":rows") and not _is_short(x):
        _launch_pieces((norm, dtype, aligned), rows, at, strides, (weight_at, bias_at, eps, lifted_eps), n, computed)
        return
    run = launch.kernel(maker, norm, dtype, aligned, whole)
    for first in range(0, rows, launch.MOST_BLOCKS):
        places = [p for a, stride in zip(at, strides, strict=True) for p in (a + first * stride, stride)]
        behind = (first, *shape) if shape else ()
        grid, block = (min(rows - first, launch.MOST_BLOCKS),), (threads,)
        if short:
            behind = grid
            grid, block = (-(-grid[0] // launch.SHORT_ROWS),), (launch.WARP, launch.SHORT_ROWS)
        run(grid, block, (*places, weight_at, bias_at, eps, lifted_eps, n, *behind))


def _launch_pieces(name, rows, at, strides, parameters, n, computed):
    """Several blocks a row: so few are so long that one launch of each kernel has room for all."""
    pieces = -(-n * computed.itemsize // launch.PIECE)
    room = cupy.empty((SUMMED * pieces + FOUND) * rows, computed)
    sums, found = room.data.ptr, room.data.ptr + room.itemsize * SUMMED * pieces * rows
    add_up, join, apply = (launch.kernel(f"fastnorm._cuda.pieces:{what}_pieces", *name) for what in ("sum", "join", "apply"))
    add_up((rows * pieces,), (launch.MOST_THREADS,), (at[0], strides[0], n, pieces, sums))
    join((rows,), (launch.HALF,), (at[0], strides[0], parameters[-1], n, pieces, sums, found))
    apply((rows * pieces,), (launch.MOST_THREADS,), (at[0], strides[0], at[1], strides[1], *parameters, n, pieces, found))


def _launch_columns(norm, x, parameters, eps, out, source, target):
    """A block for 32 columns, which it sums in the order of the `warps` that one would have for a row."""
    n, inner = x.shape[-1], source.inner
    if x.size == 0:
        return
    dtype, computed, eps, lifted_eps = _constants(norm, eps, name_of(x.dtype))
    blocks = -(-inner // launch.WARP)
    warps = launch.block_size(n, computed.itemsize) // launch.WARP
    grid, block = (x.size // n // inner * blocks,), (launch.WARP, min(warps, launch.HALF // launch.WARP))
    parameters = [p if p is None or p.flags.c_contiguous else cupy.ascontiguousarray(p) for p in parameters]
    weight_at, bias_at = (*(0 if p is None else p.data.ptr for p in parameters), 0)[:2]
    places = x.data.ptr, source.step, source.outer, out.data.ptr, target.step, target.outer
    run = launch.kernel("fastnorm._cuda.columns:columns", norm, dtype)
    run(grid, block, (*places, weight_at, bias_at, eps, lifted_eps, n, inner, blocks, warps))


@functools.lru_cache(maxsize=256)
def _constants(norm, eps, dtype):
    """Names of the dtypes stored and computed; `eps` as it is, and as a lifted row sees it, before underflow can take it."""
    stored = STORED[dtype]
    computed = np.dtype(COMPUTED[stored])
    with np.errstate(all="ignore"):
        lifted = NORMS[norm].lift_eps(np.float64(eps), RANGES[computed.name])
        return stored, computed, computed.type(eps), computed.type(lifted)
