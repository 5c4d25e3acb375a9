"""Schedules of the norms of a sum, which is kept: rows in one pass over memory, everything else in two."""

import functools

import numpy as np

from .._compile import kernel
from .._two_passes import apart
from .._vocabulary import COMPUTED
from . import norms
from .layout import SMALL, are_dense, planes, tasks
from .norms import PARALLEL, all_given, as_neighbours, as_stored, both_eps, step_of, streaming_of
from .threads import share


def _add_norm(norm, x, residual, parameters, eps, out, kept):
    """Keep ``x + residual`` in `kept`, and its norm in `out`."""
    arrays = [as_stored(a) for a in (x, residual, kept, out)]
    stored = [a.dtype.name for a in arrays[:2]]
    view = planes(*arrays) if x.size > SMALL else None
    by_rows = x.size <= SMALL or (view is not None and not view.by_columns)
    if COMPUTED[stored[0]] != COMPUTED[stored[1]] or not by_rows:
        apart(np, getattr(norms, norm), x, residual, parameters, eps, out, kept)
        return
    eps = both_eps(norm, arrays[0].dtype, eps)
    parameters = all_given(parameters, x.shape[-1], eps.dtype)
    x, residual, kept, out = (a[None] if a.ndim == 1 else a for a in arrays)
    if x.size <= SMALL or (x.size < PARALLEL and are_dense(*arrays)):
        run = kernel("fastnorm._cpu.small:sum_rows", norm, *stored)
        run.ufunc(x, residual, *parameters, eps, kept, out)
    else:
        _by_rows(norm, stored, view, parameters, eps, streaming_of(out, x, residual, kept))


def _by_rows(norm, stored, view, parameters, eps, streaming):
    """Tasks are rows of a plane, or planes if there are several."""
    arrays, dimension = tasks(view)
    x, residual, kept, out = arrays
    if are_dense(*arrays):
        run = kernel("fastnorm._cpu.rows:sum_rows", norm, *stored)
        run = run.over(dimension, x, residual, *as_neighbours(parameters), eps, streaming, kept, out)
    else:
        run = kernel("fastnorm._cpu.small:sum_rows", norm, *stored)
        run = run.over(dimension, x, residual, *parameters, eps, kept, out)
    share(run, len(x), max(1, step_of(x) // 2))  # twice the bytes of a norm


add_rms_norm = functools.partial(_add_norm, "rms_norm")
add_layer_norm = functools.partial(_add_norm, "layer_norm")
