"""Kernels of softmax: the largest of a row, the sum of the exponentials of distances from it, the result.

Exponentials are summed in the order of `blocks`, in rows with a lane a chain, in columns with a lane a column. A row is read
three times, so that nothing has to be kept of it: it stays in a cache, and the exponential, taken twice, costs less than
memory (0.4 of the time of a copy). While a row is worked on, the next one is asked for.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, EXPONENTIALS, maximum, select
from .apply import write
from .blocks import climb, root
from .edges import to_line
from .layout import BLOCK, LARGEST, LOGARITHM, SUM, TREE
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

SIGN, SCALE, WHOLE, REST = range(4)  # in `given`: x is multiplied by the sign; scale * (x - y) is that, or in two factors


def working(computed):
    """The functions that kernels over rows are made of."""
    numbers = EXPONENTIALS[computed]

    @inlined
    def distance(values, against, given):
        """The scaled distance from the largest, of which neither factor leaves the range where the product does not."""
        return (values * given[WHOLE] - against * given[WHOLE]) * given[REST]

    @inlined
    def largest_of(x, stride, n, given):
        """The largest of a row; NaN does not count."""
        block = stack_like(x, BLOCK)
        largest = splat(numbers.nothing)
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            values = gathered(shifted(x, start * stride), stride, count, block)
            j = 0
            while j + LANES <= count:
                largest = maximum(load(values, j) * given[SIGN], largest)
                j += LANES
            if j < count:
                some = load_first(values, j, count - j) * given[SIGN]
                largest = maximum(select(first_lanes(count - j), some, numbers.nothing), largest)
        return largest_lane(largest)

    @inlined
    def sum_of(x, stride, n, against, given, following, ask):
        """The sum of the exponentials of a row."""
        block, tree = stack_like(x, BLOCK), stack_of(numbers.zero, TREE)
        top = 0
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            values = gathered(shifted(x, start * stride), stride, count, block)
            chains = splat(numbers.zero)
            j = 0
            while j + LANES <= count:
                chains = chains + _math.exponential(distance(load(values, j) * given[SIGN], against, given), numbers)
                if ask:
                    prefetch(following, start + j)
                j += LANES
            if j < count:
                some = _math.exponential(distance(load_first(values, j, count - j) * given[SIGN], against, given), numbers)
                chains = chains + select(first_lanes(count - j), some, numbers.zero)
            top = climb(_math.add_totals, tree, top, start // BLOCK, sum_lanes(chains))
        return root(_math.add_totals, tree, top)

    @inlined
    def result(values, against, total, given, logarithm):
        """The result for some elements; `total` is its inverse, or its logarithm."""
        distances = distance(values * given[SIGN], against, given)
        if logarithm:
            return distances - total
        return _math.exponential(distances, numbers) * total

    @inlined
    def prepared(total, logarithm):
        """What `result` needs of a sum: its inverse or logarithm; 0 for a row of which nothing is left."""
        if total == numbers.zero:
            return numbers.zero
        if logarithm:
            return _math.logarithm(total)
        return numbers.one / total

    @inlined
    def apply(x, stride, n, against, total, given, logarithm, streaming, out, out_stride):
        """The result of a row."""
        if stride != itemsize(x) or out_stride != itemsize(out):
            for j in range(n):
                value = get(shifted(x, j * stride))
                put(shifted(out, j * out_stride), result(value, against, total, given, logarithm))
            return
        head = to_line(out, n) if streaming else 0
        j = 0
        if head > 0:
            store_first(out, 0, head, result(load_first(x, 0, head), against, total, given, logarithm))
            j = head
        while j + LANES <= n:
            write(out, j, result(load(x, j), against, total, given, logarithm), streaming)
            j += LANES
        if j < n:
            store_first(out, j, n - j, result(load_first(x, j, n - j), against, total, given, logarithm))

    return distance, largest_of, sum_of, result, prepared, apply


def rows(dtype):
    """Kernel: softmax or its logarithm, of rows of any strides."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    _, largest_of, sum_of, _, prepared, apply = working(computed)

    def kernel(x, given, flags, out):
        n_rows, n = x.shape
        source, target, stride = pointer_to(x), pointer_to(out), x.strides[1]
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        for i in range(n_rows):
            if n > 0:
                following = shifted(source, x.strides[0])
                largest = _math.reference(largest_of(source, stride, n, given), numbers)
                total = prepared(sum_of(source, stride, n, largest, given, following, i + 1 < n_rows), logarithm)
                apply(source, stride, n, largest, total, given, logarithm, streaming, target, out.strides[1])
                source, target = following, shifted(target, out.strides[0])
        if streaming:
            fence()

    return Source(kernel, "(r,n),(p),(q),(r,n)", f"void({dtype}[:,:], {computed}[:], int64[:], {dtype}[:,:])", ("out",))


def sums(dtype):
    """Kernel: the logarithms of the sums of the exponentials of rows."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    _, largest_of, sum_of, _, _, _ = working(computed)

    def kernel(x, given, out):
        n_rows, n = x.shape
        source, target, stride = pointer_to(x), pointer_to(out), x.strides[1]
        for i in range(n_rows):
            following = shifted(source, x.strides[0])
            value = numbers.nothing
            if n > 0:
                largest = largest_of(source, stride, n, given)
                total = sum_of(source, stride, n, _math.reference(largest, numbers), given, following, i + 1 < n_rows)
                value = _math.log_sum(_math.Weights(largest, total), numbers)
                if largest == numbers.zero - numbers.nothing:  # infinity stands out, unless something is not a number
                    value = largest
                    for j in range(n):
                        other = get(shifted(source, j * stride))
                        value = select(other != other, other, value)
            put(target, value)
            source, target = following, shifted(target, out.strides[0])

    return Source(kernel, "(r,n),(p),(r)", f"void({dtype}[:,:], {computed}[:], {dtype}[:])", ("out",))


def pieces(dtype):
    """Kernel: one step of the work on a piece of a long row: the largest, the sum, or the result."""
    computed = COMPUTED[dtype]
    _, largest_of, sum_of, _, _, apply = working(computed)

    def kernel(x, given, known, flags, out, found):
        source, stride, n = pointer_to(x), x.strides[0], len(x)
        if flags[2] == LARGEST:
            found[0] = largest_of(source, stride, n, given)
        elif flags[2] == SUM:
            found[0] = sum_of(source, stride, n, known[0], given, source, False)
        else:
            streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
            target = pointer_to(out)
            apply(source, stride, n, known[0], known[1], given, logarithm, streaming, target, out.strides[0])
            if streaming:
                fence()

    types = f"void({dtype}[:], {computed}[:], {computed}[:], int64[:], {dtype}[:], {computed}[:])"
    return Source(kernel, "(n),(p),(k),(q),(n),(f)", types, ("out", "found"))


def columns(dtype):
    """Kernel: softmax or its logarithm of the columns of a matrix whose rows are contiguous, slab by slab."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8
    _, _, _, result, _, _ = working(computed)
    distance = working(computed)[0]

    @inlined
    def lanes_at(x, column, columns):
        if column + LANES <= columns:
            return load(x, column)
        return load_first(x, column, columns - column)

    @inlined
    def largest_of_columns(x, stride, n, columns, given, largest):
        for column in range(0, columns, LANES):
            store(largest, column, splat(numbers.nothing))
        for _ in range(n):
            for column in range(0, columns, LANES):
                store(largest, column, maximum(lanes_at(x, column, columns) * given[SIGN], load(largest, column)))
            x = shifted(x, stride)
        for column in range(0, columns, LANES):
            store(largest, column, _math.reference(load(largest, column), numbers))

    @inlined
    def sums_of_columns(x, stride, n, columns, given, largest, chains, tree, width):
        """The sums: in the lowest row of `tree`. Chains and blocks join as those of a row do."""
        top = 0
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            for j in range(min(LANES, count) * width // LANES):
                store(chains, j * LANES, splat(numbers.zero))
            for j in range(count):
                row = shifted(chains, (j % LANES) * width * size)
                for column in range(0, columns, LANES):
                    values = lanes_at(x, column, columns) * given[SIGN]
                    more = _math.exponential(distance(values, load(largest, column), given), numbers)
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
        largest, tree = scratch, shifted(scratch, width * size)
        chains = shifted(scratch, (1 + TREE) * width * size)
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        largest_of_columns(x, stride, n, columns, given, largest)
        sums_of_columns(x, stride, n, columns, given, largest, chains, tree, width)
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
                y = result(values, load(largest, column), load(tree, column), given, logarithm)
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
