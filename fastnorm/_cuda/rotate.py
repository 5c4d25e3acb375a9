"""The kernel of RoPE: a thread a pair of features."""

from numba import cuda
from numba.cuda import types

from .. import _math
from .block import get, inlined, put, shifted
from .launch import Source
from .rotary import THREADS
from .tiles import kind_of


def rotate(dtype):
    """Kernel: rotate the rows of `planes` matrices. Blocks are (groups of rows, planes); strides are in bytes."""
    stored, computed = kind_of(dtype)[:2]
    integer = types.int64

    @inlined
    def turn(x, cosine, sine, out, i, n, interleaved):
        here, there = (2 * i, 2 * i + 1) if interleaved else (i, i + n)
        pair = _math.rotated(get(x, here), get(x, there), cosine[i], sine[i])
        put(out, here, pair.x)
        put(out, there, pair.y)

    def kernel(
        x, x_plane, x_row, cosine, cosine_plane, cosine_row, sine, sine_plane, sine_row,
        out, out_plane, out_row, rows, n, features, lanes, interleaved,
    ):  # fmt: skip
        """`lanes`: threads of a row, a power of two. Rows are of neighbours."""
        plane, lane = integer(cuda.blockIdx.y), cuda.threadIdx.x % lanes
        row = integer(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes
        if row < rows:
            x = shifted(x, plane * x_plane + row * x_row)
            out = shifted(out, plane * out_plane + row * out_row)
            cosine = shifted(cosine, plane * cosine_plane + row * cosine_row)
            sine = shifted(sine, plane * sine_plane + row * sine_row)
            i = integer(lane)
            while i < n:
                turn(x, cosine, sine, out, i, n, interleaved != 0)
                i += lanes
            i = integer(lane) + 2 * n
            while i < features:  # features that are not turned
                put(out, i, get(x, i))
                i += lanes

    pointer, table = types.CPointer(stored), types.CPointer(computed)
    strides = (integer, integer)
    kinds = (pointer, *strides, table, *strides, table, *strides, pointer, *strides, *[integer] * 5)
    return Source(kernel, kinds, THREADS)
