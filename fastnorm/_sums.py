"""The norm of a sum in two passes, for what no backend has a kernel of its own: other dtypes together, other layouts."""

import numpy as np

from ._vocabulary import COMPUTED, STORED


def apart(arrays, norm, x, residual, parameters, eps, out, kept):
    """Keep ``x + residual`` in `kept`, rounded to its dtype, then take `norm` of what was kept.

    `arrays` is numpy or cupy. Computed in float64 if one of the two is: then `norm` works on a copy of that dtype.
    """
    computed = "float64" if np.float64 in (x.dtype, residual.dtype) else "float32"
    with np.errstate(all="ignore"):
        arrays.add(x, residual, out=kept, dtype=computed, casting="same_kind")
        if kept.dtype == out.dtype and COMPUTED[STORED[kept.dtype.name]] == computed:
            norm(kept, parameters, eps, out)
        else:
            wide = kept.astype(computed)
            norm(wide, parameters, eps, wide)
            out[...] = wide
