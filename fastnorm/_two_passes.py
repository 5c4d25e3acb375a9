"""The norm of a sum in two passes, for what no backend has a kernel of its own: other dtypes together, other layouts.

And `for_rounding`, which it rests on: how a wide result becomes one of 16 bits by a single rounding.
"""

import numpy as np

from ._vocabulary import COMPUTED, STORED


def apart(arrays, norm, x, residual, parameters, eps, out, kept):
    """Keep ``x + residual`` in `kept`, rounded to its dtype, then take `norm` of what was kept.

    `arrays` is numpy or cupy. Computed in float64 if one of the two is: then `norm` works on a copy of that dtype.
    """
    computed = "float64" if np.float64 in (x.dtype, residual.dtype) else "float32"
    with np.errstate(all="ignore"):
        add(arrays, x, residual, computed, kept)
        if kept.dtype == out.dtype and COMPUTED[STORED[kept.dtype.name]] == computed:
            norm(kept, parameters, eps, out)
        else:
            wide = kept.astype(computed)
            norm(wide, parameters, eps, wide)
            out[...] = for_rounding(wide, out)


def add(arrays, x, residual, computed, kept):
    """Keep ``x + residual``, computed in a dtype and rounded once to that of `kept`."""
    if kept.itemsize > 2:
        arrays.add(x, residual, out=kept, dtype=computed, casting="same_kind")
    else:
        kept[...] = for_rounding(arrays.add(x, residual, dtype=computed, casting="same_kind"), kept)


def for_rounding(wide, target):
    """`wide` as it is to be assigned to `target`: ml_dtypes rounds float64 to bfloat16 by way of float32, hence twice.

    Rounded to odd on that way, halfway cases cannot arise in the second step that were none in the first.
    """
    if target.dtype.name != "bfloat16" or wide.dtype != np.float64:
        return wide
    single = wide.astype(np.float32)
    inexact = (single != wide) & np.isfinite(single)
    single = np.where(inexact & (np.abs(single) > np.abs(wide)), np.nextafter(single, np.float32(0)), single)
    return (single.view(np.uint32) | inexact).view(np.float32)
