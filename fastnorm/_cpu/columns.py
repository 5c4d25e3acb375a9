"""Kernel that normalises along an axis that is not the last, in place: every lane is a row of its own.

The lanes follow the order of summation of `blocks`: chain by chain, eight rows of memory at a time, in bit-reversed order of
the chains, so that the pairs of the chains' tree become neighbours and six partial sums per column suffice for a block
(chains in their own order would need 64). All columns of a slab take each step together: memory is read in long runs.
"""

from typing import Any, NamedTuple

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES, maximum, select
from .apply import one_of, parameter
from .blocks import about, scaled
from .column_sums import (
    block_of,
    join_sums,
    load_columns,
    load_factors,
    load_node,
    no_shifts_in,
    shift_of,
    shifts_in,
    squares_in,
    squares_of,
    store_factors,
    store_node,
    store_sums,
    sum_chain,
)
from .edges import to_line
from .layout import AHEAD_ROWS, BLOCK, CHAIN_LEVELS, DEPTH, FEW, SLAB, result_rows
from .memory import (
    fence,
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
from .rows import signature
from .simd import LANES, any_lane, as_number, first_lanes, inlined, splat

SIDE_BY_SIDE = LANES * LANES  # numbers: of the chains of 64 columns


class Working(NamedTuple):
    """What is kept of the columns of a slab while they are summed, in rows of scratch that are `width` wide."""

    sums: Any  # of the chains of a block
    peaks: Any  # the largest squares of a chain
    tree: Any  # nodes of the trees of blocks, and how many elements each is of
    counts: Any
    width: Any


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
def prefetch_chain(x, x_stride, chain, count, column):
    """Ask for what summing a chain will read."""
    for j in range(chain, count, LANES):
        prefetch(shifted(x, j * x_stride), column)


@inlined
def leaves_of(count):
    """The chains of a block that has so many rows of memory, as leaves of a tree."""
    leaves = 1
    while leaves < count and leaves < LANES:
        leaves *= 2
    return leaves


@inlined
def place_sums(sums, top, index, width, column, more, shifts):
    """Leaf `index` of the trees of 64 columns, or what it makes complete; as `climb`, which cannot keep the tops of all."""
    while index & 1:
        top -= 1
        more = join_sums(sums, top, width, column, more, shifts)
        index >>= 1
    store_sums(sums, top, width, column, more, shifts)


@inlined
def climbed(top, index):
    """The `top` of trees after leaf `index`."""
    while index & 1:
        top -= 1
        index >>= 1
    return top + 1


@inlined
def sum_block_of_columns(x, x_stride, count, start, stop, columns, working, scale, shifts, bounds):
    """Sums of a block, for columns `start` to `stop`: at the lowest level of the sums."""
    sums, peaks, width = working.sums, working.peaks, working.width
    leaves, top = leaves_of(count), 0
    for i in range(leaves):
        chain, following = bit_reversed(i, leaves), bit_reversed(i + 1, leaves)
        for column in range(start, stop, LANES):
            prefetch_chain(x, x_stride, following, count, column)
            more = sum_chain(x, x_stride, chain, count, column, columns, scale, shifts, bounds)
            peak = squares_in(more, shifts)
            store(peaks, column, maximum(peak, load(peaks, column)) if i > 0 else peak)
            place_sums(sums, top, i, width, column, more, shifts)
        top = climbed(top, i)


@inlined
def sum_columns_exactly(x, x_stride, count, column, columns, scale, shifts, bounds):
    """As `sum_squares_exactly`, of 64 columns side by side."""
    totals, lost = stack_of(bounds.zero, SIDE_BY_SIDE), stack_of(bounds.zero, SIDE_BY_SIDE)
    for chain in range(LANES):
        sums = _math.Exact(splat(bounds.zero), splat(bounds.zero))
        for j in range(chain, count, LANES):
            values = load_columns(shifted(x, j * x_stride), column, columns)
            sums = _math.add_square_exactly(sums, scaled(values, LANES, shift_of(shifts, column), scale, bounds), bounds)
        store(totals, chain * LANES, sums.total)
        store(lost, chain * LANES, sums.lost)
    half = LANES // 2
    while half > 0:
        for i in range(0, half * LANES, LANES):
            other = i + half * LANES
            a, b = _math.Exact(load(totals, i), load(lost, i)), _math.Exact(load(totals, other), load(lost, other))
            both = _math.join_exact(a, b)
            store(totals, i, both.total)
            store(lost, i, both.lost)
        half //= 2
    return _math.Exact(load(totals, 0), load(lost, 0))


@inlined
def exact_where_dominated(x, x_stride, count, column, columns, squares, peak, scale, shifts, bounds):
    """As `exact_if_dominated`, of 64 columns."""
    dominated = _math.is_dominated(peak, squares, bounds) & first_lanes(columns - column)
    total, lost = squares, splat(bounds.zero)
    if count > LANES and any_lane(dominated):
        exact = sum_columns_exactly(x, x_stride, count, column, columns, scale, shifts, bounds)
        total, lost = select(dominated, exact.total, squares), select(dominated, exact.lost, bounds.zero)
    return _math.Exact(total, lost)


@inlined
def grow_trees(join, x, x_stride, n, start, stop, columns, working, shifts, lifted_eps, bounds):
    """The trees of columns `start` to `stop`, a node of 64 of them at a time. Returns their common `top`."""
    sums, tree, counts, width = working.sums, working.tree, working.counts, working.width
    index, top, begin = 0, 0, 0
    while begin < n:
        rows = BLOCK if begin + BLOCK <= n else n - begin
        sum_block_of_columns(x, x_stride, rows, start, stop, columns, working, bounds.one, shifts, bounds)
        for column in range(start, stop, LANES):
            squares = squares_of(sums, width, column, shifts)
            scale = _math.rescue_scale(squares, lifted_eps, bounds)
            if any_lane((scale != bounds.one) & first_lanes(columns - column)):
                end = column + LANES
                sum_block_of_columns(x, x_stride, rows, column, end, columns, working, scale, shifts, bounds)
                squares = squares_of(sums, width, column, shifts)
            peak = load(working.peaks, column)
            exact = exact_where_dominated(x, x_stride, rows, column, columns, squares, peak, scale, shifts, bounds)
            block = block_of(sums, width, column, scale, as_number(rows, bounds.one), exact, shifts)
            carry, level = index, top
            while carry & 1:
                level -= 1
                block = join(load_node(tree, counts, level, width, column, shifts), block)
                carry >>= 1
            store_node(tree, level, width, column, block, shifts)
        count, carry = as_number(rows, bounds.one), index
        while carry & 1:
            top -= 1
            count = counts[top] + count
            carry >>= 1
        counts[top] = count
        top += 1
        index += 1
        begin += BLOCK
        x = shifted(x, BLOCK * x_stride)
    return top


@inlined
def root_of_columns(join, working, top, column, shifts):
    """The statistics of 64 columns."""
    tree, counts, width = working.tree, working.counts, working.width
    level = top - 1
    row = load_node(tree, counts, level, width, column, shifts)
    while level > 0:
        level -= 1
        row = join(load_node(tree, counts, level, width, column, shifts), row)
    return row


def _no_shifts(x, x_stride, n, columns, working, shifts, bounds):
    """Guess the shifts of all columns: each about the mean of its first 64 elements."""


def _guess_shifts(x, x_stride, n, columns, working, shifts, bounds):
    count = LANES if n > LANES else n
    for column in range(0, columns, LANES):
        store(shifts, column, load_columns(x, column, columns))
    sum_block_of_columns(x, x_stride, count, 0, columns, columns, working, bounds.fraction, shifts, bounds)
    for column in range(0, columns, LANES):
        first, total = load(shifts, column), load(working.sums, column)
        store(shifts, column, _math.guess_mean(first, total, as_number(count, bounds.one), bounds))


def _as_they_are(join, row, x, x_stride, n, column, columns, working, shifts, lifted_eps, bounds):
    """The statistics of 64 columns: those given, or better ones."""
    return row


@inlined
def exact_if_few(row, x, x_stride, n, column, columns, shifts, bounds):
    """The statistics of 64 columns, with exact totals if they are very short."""
    if n <= FEW:
        exact = _math.Exact(splat(bounds.zero), splat(bounds.zero))
        for j in range(n):
            values = load_columns(shifted(x, j * x_stride), column, columns)
            exact = _math.add_distance_exactly(exact, values, load(shifts, column), row.scale, bounds)
        row = _math.with_total(row, exact, bounds)
    return row


def _on_centre(join, row, x, x_stride, n, column, columns, working, shifts, lifted_eps, bounds):
    row = exact_if_few(row, x, x_stride, n, column, columns, shifts, bounds)
    off = _math.is_off_centre(row, bounds) & first_lanes(columns - column)
    if any_lane(off):
        shift, stop = load(shifts, column), column + LANES
        store(shifts, column, select(off, _math.better_guess(row, shift, bounds), shift))
        top = grow_trees(join, x, x_stride, n, column, stop, columns, working, shifts, lifted_eps, bounds)
        row = root_of_columns(join, working, top, column, shifts)
        row = exact_if_few(row, x, x_stride, n, column, columns, shifts, bounds)
    return row


guess_shifts = about(_no_shifts, _guess_shifts)
on_centre = about(_as_they_are, _on_centre)


def columns(norm, dtype):
    """Kernel: normalise the columns of a matrix whose rows are contiguous, slab by slab, each as wide as `scratch`."""
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]
    name, norm = norm, _math.NORMS[norm]
    join, settle, apply_common, apply_any, wary = norm.join, norm.settle, norm.apply_common, norm.apply_any, norm.wary
    shifts_of = shifts_in if norm.centred else no_shifts_in
    kept, quantities = result_rows(norm.centred), 2 if norm.centred else 1

    @inlined
    def apply_columns(x, out, columns, results, width, weight, bias, all_common, streaming, following, shifts):
        """The results of one row of memory: an element of each column. Meanwhile, what is read next can be on its way."""
        head = to_line(out, columns) if streaming else 0
        column, stop = 0, head
        while column < columns:
            if column == head:
                stop = columns
            count = LANES if column + LANES <= stop else stop - column
            value = load(x, column) if count == LANES else load_first(x, column, count)
            row = load_factors(results, width, column, bounds, shifts)
            if all_common:
                y = apply_common(value, row, weight, bias)
            else:
                y = apply_any(value, row, weight, bias, bounds)
            if count < LANES:
                store_first(out, column, count, y)
            elif streaming:
                prefetch(following, column)
                stream(out, column, y)
            else:
                store(out, column, y)
            column += count

    @inlined
    def settle_columns(x, x_stride, n, working, top, columns, results, eps, lifted_eps, shifts):
        """Write what `apply` needs of each column; returns whether all of them are common."""
        all_common, width = True, working.width
        for column in range(0, columns, LANES):
            row = root_of_columns(join, working, top, column, shifts)
            row = on_centre(join, row, x, x_stride, n, column, columns, working, shifts, lifted_eps, bounds)
            factors = settle(row, shift_of(shifts, column), eps, lifted_eps, bounds)
            store_factors(results, width, column, factors, bounds, shifts)
            uncommon = select(factors.common, splat(bounds.zero), bounds.one) == bounds.one
            if any_lane(uncommon & first_lanes(columns - column)):
                all_common = False
        return all_common

    @inlined
    def normalise_slab(x, x_stride, w, b, eps, lifted_eps, scratch, width, out, out_stride, n, columns, streaming, next_slab):
        """Columns few enough that what is kept of each fits `scratch`, and where it can be all of x the second cache."""
        row_of_scratch = width * itemsize(scratch)
        results, shifts = scratch, shifts_of(scratch, width)
        sums = shifted(results, kept * row_of_scratch)
        peaks = shifted(sums, quantities * CHAIN_LEVELS * row_of_scratch)
        tree = shifted(peaks, row_of_scratch)
        working = Working(sums, peaks, tree, stack_of(bounds.zero, DEPTH), width)
        guess_shifts(x, x_stride, n, columns, working, shifts, bounds)
        top = grow_trees(join, x, x_stride, n, 0, columns, columns, working, shifts, lifted_eps, bounds)
        all_common = settle_columns(x, x_stride, n, working, top, columns, results, eps, lifted_eps, shifts)
        for j in range(n):
            weight, bias = one_of(w, j), one_of(b, j)
            xj, oj = shifted(x, j * x_stride), shifted(out, j * out_stride)
            common = all_common
            if wary:
                common = all_common and _math.is_ordinary(weight, bounds)
            following = shifted(xj, next_slab * itemsize(x) if next_slab > 0 else AHEAD_ROWS * x_stride)
            apply_columns(xj, oj, columns, results, width, weight, bias, common, streaming, following, shifts)

    @inlined
    def run(x, weight, bias, eps, scratch, streaming, out):
        n, columns = x.shape
        width, size = scratch.shape[1], x.itemsize
        xp, sp, op = pointer_to(x), pointer_to(scratch), pointer_to(out)
        w, b = parameter(weight, stack_of(bounds.zero, LANES)), parameter(bias, stack_of(bounds.zero, LANES))
        x_stride, out_stride = x.strides[0], out.strides[0]
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
                    xs, x_stride, w, b, eps[0], eps[1], sp, width, outs, out_stride, n, some, streaming[0], next_slab
                )
                first, some = first + some, width
            if streaming[0]:
                fence()

    def plain(x, weight, eps, scratch, streaming, out):
        run(x, weight, weight, eps, scratch, streaming, out)

    def biased(x, weight, bias, eps, scratch, streaming, out):
        run(x, weight, bias, eps, scratch, streaming, out)

    kernel, layout, types = signature(name, computed, plain, biased)
    return Source(
        kernel,
        f"(n,m),{layout},(p),(s,w),(q),(n,m)",
        f"void({dtype}[:,:], {types}, {computed}[:], {computed}[:,:], boolean[:], {dtype}[:,:])",
        ("scratch", "out"),
    )
