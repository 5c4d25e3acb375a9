"""How tests compare arrays."""

import numpy as np


def assert_same_bits(a, b):
    """Equal shape, dtype and bits; any NaN equals any other."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    assert (same | (np.isnan(a) & np.isnan(b))).all(), f"{(~same).sum()} of {a.size} elements differ"


def ulps(y, wanted, axis=-1):
    """The largest error of any row, in units in the last place of the row's largest wanted value."""
    wide = np.longdouble if y.dtype == np.float64 else np.float64
    wanted = np.asarray(wanted, wide)
    largest = np.abs(wanted).max(axis=axis, keepdims=True).astype(y.dtype)
    return float((np.abs(y.astype(wide) - wanted) / np.spacing(largest)).max())
