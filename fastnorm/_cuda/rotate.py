"""The kernel of RoPE: a thread a few pairs of features, as many as come with 128 bits, or one."""

from numba import cuda
from numba.cuda import types

from .. import _math
from .block import get, inlined, load_wide, put, shifted, store_wide
from .launch import Source
from .rotary import THREADS
from .tiles import kind_of


def rotate(dtype, aligned, interleaved):
    """Kernel: rotate the rows of `planes` matrices. Blocks are (groups of rows, planes); strides are in bytes.

    `aligned`: addresses, strides, pairs and features are multiples of 16 bytes.
    """
    stored, kind, name, _, _, width, _ = kind_of(dtype)
    several = width if aligned else 1  # pairs
    step = kind_of(name).width  # elements of a table that come with 128 bits
    room = 2 * several
    integer = types.int64

    @inlined
    def place_of(p):
        """Where the features of pair p are among those of a thread."""
        return (2 * p, 2 * p + 1) if interleaved else (p, several + p)

    @inlined
    def both_of(i, n):
        """Where in a row the pairs from number i on begin: two loads."""
        return (2 * i, 2 * i + several) if interleaved else (i, i + n)

    @inlined
    def load(x, i, n, pairs):
        here, there = both_of(i, n)
        if aligned:
            load_wide(x, here, pairs, 0)
            load_wide(x, there, pairs, several)
        else:
            pairs[0], pairs[1] = get(x, here), get(x, there)

    @inlined
    def store(out, i, n, pairs):
        here, there = both_of(i, n)
        if aligned:
            store_wide(out, here, pairs, 0)
            store_wide(out, there, pairs, several)
        else:
            put(out, here, pairs[0])
            put(out, there, pairs[1])

    @inlined
    def load_table(table, i, angles):
        if aligned:
            for k in range(0, several, step):
                load_wide(table, i + k, angles, k)
        else:
            angles[0] = table[i]

    @inlined
    def turn(x, cosine, sine, out, i, n, pairs, cosines, sines):
        """The pairs from number i on."""
        load(x, i, n, pairs)
        load_table(cosine, i, cosines)
        load_table(sine, i, sines)
        for p in range(several):
            here, there = place_of(p)
            pair = _math.rotated(pairs[here], pairs[there], cosines[p], sines[p])
            pairs[here], pairs[there] = pair.x, pair.y
        store(out, i, n, pairs)

    def kernel(
        x, x_plane, x_row, cosine, cosine_plane, cosine_row, sine, sine_plane, sine_row,
        out, out_plane, out_row, rows, n, features, lanes,
    ):  # fmt: skip
        """`lanes`: threads of a row, a power of two. Rows are of neighbours."""
        pairs, cosines, sines = cuda.local.array(room, kind), cuda.local.array(several, kind), cuda.local.array(several, kind)
        plane, lane = integer(cuda.blockIdx.y), cuda.threadIdx.x % lanes
        row = integer(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes
        if row < rows:
            x = shifted(x, plane * x_plane + row * x_row)
            out = shifted(out, plane * out_plane + row * out_row)
            cosine = shifted(cosine, plane * cosine_plane + row * cosine_row)
            sine = shifted(sine, plane * sine_plane + row * sine_row)
            i = integer(lane) * several
            while i < n:
                turn(x, cosine, sine, out, i, n, pairs, cosines, sines)
                i += lanes * several
            i = integer(lane) * several + 2 * n
            while i < features:  # features that are not turned
                if aligned:
                    load_wide(x, i, pairs, 0)
                    store_wide(out, i, pairs, 0)
                else:
                    put(out, i, get(x, i))
                i += lanes * several

    pointer, table = types.CPointer(stored), types.CPointer(kind)
    strides = (integer, integer)
    kinds = (pointer, *strides, table, *strides, table, *strides, pointer, *strides, *[integer] * 4)
    return Source(kernel, kinds, THREADS)
