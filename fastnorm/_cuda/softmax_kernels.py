"""The kernel of softmax, a block of threads a row: the largest of the row, the sum of exponentials, the result.

A row that the block can hold is read once; a longer one three times.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import EXPONENTIALS, maximum, minimum, select
from .block import ALL, WARP, inlined, leave_for_block, put, shifted, sum_block
from .launch import MOST_THREADS, Source
from .tiles import kind_of, layout, moves


@inlined
def largest_of_warp(value):
    """The largest over the lanes of a warp; NaN does not count."""
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 1))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 2))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 4))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 8))
    return maximum(value, cuda.shfl_xor_sync(ALL, value, 16))


@inlined
def largest_of_block(value, shared, nothing):
    """The largest over all threads. Barriers stand before and after the use of `shared`."""
    value = largest_of_warp(value)
    cuda.syncthreads()
    if cuda.threadIdx.x % WARP == 0:
        shared[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    lane = cuda.threadIdx.x % WARP
    return largest_of_warp(shared[lane] if lane < cuda.blockDim.x // WARP else nothing)


def rows(what, dtype, aligned, whole):
    """Kernel: `what` of rows of `n` contiguous elements. `aligned` and `whole` as for the norms."""
    stored, kind, name, bounds, _, width, held = kind_of(dtype)
    numbers = EXPONENTIALS[name]
    zero, one, nothing = numbers.zero, numbers.one, numbers.nothing
    place, count = layout(dtype)
    _, load_tile, _, store_tile = moves(dtype, aligned)
    logarithm, sum_only = what == "log_softmax", what == "logsumexp"

    @inlined
    def is_inside(start, n, k):
        return place(k) + (0 if aligned else k % width) < count(start, n)

    @inlined
    def extremes(tile, start, n, sign, largest, smallest, strange):
        """The largest and the smallest so far, times the sign; and 1 if something was not a number."""
        for k in range(held):
            if is_inside(start, n, k):
                value = tile[k] * sign
                largest, smallest = maximum(value, largest), minimum(value, smallest)
                if sum_only and value != value:
                    strange = one
        return largest, smallest, strange

    @inlined
    def exponentials(tile, start, n, how):
        """Exponentials in place, or distances if these are what is asked for; returns the sum of exponentials."""
        total = zero
        for k in range(held):
            distance = _math.scaled_difference(tile[k], how)
            power = _math.exponential(distance, numbers)
            tile[k] = distance if logarithm else power
            total += select(is_inside(start, n, k), power, zero)
        return total

    @inlined
    def finish(tile, total):
        """Results, in place; `total` is the inverse of the sum or its logarithm."""
        for k in range(held):
            tile[k] = tile[k] - total if logarithm else tile[k] * total

    def kernel(x, x_stride, out, out_stride, sign, scale, n):
        x, out = shifted(x, cuda.blockIdx.x * x_stride), shifted(out, cuda.blockIdx.x * out_stride)
        shared, tile = cuda.shared.array(WARP, kind), cuda.local.array(held, kind)
        step = held * cuda.blockDim.x
        largest, smallest, strange = nothing, zero - nothing, zero
        start = 0
        while start < n:
            load_tile(x, start, n, tile)
            largest, smallest, strange = extremes(tile, start, n, sign, largest, smallest, strange)
            start += step
        largest = largest_of_block(largest, shared, nothing)
        smallest = zero - largest_of_block(zero - smallest, shared, nothing)
        how = _math.comparison(largest, smallest, sign, scale, bounds.fraction, numbers)
        total = zero
        start = 0
        while start < n:
            if not whole:
                load_tile(x, start, n, tile)
            total += exponentials(tile, start, n, how)
            start += step
        cuda.syncthreads()
        leave_for_block(total, shared, 0)
        cuda.syncthreads()
        total = sum_block(shared, 0, zero)
        if sum_only:
            strange = largest_of_block(strange, shared, nothing)
            value = _math.log_sum(_math.Weights(largest, total), numbers)
            if largest == zero - nothing:  # infinity stands out, unless something is not a number
                value = select(strange == one, nothing - nothing, largest)
            if cuda.threadIdx.x == 0:
                put(out, 0, value)
            return
        if logarithm:
            total = select(total == zero, zero, _math.logarithm(total))
        else:
            total = select(total == zero, zero, one / total)
        start = 0
        while start < n:
            if not whole:
                load_tile(x, start, n, tile)
                exponentials(tile, start, n, how)
            finish(tile, total)
            store_tile(out, start, n, tile)
            start += step

    pointer = types.CPointer(stored)
    return Source(kernel, (pointer, types.int64, pointer, types.int64, kind, kind, types.int64), MOST_THREADS)
