"""Schedule of RoPE: planes of rows."""

import cupy

from .._cpu.layout import merged
from .._vocabulary import STORED, name_of
from . import launch

THREADS = 256  # of a block, for one row or several
MOST_PLANES = 65535  # of a grid's second axis, by CUDA


def rope(x, cosine, sine, interleaved, out):
    """Rotate prepared arrays; tables are of the leading shape of `x`, in the dtype of the computation."""
    if not x.size:
        return
    arrays = [a if _has_rows(a) else cupy.ascontiguousarray(a) for a in (x, cosine, sine)]
    target = out if _has_rows(out) else cupy.empty(out.shape, out.dtype)
    _rotate(*arrays, interleaved, target)
    if target is not out:
        cupy.copyto(out, target)


def _has_rows(array):
    return array.shape[-1] <= 1 or array.strides[-1] == array.itemsize


def _rotate(x, cosine, sine, interleaved, out):
    """Two leading axes are the kernel's; where strides allow no fewer than three, the first is taken element by element."""
    arrays = x, cosine, sine, out
    axes = merged(arrays)
    if len(axes) > 2:
        for one in zip(*arrays, strict=True):
            _rotate(*one[:3], interleaved, one[3])
        return
    nothing = 1, (0,) * len(arrays)
    outer, inner = [nothing, nothing, *axes][-2:]
    n, features = cosine.shape[-1], x.shape[-1]
    numbers = [number for a, o, i in zip(arrays, outer[1], inner[1], strict=True) for number in (a.data.ptr, o, i)]
    numbers += [n * x.itemsize, features * x.itemsize]
    aligned = launch.moves_wide(numbers)
    several = launch.LOAD // x.itemsize if aligned else 1
    lanes = min(1 << max(0, -(-n // several) - 1).bit_length(), THREADS)
    blocks = -(-inner[0] // (THREADS // lanes))
    run = launch.kernel("fastnorm._cuda.rotate:rotate", STORED[name_of(x.dtype)], aligned, bool(interleaved))
    for first in range(0, outer[0], MOST_PLANES):
        places = [p for a, o, i in zip(arrays, outer[1], inner[1], strict=True) for p in (a.data.ptr + first * o, o, i)]
        planes = min(outer[0] - first, MOST_PLANES)
        run((blocks, planes), (THREADS,), (*places, inner[0], n, features, lanes))
