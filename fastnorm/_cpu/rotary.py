"""Schedule of RoPE: rows of features, shared among threads."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .._compile import kernel
from .layout import HEADS, merged
from .norms import PARALLEL, PLAIN, TASK, as_stored, streaming_of
from .threads import get_num_threads, share


def rope(x, cosine, sine, interleaved, out):
    """Rotate prepared arrays; tables are of the leading shape of `x`, in the dtype of the computation."""
    if not x.size:
        return
    x, out = as_stored(x), as_stored(out)
    flags = np.array([interleaved, streaming_of(out, x) is not PLAIN], np.int64)
    _rotate(x, cosine, sine, flags, out)


def small_rope(dtype):
    """The ufunc of all small calls of a dtype, of (x, cosine, sine, flags, out), with two axes of length 1 before the last."""
    return kernel("fastnorm._cpu.rotate:rotate", dtype.name).ufunc


def _rotate(x, cosine, sine, flags, out):
    """Two leading axes are the kernel's; where strides allow no fewer than three, the first is taken element by element."""
    arrays = x, cosine, sine, out
    axes = merged(arrays)
    if len(axes) > 2:
        for one in zip(x, cosine, sine, out, strict=True):
            _rotate(*one[:3], flags, one[3])
        return
    nothing = 1, (0,) * len(arrays)
    outer, inner = [*axes, nothing, nothing][:2]
    shape = outer[0], inner[0]
    views = [
        as_strided(a, (*shape, a.shape[-1]), (outer[1][i], inner[1][i], a.strides[-1]), writeable=a is out)
        for i, a in enumerate(arrays)
    ]
    run = kernel("fastnorm._cpu.rotate:rotate", x.dtype.name).over("p", *views[:3], flags, views[3])
    step = min(max(PARALLEL, x.size // (8 * get_num_threads())), TASK)
    step = max(1, step // (shape[1] * x.shape[-1]))
    share(run, shape[0], -(-step // HEADS) * HEADS)  # the kernel takes so many at a time
