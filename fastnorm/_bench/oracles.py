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
    power = np.mean(x * x, axis=axis, keepdims=True) + eps
    return _divide(x, np.sqrt(power)) * factor


@np.errstate(all="ignore")
def layer_norm(x, weight=None, bias=None, eps=1e-5, axis=-1):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``; a constant row gives `bias` with ``eps=0``, too."""
    x = _wide(x)
    factor = _factor(weight, x, axis)
    centred = x - np.mean(x, axis=axis, keepdims=True)
    variance = np.mean(centred * centred, axis=axis, keepdims=True)
    y = _divide(centred, np.sqrt(variance + eps)) * factor
    return y if bias is None else y + _factor(bias, x, axis)


@np.errstate(all="ignore")
def unit_norm(x, weight=None, eps=0.0, axis=-1):
    """``x / max(sqrt(sum(x**2)), eps) * weight``; zeros stay zeros."""
    x = _wide(x)
    factor = _factor(weight, x, axis)
    length = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
    return _divide(x, np.maximum(length, eps)) * factor


def _wide(x):
    x = np.asarray(x)
    return x.astype(np.longdouble if x.dtype == np.float64 or (x.dtype.kind in "iu" and x.itemsize > 2) else np.float64)


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
