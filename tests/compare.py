"""How tests compare arrays."""

import warnings

import numpy as np

import fastnorm
from fastnorm._bench import oracles

LIMIT = 4.0  # units in the last place of a row's largest value: what the library promises
NORMS = ["rms_norm", "layer_norm", "unit_norm", "group_norm", "add_rms_norm", "add_layer_norm"]
BIASED = ["layer_norm", "group_norm", "add_layer_norm"]  # those that take a bias


def assert_same_bits(a, b):
    """Equal shape, dtype and bits; any NaN equals any other."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    assert (same | (np.isnan(a) & np.isnan(b))).all(), f"{(~same).sum()} of {a.size} elements differ"


def ulps(y, wanted, axis=-1, bias=None):
    """The largest error of any row, in units in the last place of the row's largest ``|x_hat * weight| + |bias|``.

    `axis` says what a row is, and may be a tuple; `bias` must broadcast to `wanted`. A 16-bit result is given the half unit
    that its rounding costs, and else measured as float32 is.
    """
    wide = np.longdouble if y.dtype == np.float64 else np.float64
    computed = np.float64 if y.dtype == np.float64 else np.float32
    wanted = np.asarray(wanted, wide)
    bias = wide(0) if bias is None else np.asarray(bias, computed).astype(wide)
    size = np.abs(wanted - bias) + np.abs(bias)
    largest = size.max(axis=axis, keepdims=True).astype(computed)
    error = np.abs(y.astype(wide) - wanted)
    if y.itemsize == 2:
        error = np.maximum(error - np.spacing(np.abs(wanted).astype(y.dtype)).astype(wide) * 0.5001, 0)
    return float((error / np.spacing(largest)).max())


def error(norm, x, *args, **kwargs):
    """How far off one of the six norms is, called with any floating-point warning an error; of `add_*` the sum, too."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        y = getattr(fastnorm, norm)(x, *args, **kwargs)
    kwargs.pop("out", None)
    kwargs.pop("residual_out", None)
    wanted = getattr(oracles, norm)(x, *args, **kwargs)
    if norm.startswith("add_"):
        (y, h), (wanted, wanted_h) = y, wanted
        assert_same_bits(h, wanted_h)
    if norm == "group_norm":
        return _error_of_groups(y, wanted, *args, **kwargs)
    axis = kwargs.get("axis", -1)
    place = 1 + norm.startswith("add_")  # of the bias, after x
    bias = kwargs.get("bias", args[place] if norm in BIASED and len(args) > place else None)
    return ulps(y, wanted, axis, _along(bias, y.ndim, axis))


def _along(bias, ndim, axis):
    """A bias with its axes where an array of `ndim` axes has them."""
    axes = [a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))]
    return None if bias is None else np.expand_dims(bias, [a for a in range(ndim) if a not in axes])


def _error_of_groups(y, wanted, num_groups, weight=None, bias=None, eps=1e-5, axis=1):
    axis %= y.ndim
    split = (*y.shape[:axis], num_groups, y.shape[axis] // num_groups, *y.shape[axis + 1 :])
    if bias is not None:
        bias = np.broadcast_to(_along(bias, y.ndim, axis), y.shape).reshape(split)
    rows = tuple(a for a in range(len(split)) if a != axis and (a > 0 or axis == 0))
    return ulps(y.reshape(split), wanted.reshape(split), rows, bias)
