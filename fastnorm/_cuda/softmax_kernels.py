"""The kernel of softmax, a block of threads a row, or a warp: the largest of the row, the sum of exponentials, the result.

A row that the block can hold is read once; a longer one three times. Exponentials that are exactly 1 are counted apart from
the sum of the others, from which they would take the last bits.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import EXPONENTIALS, maximum, minimum, select
from .block import ALL, WARP, barrier, inlined, leave_for_block, put, shifted, sum_block, sum_warp
from .launch import SHORT_ROWS
from .rows import source
from .tiles import kind_of, layout, moves


@inlined
def largest_of_warp(value):
    """The largest over the lanes of a warp; NaN does not count."""
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 1))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 2))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 4))
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 8))
    return maximum(value, cuda.shfl_xor_sync(ALL, value, 16))


def reduction(warp):
    """The functions about all threads of a team: the largest of their values, and the sum."""
    wait = barrier(warp)

    @inlined
    def largest_of_all(value, shared, nothing):
        """Barriers stand before and after the use of `shared`."""
        value = largest_of_warp(value)
        if warp:
            return value
        wait()
        if cuda.threadIdx.x % WARP == 0:
            shared[cuda.threadIdx.x // WARP] = value
        wait()
        lane = cuda.threadIdx.x % WARP
        return largest_of_warp(shared[lane] if lane < cuda.blockDim.x // WARP else nothing)

    @inlined
    def sum_of_all(value, shared, zero):
        if warp:
            return sum_warp(value)
        wait()
        leave_for_block(value, shared, 0)
        wait()
        return sum_block(shared, 0, zero)

    return largest_of_all, sum_of_all


def schedule(what, dtype, aligned, whole, warp=False):
    """What the kernels of this file have in common, as a function. `aligned`, `whole` and `warp` as for the norms."""
    _, kind, name, bounds, _, width, held = kind_of(dtype)
    largest_of_all, sum_of_all = reduction(warp)
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
        """Exponentials in place, or distances if these are what is asked for; returns how many are 1, and the others' sum."""
        ones, others = zero, zero
        for k in range(held):
            distance = _math.scaled_difference(tile[k], how)
            power = _math.exponential(distance, numbers)
            tile[k] = distance if logarithm else power
            power = select(is_inside(start, n, k), power, zero)
            ones += select(power == one, one, zero)
            others += select(power == one, zero, power)
        return ones, others

    @inlined
    def finish(tile, total):
        """Results, in place; `total` is the inverse of the sum or its logarithm."""
        for k in range(held):
            tile[k] = tile[k] - total if logarithm else tile[k] * total

    @inlined
    def run(x, out, sign, scale, n):
        """One row, from where the pointers point to."""
        shared, tile = cuda.shared.array(WARP, kind), cuda.local.array(held, kind)
        step = held * cuda.blockDim.x
        largest, smallest, strange = nothing, zero - nothing, zero
        start = 0
        while start < n:
            load_tile(x, start, n, tile)
            largest, smallest, strange = extremes(tile, start, n, sign, largest, smallest, strange)
            start += step
        largest = largest_of_all(largest, shared, nothing)
        smallest = zero - largest_of_all(zero - smallest, shared, nothing)
        how = _math.comparison(largest, smallest, sign, scale, bounds.fraction, numbers)
        ones, others = zero, zero
        start = 0
        while start < n:
            if not whole:
                load_tile(x, start, n, tile)
            more_ones, more = exponentials(tile, start, n, how)
            ones, others = ones + more_ones, others + more
            start += step
        total = sum_of_all(ones, shared, zero) + sum_of_all(others, shared, zero)
        if sum_only:
            strange = largest_of_all(strange, shared, nothing)
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

    return run


def rows(what, dtype, aligned, whole):
    """Kernel: `what` of rows of `n` contiguous elements."""
    run = schedule(what, dtype, aligned, whole)

    def kernel(x, x_stride, out, out_stride, sign, scale, n):
        run(shifted(x, cuda.blockIdx.x * x_stride), shifted(out, cuda.blockIdx.x * out_stride), sign, scale, n)

    return source(kernel, dtype)


def short_rows(what, dtype, aligned, whole):
    """Kernel: the same of rows that a warp can hold, several a block."""
    run = schedule(what, dtype, aligned, whole, warp=True)

    def kernel(x, x_stride, out, out_stride, sign, scale, n, n_rows):
        row = types.int64(cuda.blockIdx.x) * SHORT_ROWS + cuda.threadIdx.y
        if row < n_rows:
            run(shifted(x, row * x_stride), shifted(out, row * out_stride), sign, scale, n)

    return source(kernel, dtype, WARP * SHORT_ROWS)
