"""Kernels of softmax over rows: the largest of a row, the sum of the exponentials of distances from it, the result.

Exponentials are summed in the order of `blocks`, a lane a chain. A row is read twice, for its largest and for its sum; then it
is in a cache, and so are its exponentials, unless it is long: these are taken again. While a row is worked on, the next one is
asked for.

Where the largest outweighs the rest, its exponential, 1, would take the last bits of what it is added to. Such a row is summed
again, with what is exactly 1 counted apart. Always to do so would cost a tenth of the time.
"""

from typing import Any, NamedTuple

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, EXPONENTIALS, RANGES, maximum, minimum, select
from .apply import write
from .blocks import climb, root
from .edges import to_line
from .layout import APART, BLOCK, DEPTH, LARGEST, LOGARITHM, SUM
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


class Working(NamedTuple):
    """The functions that kernels are made of, see `working`."""

    compared: Any
    extremes_of: Any
    sum_of: Any
    apart_of: Any
    total_of: Any
    result: Any
    prepared: Any
    apply: Any


def working(computed):
    """The functions that kernels are made of, for a dtype of the computation."""
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
    def sum_of(x, stride, n, how, following, ask, kept, keeps):
        """The sum of the exponentials of a row, which are kept if `keeps`: if there is room for all of them."""
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
                if keeps:
                    store(kept, start + j, some)
                if ask:
                    prefetch(following, start + j)
                j += LANES
            if j < count:
                some = _math.exponential(_math.scaled_difference(load_first(values, j, count - j), how), numbers)
                chains = chains + select(first_lanes(count - j), some, zero)
                if keeps:
                    store_first(kept, start + j, count - j, some)
            top = climb(_math.add_totals, tree, top, start // BLOCK, sum_lanes(chains))
        return root(_math.add_totals, tree, top)

    @inlined
    def apart_of(x, stride, n, how, kept, keeps):
        """The same in two: how many exponentials are exactly 1, and the sum of the others."""
        block, tree = stack_like(x, BLOCK), stack_of(zero, DEPTH)
        top, ones = 0, splat(zero)
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            values = gathered(shifted(x, start * stride), stride, count, block)
            chains = splat(zero)
            for j in range(0, count, LANES):
                if keeps:
                    some = load_first(kept, start + j, count - j)
                else:
                    some = _math.exponential(_math.scaled_difference(load_first(values, j, count - j), how), numbers)
                here, is_one = first_lanes(count - j), some == one
                ones = ones + select(here & is_one, splat(one), zero)
                chains = chains + select(here, select(is_one, zero, some), zero)
            top = climb(_math.add_totals, tree, top, start // BLOCK, sum_lanes(chains))
        return sum_lanes(ones), root(_math.add_totals, tree, top)

    @inlined
    def total_of(x, stride, n, how, following, ask, kept, keeps):
        """The sum of the exponentials of a row, also where one outweighs the others."""
        total = sum_of(x, stride, n, how, following, ask, kept, keeps)
        if _math.is_outweighed(total, numbers):
            ones, others = apart_of(x, stride, n, how, kept, keeps)
            total = ones + others
        return total

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
    def apply(x, stride, n, how, total, kept, keeps, logarithm, streaming, out, out_stride):
        """The result of a row."""
        if stride != itemsize(x) or out_stride != itemsize(out):
            for j in range(n):
                put(shifted(out, j * out_stride), result(get(shifted(x, j * stride)), how, total, logarithm))
            return
        j = to_line(out, n) if streaming else 0
        if j > 0:
            store_first(out, 0, j, result(load_first(x, 0, j), how, total, logarithm))
        if keeps and not logarithm:
            while j + LANES <= n:
                write(out, j, load(kept, j) * total, streaming)
                j += LANES
        while j + LANES <= n:
            write(out, j, result(load(x, j), how, total, logarithm), streaming)
            j += LANES
        if j < n:
            store_first(out, j, n - j, result(load_first(x, j, n - j), how, total, logarithm))

    return Working(compared, extremes_of, sum_of, apart_of, total_of, result, prepared, apply)


def rows(dtype):
    """Kernel: softmax or its logarithm, of rows of any strides."""
    computed = COMPUTED[dtype]
    work = working(computed)
    compared, extremes_of, total_of = work.compared, work.extremes_of, work.total_of
    prepared, apply = work.prepared, work.apply

    def kernel(x, given, flags, scratch, out):
        n_rows, n = x.shape
        source, target, stride = pointer_to(x), pointer_to(out), x.strides[1]
        kept, keeps = pointer_to(scratch), n <= len(scratch)
        streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
        for i in range(n_rows):
            following = shifted(source, x.strides[0])
            largest, smallest = extremes_of(source, stride, n, given)
            how = compared(largest, smallest, given)
            total = prepared(total_of(source, stride, n, how, following, i + 1 < n_rows, kept, keeps), logarithm)
            apply(source, stride, n, how, total, kept, keeps, logarithm, streaming, target, out.strides[1])
            source, target = following, shifted(target, out.strides[0])
        if streaming:
            fence()

    types = f"void({dtype}[:,:], {computed}[:], int64[:], {computed}[:], {dtype}[:,:])"
    return Source(kernel, "(r,n),(p),(q),(s),(r,n)", types, ("scratch", "out"))


def sums(dtype):
    """Kernel: the logarithms of the sums of the exponentials of rows."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    work = working(computed)
    compared, extremes_of, total_of = work.compared, work.extremes_of, work.total_of

    def kernel(x, given, scratch, out):
        n_rows, n = x.shape
        source, target, stride = pointer_to(x), pointer_to(out), x.strides[1]
        for i in range(n_rows):
            following = shifted(source, x.strides[0])
            largest, smallest = extremes_of(source, stride, n, given)
            how = compared(largest, smallest, given)
            total = total_of(source, stride, n, how, following, i + 1 < n_rows, pointer_to(scratch), n <= len(scratch))
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
    work = working(computed)
    compared, extremes_of, sum_of, apart_of = work.compared, work.extremes_of, work.sum_of, work.apart_of
    prepared, apply = work.prepared, work.apply

    def kernel(x, given, known, flags, out, found):
        source, stride, n, nowhere = pointer_to(x), x.strides[0], len(x), pointer_to(found)
        how = compared(known[0], known[1], given)
        if flags[2] == LARGEST:
            found[0], found[1] = extremes_of(source, stride, n, given)
        elif flags[2] == SUM:
            found[0] = sum_of(source, stride, n, how, source, False, nowhere, False)
        elif flags[2] == APART:
            found[1], found[0] = apart_of(source, stride, n, how, nowhere, False)
        else:
            streaming, logarithm = flags[0] != 0, flags[1] == LOGARITHM
            total = prepared(known[2], logarithm)
            apply(source, stride, n, how, total, nowhere, False, logarithm, streaming, pointer_to(out), out.strides[0])
            if streaming:
                fence()

    types = f"void({dtype}[:], {computed}[:], {computed}[:], int64[:], {dtype}[:], {computed}[:])"
    return Source(kernel, "(n),(p),(k),(q),(n),(f)", types, ("out", "found"))
