"""Kernel that normalises along an axis that is not the last, in place: every lane is a row of its own.

The lanes follow the order of summation of `blocks`: chain by chain, eight rows of memory at a time, in bit-reversed order of
the chains, so that the pairs of the chains' tree become neighbours and six partial sums per column suffice for a block
(chains in their own order would need 64). All columns of a slab take each step together: memory is read in long runs.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES, select
from .blocks import DEPTH
from .layout import BLOCK, CHAIN_LEVELS, RESULTS, SLAB
from .memory import (
    fence,
    forget_exceptions,
    itemsize,
    load,
    load_first,
    pointer_to,
    prefetch,
    shifted,
    stack_of,
    store,
    store_first,
    stream,
)
from .rows import to_line
from .simd import LANES, any_lane, as_number, first_lanes, inlined, splat


@inlined
def load_columns(pointer, column, columns):
    """64 neighbours, or as many as are left."""
    if column + LANES <= columns:
        return load(pointer, column)
    return load_first(pointer, column, columns - column)


@inlined
def bit_reversed(i, leaves):
    """The bits of i in reverse order: 0, 4, 2, 6, 1, 5, 3, 7 for eight leaves."""
    reverse = 0
    while leaves > 1:
        reverse = (reverse << 1) | (i & 1)
        i >>= 1
        leaves >>= 1
    return reverse


@inlined
def chain_of_columns(x, x_stride, chain, count, column, columns, scale):
    """Sum of squares of one chain, up to eight rows, for 64 columns."""
    squares = scale - scale
    for j in range(chain, count, LANES):
        squares = _math.accumulate_square(squares, load_columns(shifted(x, j * x_stride), column, columns) * scale)
    return squares


@inlined
def prefetch_chain(x, x_stride, chain, count, column):
    """Ask for what `chain_of_columns` will read."""
    for j in range(chain, count, LANES):
        prefetch(shifted(x, j * x_stride), column)


@inlined
def sum_block_of_columns(x, x_stride, count, start, stop, columns, sums, width, scale):
    """Sums of squares of a block, for columns `start` to `stop`: in the first row of `sums`."""
    leaves = 1
    while leaves < count and leaves < LANES:
        leaves *= 2
    top = 0
    for i in range(leaves):
        chain, following = bit_reversed(i, leaves), bit_reversed(i + 1, leaves)
        for column in range(start, stop, LANES):
            prefetch_chain(x, x_stride, following, count, column)
            squares = chain_of_columns(x, x_stride, chain, count, column, columns, scale)
            carry, level = i, top
            while carry & 1:
                level -= 1
                squares = load(sums, level * width + column) + squares
                carry >>= 1
            store(sums, level * width + column, squares)
        carry = i
        while carry & 1:
            top -= 1
            carry >>= 1
        top += 1


@inlined
def apply_columns(x, out, columns, results, width, weight, all_common, streaming, next_slab, bounds):
    """The results of one row of memory: an element of each column."""
    head = to_line(out, columns) if streaming else 0
    column, stop = 0, head
    while column < columns:
        if column == head:
            stop = columns
        count = LANES if column + LANES <= stop else stop - column
        if count == LANES:
            value, inverse = load(x, column), load(results, column)
        else:
            value, inverse = load_first(x, column, count), load_first(results, column, count)
        if all_common:
            y = _math.apply_common(value, inverse, weight)
        else:
            common = load(results, 2 * width + column) == bounds.one
            y = _math.apply_any(value, _math.Factors(load(results, width + column), inverse, common), weight, bounds)
        if count < LANES:
            store_first(out, column, count, y)
        elif streaming:
            if next_slab > 0:
                prefetch(x, column + next_slab)  # while this slab is written, the next one can be read
            stream(out, column, y)
        else:
            store(out, column, y)
        column += count


def columns(norm, dtype):
    """Kernel: normalise the columns of a matrix whose rows are contiguous, slab by slab, each as wide as `scratch`."""
    settle = _math.NORMS[norm].settle
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]

    @inlined
    def grow_trees(x, x_stride, n, columns, sums, tree, counts, width, lifted_eps):
        """The trees of all columns; scales and sums lie in `tree`, two rows a level. Returns their common `top`."""
        one = splat(bounds.one)
        index, top, start = 0, 0, 0
        while start < n:
            rows = BLOCK if start + BLOCK <= n else n - start
            sum_block_of_columns(x, x_stride, rows, 0, columns, columns, sums, width, one)
            for column in range(0, columns, LANES):
                squares = load(sums, column)
                scale = _math.rescue_scale(squares, lifted_eps, bounds)
                if any_lane((scale != bounds.one) & first_lanes(columns - column)):
                    sum_block_of_columns(x, x_stride, rows, column, column + LANES, columns, sums, width, scale)
                    squares = load(sums, column)
                block = _math.Statistics(scale, as_number(rows, bounds.one), squares)
                carry, level = index, top
                while carry & 1:
                    level -= 1
                    block = _math.join(entry(tree, counts, level, width, column), block)
                    carry >>= 1
                store(tree, 2 * level * width + column, block.scale)
                store(tree, (2 * level + 1) * width + column, block.squares)
            count, carry = as_number(rows, bounds.one), index
            while carry & 1:
                top -= 1
                count = counts[top] + count
                carry >>= 1
            counts[top] = count
            top += 1
            index += 1
            start += BLOCK
            x = shifted(x, BLOCK * x_stride)
        return top

    @inlined
    def entry(tree, counts, level, width, column):
        scale, squares = load(tree, 2 * level * width + column), load(tree, (2 * level + 1) * width + column)
        return _math.Statistics(scale, counts[level], squares)

    @inlined
    def settle_columns(tree, counts, top, columns, width, results, eps, lifted_eps):
        """Write what `apply` needs of each column; returns whether all of them are common."""
        all_common = True
        one, zero = splat(bounds.one), splat(bounds.zero)
        for column in range(0, columns, LANES):
            level = top - 1
            row = entry(tree, counts, level, width, column)
            while level > 0:
                level -= 1
                row = _math.join(entry(tree, counts, level, width, column), row)
            factors = settle(row, eps, lifted_eps, bounds)
            common = select(factors.common, one, zero)
            store(results, column, factors.inverse)
            store(results, width + column, factors.scale)
            store(results, 2 * width + column, common)
            if any_lane((common != bounds.one) & first_lanes(columns - column)):
                all_common = False
        return all_common

    @inlined
    def normalise_slab(
        x, x_stride, weight, weight_stride, eps, lifted_eps, scratch, width, out, out_stride, n, columns, streaming, next_slab
    ):
        """Columns few enough that what is kept of each fits `scratch`, and where it can be all of x the second cache."""
        results = scratch
        sums = shifted(results, RESULTS * width * itemsize(scratch))
        tree = shifted(sums, CHAIN_LEVELS * width * itemsize(scratch))
        counts = stack_of(bounds.zero, DEPTH)
        top = grow_trees(x, x_stride, n, columns, sums, tree, counts, width, lifted_eps)
        all_common = settle_columns(tree, counts, top, columns, width, results, eps, lifted_eps)
        for j in range(n):
            factor = shifted(weight, j * weight_stride)[0]
            xj, oj = shifted(x, j * x_stride), shifted(out, j * out_stride)
            common = all_common and _math.is_light(factor, bounds)
            apply_columns(xj, oj, columns, results, width, factor, common, streaming, next_slab, bounds)

    def kernel(x, weight, eps, scratch, streaming, out):
        n, columns = x.shape
        width, size = scratch.shape[1], x.itemsize
        xp, wp, sp, op = pointer_to(x), pointer_to(weight), pointer_to(scratch), pointer_to(out)
        x_stride, w_stride, out_stride = x.strides[0], weight.strides[0], out.strides[0]
        if n * columns > 0:
            fits = n * width * size <= SLAB
            # What comes before the first line of `out` is a small slab of its own, so that all others begin at lines.
            head = to_line(op, width) if streaming[0] else 0
            first, some = 0, head if head > 0 else width
            while first < columns:
                some = some if first + some <= columns else columns - first
                next_slab = some if fits and first + some < columns else 0
                xs, outs = shifted(xp, first * size), shifted(op, first * size)
                normalise_slab(
                    xs, x_stride, wp, w_stride, eps[0], eps[1], sp, width, outs, out_stride, n, some, streaming[0], next_slab
                )
                first, some = first + some, width
            if streaming[0]:
                fence()
            forget_exceptions()

    return Source(
        kernel,
        "(n,m),(n),(p),(s,w),(q),(n,m)",
        f"void({dtype}[:,:], {computed}[:], {computed}[:], {computed}[:,:], boolean[:], {dtype}[:,:])",
        ("scratch", "out"),
    )
