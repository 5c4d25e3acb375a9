"""The norms of a sum, of chunks: in one pass where a chunk holds whole rows, else the sum first, then its norm."""

import sys

import numpy as np

import fastnorm

from .._checks import NO_OFFSET, as_array, axes_of, check_residual, computed, eps_of, named, native, result_dtype
from .._two_passes import add
from .._vocabulary import STORED
from .arguments import checked, is_cut, lazy_parameters, lazy_too, whole_if_short
from .graph import cut_as, member, meta_of, per_chunk
from .norms import SHORT, in_three_steps


def add_rms_norm(x, residual, weight=None, *, eps, weight_offset, axis, out, residual_out):
    """As the public function, of Dask arrays."""
    outs = {"out": out, "residual_out": residual_out}
    return _add_norm("rms_norm", x, residual, (weight,), eps, axis, weight_offset, outs)


def add_layer_norm(x, residual, weight=None, bias=None, *, eps, axis, out, residual_out):
    """As the public function, of Dask arrays."""
    outs = {"out": out, "residual_out": residual_out}
    return _add_norm("layer_norm", x, residual, (weight, bias), eps, axis, NO_OFFSET, outs)


def _add_norm(norm, x, residual, parameters, eps, axis, weight_offset, outs):
    function = f"add_{norm}"
    lazy_too(function, "residual", residual)
    arrays = checked(function, x, {"residual": residual, **named(parameters)}, outs)
    as_array(function, "residual", residual._meta, arrays, tuple(STORED))
    axes = axes_of(function, axis, x, tuples=False)
    check_residual(function, x, residual)
    dtype, kept = result_dtype(x.dtype), result_dtype(residual.dtype)
    accumulated = computed(np.promote_types(computed(dtype), computed(kept)))
    eps = eps_of(function, eps, accumulated)
    rows = whole_if_short(x, axes, SHORT)
    given = lazy_parameters(function, parameters, axis, axes, rows, accumulated, weight_offset, arrays)
    everything, residual = tuple(range(x.ndim)), cut_as(residual, rows.chunks)
    others = [(p, axes) for p in given]
    if is_cut(rows, axes):
        options = {"dtype": kept, "computed": accumulated.name}
        h = per_chunk(_sum, rows, (residual, everything), token=f"{function}-sum", **options)
        return in_three_steps(norm, h, others, eps, axes, dtype, function), h
    options = {"dtype": dtype, "eps": eps, "axis": axes[0] - x.ndim}
    pairs = per_chunk(getattr(fastnorm, function), rows, (residual, everything), *others, token=f"{function}-both", **options)
    y, h = (member(pairs, i, function, meta_of(x, kind)) for i, kind in enumerate((dtype, kept)))
    return cut_as(y, x.chunks), cut_as(h, x.chunks)


@np.errstate(all="ignore")
def _sum(x, residual, computed):
    """The sum of two chunks, rounded to the dtype of `residual`."""
    x, residual = (native(a, result_dtype(a.dtype)) for a in (x, residual))
    kept = np.empty_like(residual)
    add(sys.modules[type(x).__module__.partition(".")[0]], x, residual, computed, kept)
    return kept
