"""Kernel that normalises rows, a block of threads a row.

A thread holds 64 bytes of a row in registers, four loads of 128 bits. A row that the block can hold is read once and written
once; a longer one goes through the registers in tiles, twice.

The order of summation depends on the length of a row alone. A load is 16 bytes of the row, whether they come at once or,
unaligned, element by element: alignment shows in the clock alone.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import RANGES, magnitude, maximum
from .block import CHAINS, LOAD, WARP, add_exactly, as_number, inlined, load_wide, shifted, store_wide, sum_block
from .launch import HELD, MOST_THREADS, Source


def rows(norm, dtype, aligned, whole):
    """Kernel: normalise rows of `n` contiguous elements.

    `aligned`: x, out, weight and the strides between rows are multiples of 16 bytes, and so is the length of a row.
    `whole`: a block holds a row, ``n * itemsize <= HELD * blockDim.x``.
    """
    settle = _math.NORMS[norm].settle
    bounds = RANGES[dtype]
    zero, one = bounds.zero, bounds.one
    kind = getattr(types, dtype)
    width = LOAD // zero.itemsize
    held = HELD // zero.itemsize

    @inlined
    def place(start, k):
        """Where in the row the load lies whose first element is the thread's k-th."""
        return start + width * (cuda.threadIdx.x + (k // width) * cuda.blockDim.x)

    @inlined
    def load_tile(x, start, n, tile):
        """What the thread holds of the tile that begins at `start`; zeros past the end of the row."""
        for k in range(held):
            tile[k] = zero
        for k in range(0, held, width):
            j = place(start, k)
            if aligned:
                if j < n:
                    load_wide(x, j, tile, k)
            else:
                for i in range(width):
                    if j + i < n:
                        tile[k + i] = x[j + i]

    @inlined
    def store_tile(out, start, n, tile):
        for k in range(0, held, width):
            j = place(start, k)
            if aligned:
                if j < n:
                    store_wide(out, j, tile, k)
            else:
                for i in range(width):
                    if j + i < n:
                        out[j + i] = tile[k + i]

    @inlined
    def sum_tile(tile, scale):
        """Sum of squares of what the thread holds: four chains, joined in a tree."""
        a, b, c, d = zero, zero, zero, zero
        for k in range(0, held, CHAINS):
            a = _math.accumulate_square(a, tile[k] * scale)
            b = _math.accumulate_square(b, tile[k + 1] * scale)
            c = _math.accumulate_square(c, tile[k + 2] * scale)
            d = _math.accumulate_square(d, tile[k + 3] * scale)
        return (a + b) + (c + d)

    @inlined
    def sum_row(x, n, tile, scale):
        """The thread's share of the sum of squares of a row; if `whole`, the row is in the tile already."""
        if whole:
            return sum_tile(tile, scale)
        squares, lost, start = zero, zero, 0
        while start < n:
            load_tile(x, start, n, tile)
            squares, lost = add_exactly(squares, lost, sum_tile(tile, scale))
            start += held * cuda.blockDim.x
        return squares + lost if lost == lost else squares  # what an infinite sum loses is NaN

    @inlined
    def apply_tile(tile, weight, weighted, factors, out, start, n):
        """Turn a tile into its result and store it."""
        weights = cuda.local.array(held, kind)
        if weighted:
            load_tile(weight, start, n, weights)
        else:
            for k in range(held):
                weights[k] = one
        heaviest = zero
        for k in range(held):
            heaviest = maximum(magnitude(weights[k]), heaviest)
        if factors.common and _math.is_light(heaviest, bounds):
            for k in range(held):
                tile[k] = _math.apply_common(tile[k], factors.inverse, weights[k])
        else:
            for k in range(held):
                tile[k] = _math.apply_any(tile[k], factors, weights[k], bounds)
        store_tile(out, start, n, tile)

    def kernel(x, x_stride, weight, weighted, eps, lifted_eps, out, out_stride, n):
        warps = cuda.shared.array(WARP, kind)
        tile = cuda.local.array(held, kind)
        x, out = shifted(x, cuda.blockIdx.x * x_stride), shifted(out, cuda.blockIdx.x * out_stride)
        if whole:
            load_tile(x, 0, n, tile)
        squares = sum_block(sum_row(x, n, tile, one), warps, zero)
        scale = _math.rescue_scale(squares, lifted_eps, bounds)
        if scale != one:  # in all threads alike
            cuda.syncthreads()
            squares = sum_block(sum_row(x, n, tile, scale), warps, zero)
        factors = settle(_math.Statistics(scale, as_number(n, one), squares), eps, lifted_eps, bounds)
        if whole:
            apply_tile(tile, weight, weighted, factors, out, 0, n)
        else:
            start = 0
            while start < n:
                load_tile(x, start, n, tile)
                apply_tile(tile, weight, weighted, factors, out, start, n)
                start += held * cuda.blockDim.x

    pointer, size = types.CPointer(kind), types.int64
    return Source(kernel, (pointer, size, pointer, size, kind, kind, pointer, size, size), MOST_THREADS)
