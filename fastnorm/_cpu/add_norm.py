"""Schedules of the norms of a sum, which is kept: rows in one pass over memory, everything else in two."""

import functools

import numpy as np

from .._compile import kernel
from .._two_passes import apart
from .._vocabulary import COMPUTED, STORED
from . import norms
from .layout import SMALL, planes
from .norms import PARALLEL, PLAIN, STREAM, STREAMING, all_given, as_neighbours, both_eps, step_of
from .threads import share


def _add_norm(norm, x, residual, parameters, eps, out, kept):
    """Keep ``x + residual`` in `kept`, and its norm in `out`."""
    stored = [STORED[dtype.name] for dtype in (x.dtype, residual.dtype)]
    if COMPUTED[stored[0]] != COMPUTED[stored[1]]:
        apart(np, getattr(norms, norm), x, residual, parameters, eps, out, kept)
        return
    arrays = _stored(x, stored[0]), _stored(residual, stored[1]), _stored(kept, stored[1]), _stored(out, stored[0])
    view = planes(*arrays) if x.size > SMALL else None
    if x.size > SMALL and (view is None or view.by_columns):
        apart(np, getattr(norms, norm), x, residual, parameters, eps, out, kept)
        return
    eps = both_eps(norm, arrays[0].dtype, eps)
    parameters = all_given(parameters, x.shape[-1], eps.dtype)
    x, residual, kept, out = (a[None] if a.ndim == 1 else a for a in arrays)
    if x.size <= SMALL or (x.size < PARALLEL and all(a.strides[-1] == a.itemsize for a in arrays)):
        run = kernel("fastnorm._cpu.small:sum_rows", norm, *stored)
        run.ufunc(x, residual, *parameters, eps, kept, out)
    else:
        streaming = STREAMING if 4 * out.nbytes >= STREAM and not _shares(out, x, residual) else PLAIN
        _by_rows(norm, stored, view, parameters, eps, streaming)


def _stored(array, name):
    return array.view(name) if array.itemsize == 2 else array


def _shares(out, *inputs):
    return any(np.may_share_memory(out, one) for one in inputs)


def _by_rows(norm, stored, view, parameters, eps, streaming):
    """Tasks are rows of a plane, or planes if there are several."""
    arrays, dimension = view.arrays, None
    if len(arrays[0]) == 1:
        arrays, dimension = [a[0] for a in arrays], "r"
    x, residual, kept, out = arrays
    if all(a.strides[-1] == a.itemsize for a in arrays):
        run = kernel("fastnorm._cpu.rows:sum_rows", norm, *stored)
        run = run.over(dimension, x, residual, *as_neighbours(parameters), eps, streaming, kept, out)
    else:
        run = kernel("fastnorm._cpu.small:sum_rows", norm, *stored)
        run = run.over(dimension, x, residual, *parameters, eps, kept, out)
    share(run, len(x), max(1, step_of(x) // 2))  # twice the bytes of a norm


add_rms_norm = functools.partial(_add_norm, "rms_norm")
add_layer_norm = functools.partial(_add_norm, "layer_norm")
