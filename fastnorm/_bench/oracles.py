"""The norms in plain NumPy, wider than their input: what a result is right against. Imports nothing but NumPy.

float64 for input of up to 32 bits; for float64 `numpy.longdouble`, which is wider on x86 Linux and macOS (80 bits) and no
wider on Windows and arm64. Results are not rounded to the input's dtype: the caller decides how near is near enough.
To add a norm: a function here, with the public function's name, order of arguments and default of `eps`.
"""

import numpy as np


@np.errstate(all="ignore")
def rms_norm(x, weight=None, eps=1e-6, axis=-1, weight_offset=0.0):
    """``x / sqrt(mean(x**2) + eps) * (weight_offset + weight)``; zeros stay zeros with ``eps=0``."""
    x = _wide(x)
    factor = _factor(weight, x, axis, weight_offset)
    return _divide(x, np.sqrt(_mean(x * x, axis) + eps)) * factor


@np.errstate(all="ignore")
def layer_norm(x, weight=None, bias=None, eps=1e-5, axis=-1):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``; a constant row gives exactly `bias`."""
    x = _wide(x)
    y = _standardise(x, eps, axis) * _factor(weight, x, axis)
    return y if bias is None else y + _factor(bias, x, axis)


@np.errstate(all="ignore")
def unit_norm(x, weight=None, eps=0.0, axis=-1):
    """``x / max(sqrt(sum(x**2)), eps) * weight``; zeros stay zeros."""
    x = _wide(x)
    length = np.sqrt(_mean(x * x, axis) * x.shape[axis])
    return _divide(x, np.maximum(length, eps)) * _factor(weight, x, axis)


@np.errstate(all="ignore")
def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5, axis=1):
    """`layer_norm` of each group: its channels on `axis`, and all other axes but that of the batch."""
    x = _wide(x)
    axis %= x.ndim
    groups = x.reshape(*x.shape[:axis], num_groups, -1 if x.size else x.shape[axis] // num_groups, *x.shape[axis + 1 :])
    rows = tuple(a for a in range(groups.ndim) if a != axis and (a > 0 or axis == 0))
    y = _standardise(groups, eps, rows).reshape(x.shape) * _factor(weight, x, axis)
    return y if bias is None else y + _factor(bias, x, axis)


def add_rms_norm(x, residual, weight=None, eps=1e-6, weight_offset=0.0, axis=-1):
    """The norm of ``h = x + residual``, and h as it is kept: rounded to residual's dtype."""
    h, wide = _sum(x, residual)
    return rms_norm(wide, weight, eps, axis, weight_offset), h


def add_layer_norm(x, residual, weight=None, bias=None, eps=1e-5, axis=-1):
    """The same with the other norm."""
    h, wide = _sum(x, residual)
    return layer_norm(wide, weight, bias, eps, axis), h


def _result_dtype(x):
    """The dtype of a norm of x."""
    return np.result_type(x.dtype, np.float32) if x.dtype.kind in "iu" else x.dtype.newbyteorder("=")


def _wide(x):
    x = np.asarray(x)
    result = _result_dtype(x)
    return x.astype(result).astype(np.longdouble if result == np.float64 else np.float64)


@np.errstate(all="ignore")
def _sum(x, residual):
    """``x + residual`` as it is kept, and the same numbers in the dtype of the computation."""
    x, residual = np.asarray(x), np.asarray(residual)
    computed = np.float64 if np.float64 in (_result_dtype(x), _result_dtype(residual)) else np.float32
    h = rounded_once(x.astype(computed) + residual.astype(computed), _result_dtype(residual))
    return h, h.astype(computed)


def rounded_once(wide, dtype):
    """`wide` in `dtype`, rounded once: ml_dtypes casts float64 to bfloat16 by way of float32, so the place is found here."""
    if dtype.name == "bfloat16" and wide.dtype == np.float64:
        step = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, -126) - 7)
        wide = np.rint(wide / step) * step
    return wide.astype(dtype)


def _mean(x, axis):
    """The mean along some axes, kept as 1, summed in pairs: NumPy does that along a last axis that is contiguous."""
    axes = sorted(a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    others = [a for a in range(x.ndim) if a not in axes]
    rows = np.ascontiguousarray(x.transpose(others + axes)).reshape(*[x.shape[a] for a in others], -1 if x.size else 1)
    return rows.mean(-1).reshape([1 if a in axes else n for a, n in enumerate(x.shape)])


def _standardise(x, eps, axis):
    """``(x - mean) / sqrt(variance + eps)``, about a shift that is the mean of equal numbers exactly; 0 for these."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    first = x[tuple(slice(0, 1) if a in {b % x.ndim for b in axes} else slice(None) for a in range(x.ndim))]
    centred = x - (first + _mean(x - first, axis))
    centred = centred - _mean(centred, axis)
    return _divide(centred, np.sqrt(_mean(centred * centred, axis) + eps))


@np.errstate(all="ignore")
def _factor(weight, x, axis, offset=0.0):
    """A weight or bias in the dtype of the computation, widened, with its axes where `x` has them; 1 if there is none."""
    if weight is None:
        return 1
    axes = sorted(a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    shape = [n if i in axes else 1 for i, n in enumerate(x.shape)]
    computed = np.float64 if x.dtype == np.longdouble else np.float32
    return np.asarray(weight).astype(computed).astype(x.dtype).reshape(shape) + offset


@np.errstate(all="ignore")
def _divide(x, by):
    """``x / by``; 0 / 0 is 0."""
    return np.where((x == 0) & (by == 0), 0, x / by)
