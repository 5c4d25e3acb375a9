"""Kernel of softmax over columns: as that over rows, but a lane a column, slab by slab, in the order of summation of `columns`.

A slab is read three times: for the largest of each column, for the sums of exponentials, for the result; and once more, for the
sums, if the largest of a column outweighs its others.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, EXPONENTIALS, maximum, minimum, select
from .apply import write
from .column_sums import load_columns
from .columns import bit_reversed, climbed, leaves_of, place_sums, prefetch_chain
from .edges import to_line
from .layout import AHEAD_ROWS, BLOCK, CHAIN_LEVELS, FEW, LOGARITHM
from .memory import fence, load, load_first, pointer_to, prefetch, shifted, store, store_first
from .simd import LANES, any_lane, first_lanes, inlined, splat
from .softmax_kernels import SIGN, working


def columns(dtype):
    """Kernel: softmax or its logarithm of the columns of a matrix whose rows are contiguous."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    zero, one, nothing = numbers.zero, numbers.one, numbers.nothing
    size = 4 if computed == "float32" else 8
    work = working(computed)
    compared, result = work.compared, work.result

    @inlined
    def compare_columns(x, stride, n, columns, given, hows, width):
        """How each column is compared, in three rows of `hows`."""
        for column in range(0, columns, LANES):
            store(hows, column, splat(nothing))
            store(hows, width + column, splat(zero - nothing))
        for start in range(0, n, FEW):
            for column in range(0, columns, LANES):
                largest, smallest = load(hows, column), load(hows, width + column)
                for j in range(start, min(start + FEW, n)):
                    row = shifted(x, j * stride)
                    prefetch(shifted(row, AHEAD_ROWS * stride), column)
                    some = load_columns(row, column, columns) * given[SIGN]
                    largest, smallest = maximum(some, largest), minimum(some, smallest)
                store(hows, column, largest)
                store(hows, width + column, smallest)
        for column in range(0, columns, LANES):
            how = compared(load(hows, column), load(hows, width + column), given)
            store(hows, column, how.before)
            store(hows, width + column, how.against)
            store(hows, 2 * width + column, how.after)

    @inlined
    def how_at(hows, column, width):
        return _math.Comparison(load(hows, column), load(hows, width + column), load(hows, 2 * width + column))

    @inlined
    def sum_columns(x, stride, n, columns, hows, sums, tree, ones, width, apart):
        """The sums of exponentials, in the lowest row of `tree`; what is exactly 1 is counted in `ones`, if `apart`."""
        top = 0
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            leaves, chains = leaves_of(count), 0
            for i in range(leaves):
                chain, following = bit_reversed(i, leaves), bit_reversed(i + 1, leaves)
                for column in range(0, columns, LANES):
                    prefetch_chain(x, stride, following, count, column)
                    how, total = how_at(hows, column, width), splat(zero)
                    for j in range(chain, count, LANES):
                        values = load_columns(shifted(x, j * stride), column, columns)
                        some = _math.exponential(_math.scaled_difference(values, how), numbers)
                        if apart:
                            store(ones, column, load(ones, column) + select(some == one, splat(one), zero))
                            some = select(some == one, zero, some)
                        total = total + some
                    place_sums(sums, chains, i, width, column, total, None)
                chains = climbed(chains, i)
            for column in range(0, columns, LANES):
                place_sums(tree, top, start // BLOCK, width, column, load(sums, column), None)
            top = climbed(top, start // BLOCK)
            x = shifted(x, BLOCK * stride)
        while top > 1:
            top -= 1
            for column in range(0, columns, LANES):
                lower = load(tree, (top - 1) * width + column)
                store(tree, (top - 1) * width + column, lower + load(tree, top * width + column))

    @inlined
    def total_columns(x, stride, n, columns, hows, width):
        """The sums of exponentials, also where one outweighs the others; where they lie."""
        row = width * size
        totals, ones, sums = shifted(hows, 3 * row), shifted(hows, 4 * row), shifted(hows, 5 * row)
        tree = shifted(sums, CHAIN_LEVELS * row)
        sum_columns(x, stride, n, columns, hows, sums, tree, ones, width, False)
        outweighed = False
        for column in range(0, columns, LANES):
            total = load(tree, column)
            store(totals, column, total)
            store(ones, column, splat(zero))
            if any_lane(_math.is_outweighed(total, numbers) & first_lanes(columns - column)):
                outweighed = True
        if outweighed:
            sum_columns(x, stride, n, columns, hows, sums, tree, ones, width, True)
            for column in range(0, columns, LANES):
                total, again = load(totals, column), load(ones, column) + load(tree, column)
                store(totals, column, select(_math.is_outweighed(total, numbers), again, total))
        return totals

    @inlined
    def prepare_columns(totals, columns, logarithm):
        """What the result needs of the sums, in their place: as `prepared`."""
        for column in range(0, columns, LANES):
            total = load(totals, column)
            if logarithm:
                for i in range(LANES):
                    each = totals[column + i]
                    totals[column + i] = _math.logarithm(each) if each != zero else zero
            else:
                store(totals, column, select(total == zero, zero, one / total))

    @inlined
    def slab(x, stride, n, columns, given, flags, hows, width, out, out_stride):
        """Columns few enough that what is kept of each fits the scratch from `hows` on."""
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        compare_columns(x, stride, n, columns, given, hows, width)
        totals = total_columns(x, stride, n, columns, hows, width)
        prepare_columns(totals, columns, logarithm)
        for _ in range(n):
            head = to_line(out, columns) if streaming else 0
            column, stop = 0, head if head > 0 else columns
            while column < columns:
                if column == stop:
                    stop = columns
                count = LANES if column + LANES <= stop else stop - column
                values = load(x, column) if count == LANES else load_first(x, column, count)
                prefetch(shifted(x, AHEAD_ROWS * stride), column)
                y = result(values, how_at(hows, column, width), load(totals, column), logarithm)
                if count < LANES:
                    store_first(out, column, count, y)
                else:
                    write(out, column, y, streaming)
                column += count
            x, out = shifted(x, stride), shifted(out, out_stride)

    def kernel(x, given, flags, scratch, out):
        n, n_columns = x.shape
        width = flags[2]
        for first in range(0, n_columns if n > 0 else 0, width):
            xs, outs = shifted(pointer_to(x), first * x.itemsize), shifted(pointer_to(out), first * x.itemsize)
            some = min(width, n_columns - first)
            slab(xs, x.strides[0], n, some, given, flags, pointer_to(scratch), width, outs, out.strides[0])
        if flags[0] != 0:
            fence()

    types = f"void({dtype}[:,:], {computed}[:], int64[:], {computed}[:], {dtype}[:,:])"
    return Source(kernel, "(n,m),(p),(q),(s),(n,m)", types, ("scratch", "out"))
