"""Kernels of softmax: the largest of a row, the sum of the exponentials of distances from it, the result.

Exponentials are summed in the order of `blocks`, in rows with a lane a chain, in columns with a lane a column. A row is read
twice, for its largest and for its sum; then it is in a cache, and so are its exponentials, unless it is long: these are
taken again. While a row is worked on, the next one is asked for.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, EXPONENTIALS, RANGES, maximum, minimum, select
from .apply import write
from .blocks import climb, root
from .column_sums import load_columns
from .edges import to_line
from .layout import BLOCK, DEPTH, KEPT, LARGEST, LOGARITHM, SUM
from .memory import (
    fence,
    get,
    itemsize,
    load,
    load_first,
    pointer_to,
    prefetch,
    put,
    shifted,
    stack_like,
    stack_of,
    store,
    store_first,
)
from .simd import LANES, first_lanes, inlined, largest_lane, splat, sum_lanes
from .sources import gathered

SIGN, SCALE = range(2)  # in `given`: of the scale, and the scale


def working(computed):
    """The functions that kernels over rows are made of."""
    numbers = EXPONENTIALS[computed]
    zero, one, nothing = numbers.zero, numbers.one, numbers.nothing
    fraction = RANGES[computed].fraction

    @inlined
    def compared(largest, smallest, given):
        """How elements are compared with that of the largest score, given what `extremes_of` found."""
        return _math.comparison(largest, smallest, given[SIGN], given[SCALE], fraction, numbers)

    @inlined
    def extremes_of(x, stride, n, given):
        """The largest and the smallest of a row, times the sign of the scale; NaN does not count."""
        block = stack_like(x, BLOCK)
        largest, smallest = splat(nothing), splat(zero - nothing)
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            values = gathered(shifted(x, start * stride), stride, count, block)
            j = 0
            while j + LANES <= count:
                some = load(values, j) * given[SIGN]
                largest, smallest = maximum(some, largest), minimum(some, smallest)
                j += LANES
            if j < count:
                some, here = load_first(values, j, count - j) * given[SIGN], first_lanes(count - j)
                largest = maximum(select(here, some, nothing), largest)
                smallest = minimum(select(here, some, zero - nothing), smallest)
        return largest_lane(largest), zero - largest_lane(zero - smallest)

    @inlined
    def sum_of(x, stride, n, how, following, ask, kept):
        """The sum of the exponentials of a row, which are kept if there is room."""
        block, tree = stack_like(x, BLOCK), stack_of(zero, DEPTH)
        top = 0
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            values = gathered(shifted(x, start * stride), stride, count, block)
            chains = splat(zero)
            j = 0
            while j + LANES <= count:
                some = _math.exponential(_math.scaled_difference(load(values, j), how), numbers)
                chains = chains + some
                if n <= KEPT:
                    store(kept, start + j, some)
                if ask:
                    prefetch(following, start + j)
                j += LANES
            if j < count:
                some = _math.exponential(_math.scaled_difference(load_first(values, j, count - j), how), numbers)
                chains = chains + select(first_lanes(count - j), some, zero)
                if n <= KEPT:
                    store_first(kept, start + j, count - j, some)
            top = climb(_math.add_totals, tree, top, start // BLOCK, sum_lanes(chains))
        return root(_math.add_totals, tree, top)

    @inlined
    def result(values, how, total, logarithm):
        """The result for some elements; `total` is its inverse, or its logarithm."""
        distances = _math.scaled_difference(values, how)
        if logarithm:
            return distances - total
        return _math.exponential(distances, numbers) * total

    @inlined
    def prepared(total, logarithm):
        """What `result` needs of a sum: its inverse or logarithm; 0 for a row of which nothing is left."""
        if total == zero:
            return zero
        if logarithm:
            return _math.logarithm(total)
        return one / total

    @inlined
    def apply(x, stride, n, how, total, kept, logarithm, streaming, out, out_stride):
        """The result of a row."""
        if stride != itemsize(x) or out_stride != itemsize(out):
            for j in range(n):
                put(shifted(out, j * out_stride), result(get(shifted(x, j * stride)), how, total, logarithm))
            return
        j = to_line(out, n) if streaming else 0
        if j > 0:
            store_first(out, 0, j, result(load_first(x, 0, j), how, total, logarithm))
        if n <= KEPT and not logarithm:
            while j + LANES <= n:
                write(out, j, load(kept, j) * total, streaming)
                j += LANES
        while j + LANES <= n:
            write(out, j, result(load(x, j), how, total, logarithm), streaming)
            j += LANES
        if j < n:
            store_first(out, j, n - j, result(load_first(x, j, n - j), how, total, logarithm))

    return compared, extremes_of, sum_of, result, prepared, apply


def rows(dtype):
    """Kernel: softmax or its logarithm, of rows of any strides."""
    computed = COMPUTED[dtype]
    compared, extremes_of, sum_of, _, prepared, apply = working(computed)

    def kernel(x, given, flags, scratch, out):
        n_rows, n = x.shape
        source, target, stride, kept = pointer_to(x), pointer_to(out), x.strides[1], pointer_to(scratch)
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        for i in range(n_rows):
            following = shifted(source, x.strides[0])
            largest, smallest = extremes_of(source, stride, n, given)
            how = compared(largest, smallest, given)
            total = prepared(sum_of(source, stride, n, how, following, i + 1 < n_rows, kept), logarithm)
            apply(source, stride, n, how, total, kept, logarithm, streaming, target, out.strides[1])
            source, target = following, shifted(target, out.strides[0])
        if streaming:
            fence()

    types = f"void({dtype}[:,:], {computed}[:], int64[:], {computed}[:], {dtype}[:,:])"
    return Source(kernel, "(r,n),(p),(q),(s),(r,n)", types, ("scratch", "out"))


def sums(dtype):
    """Kernel: the logarithms of the sums of the exponentials of rows."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    compared, extremes_of, sum_of, _, _, _ = working(computed)

    def kernel(x, given, scratch, out):
        n_rows, n = x.shape
        source, target, stride = pointer_to(x), pointer_to(out), x.strides[1]
        for i in range(n_rows):
            following = shifted(source, x.strides[0])
            largest, smallest = extremes_of(source, stride, n, given)
            how = compared(largest, smallest, given)
            total = sum_of(source, stride, n, how, following, i + 1 < n_rows, pointer_to(scratch))
            value = _math.log_sum(_math.Weights(largest, total), numbers)
            if largest == numbers.zero - numbers.nothing:  # infinity stands out, unless something is not a number
                value = largest
                for j in range(n):
                    other = get(shifted(source, j * stride))
                    value = select(other != other, other, value)
            put(target, value)
            source, target = following, shifted(target, out.strides[0])

    return Source(
        kernel, "(r,n),(p),(s),(r)", f"void({dtype}[:,:], {computed}[:], {computed}[:], {dtype}[:])", ("scratch", "out")
    )


def pieces(dtype):
    """Kernel: one step of the work on a piece of a long row: its largest and smallest, its sum, or its result."""
    computed = COMPUTED[dtype]
    compared, extremes_of, sum_of, _, prepared, apply = working(computed)

    def kernel(x, given, known, flags, out, found):
        source, stride, n, nowhere = pointer_to(x), x.strides[0], len(x), pointer_to(found)
        how = compared(known[0], known[1], given)
        if flags[2] == LARGEST:
            found[0], found[1] = extremes_of(source, stride, n, given)
        elif flags[2] == SUM:
            found[0] = sum_of(source, stride, n, how, source, False, nowhere)
        else:
            streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
            total = prepared(known[2], logarithm)
            apply(source, stride, n, how, total, nowhere, logarithm, streaming, pointer_to(out), out.strides[0])
            if streaming:
                fence()

    types = f"void({dtype}[:], {computed}[:], {computed}[:], int64[:], {dtype}[:], {computed}[:])"
    return Source(kernel, "(n),(p),(k),(q),(n),(f)", types, ("out", "found"))


def columns(dtype):
    """Kernel: softmax or its logarithm of the columns of a matrix whose rows are contiguous, slab by slab."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8
    compared, _, _, result, _, _ = working(computed)

    @inlined
    def compare_columns(x, stride, n, columns, given, hows, width):
        """How each column is compared, in three rows of `hows`."""
        largest, smallest = hows, shifted(hows, width * size)
        for column in range(0, columns, LANES):
            store(largest, column, splat(numbers.nothing))
            store(smallest, column, splat(numbers.zero - numbers.nothing))
        for _ in range(n):
            for column in range(0, columns, LANES):
                some = load_columns(x, column, columns) * given[SIGN]
                store(largest, column, maximum(some, load(largest, column)))
                store(smallest, column, minimum(some, load(smallest, column)))
            x = shifted(x, stride)
        for column in range(0, columns, LANES):
            how = compared(load(largest, column), load(smallest, column), given)
            store(hows, column, how.before)
            store(hows, width + column, how.against)
            store(hows, 2 * width + column, how.after)

    @inlined
    def how_at(hows, column, width):
        return _math.Comparison(load(hows, column), load(hows, width + column), load(hows, 2 * width + column))

    @inlined
    def sums_of_columns(x, stride, n, columns, hows, chains, tree, width):
        """The sums: in the lowest row of `tree`. Chains and blocks join as those of a row do."""
        top = 0
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            for j in range(min(LANES, count) * width // LANES):
                store(chains, j * LANES, splat(numbers.zero))
            for j in range(count):
                row = shifted(chains, (j % LANES) * width * size)
                for column in range(0, columns, LANES):
                    values = load_columns(x, column, columns)
                    more = _math.exponential(_math.scaled_difference(values, how_at(hows, column, width)), numbers)
                    store(row, column, load(row, column) + more)
                x = shifted(x, stride)
            present, step = min(LANES, count), LANES
            while step > 1:
                step //= 2
                for j in range(step):
                    if j + step < present:
                        for column in range(0, columns, LANES):
                            other = load(chains, (j + step) * width + column)
                            store(chains, j * width + column, load(chains, j * width + column) + other)
                present = min(present, step)
            carry, level = start // BLOCK, top
            while carry & 1:
                level -= 1
                for column in range(0, columns, LANES):
                    store(chains, column, load(tree, level * width + column) + load(chains, column))
                carry >>= 1
            for column in range(0, columns, LANES):
                store(tree, level * width + column, load(chains, column))
            top = level + 1
        while top > 1:
            top -= 1
            for column in range(0, columns, LANES):
                lower = load(tree, (top - 1) * width + column)
                store(tree, (top - 1) * width + column, lower + load(tree, top * width + column))

    @inlined
    def slab(x, stride, n, columns, given, flags, scratch, width, out, out_stride):
        """Columns few enough that what is kept of each fits `scratch`."""
        hows, tree = scratch, shifted(scratch, 3 * width * size)
        chains = shifted(tree, DEPTH * width * size)
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        compare_columns(x, stride, n, columns, given, hows, width)
        sums_of_columns(x, stride, n, columns, hows, chains, tree, width)
        for column in range(0, columns, LANES):
            total = load(tree, column)
            if logarithm:
                for i in range(LANES):
                    one = tree[column + i]
                    tree[column + i] = _math.logarithm(one) if one != numbers.zero else numbers.zero
            else:
                store(tree, column, select(total == numbers.zero, numbers.zero, numbers.one / total))
        for _ in range(n):
            head = to_line(out, columns) if streaming else 0
            column, stop = 0, head if head > 0 else columns
            while column < columns:
                if column == stop:
                    stop = columns
                count = LANES if column + LANES <= stop else stop - column
                values = load(x, column) if count == LANES else load_first(x, column, count)
                y = result(values, how_at(hows, column, width), load(tree, column), logarithm)
                if count < LANES:
                    store_first(out, column, count, y)
                else:
                    write(out, column, y, streaming)
                column += count
            x, out = shifted(x, stride), shifted(out, out_stride)

    def kernel(x, given, flags, scratch, out):
        n, n_columns = x.shape
        width = flags[3]
        for first in range(0, n_columns if n > 0 else 0, width):
            xs, outs = shifted(pointer_to(x), first * x.itemsize), shifted(pointer_to(out), first * x.itemsize)
            some = min(width, n_columns - first)
            slab(xs, x.strides[0], n, some, given, flags, pointer_to(scratch), width, outs, out.strides[0])
        if flags[0] != 0:
            fence()

    types = f"void({dtype}[:,:], {computed}[:], int64[:], {computed}[:], {dtype}[:,:])"
    return Source(kernel, "(n,m),(p),(q),(s),(n,m)", types, ("scratch", "out"))
