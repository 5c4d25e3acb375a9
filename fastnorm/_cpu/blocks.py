"""The order of summation: which element meets which, whatever the schedule.

A row is cut into blocks of 512. Within a block, element j goes to chain ``j mod 64``, so that a chain has at most eight links;
the chains join in one binary tree (i with i + 32, then i + 16, ... i + 1), and so do the blocks (neighbours, then pairs of
neighbours, ...). Rows sum with a lane a chain, columns with a lane a row, threads take whole subtrees: always the same bits.

Why chains of eight: every link of a row of equal numbers rounds the same way, so that the error grows with the length of a
chain. 64 links put the norm off by up to 4.1 units in the last place, eight by 0.6 (20 000 rows of equal numbers).
"""

from typing import Any, NamedTuple

from numba.core import types

from .. import _math
from .._vocabulary import select
from .layout import BLOCK, FEW
from .memory import stack_like, stack_of, store
from .simd import LANES, any_lane, as_number, either, first_lanes, inlined, splat, sum_lanes
from .sources import gathered, memory_of, moved, read, read_first, read_one, times


# ------------------------------------------------------------------------------ about zero (no shift), or about a shift
class Sums(NamedTuple):
    """What grows along the chains of a block about a shift. Without one it is the squares alone."""

    total: Any
    squares: Any


def about(zero, shift):
    """A function of a shift: `zero` for None."""
    return either(lambda kind: isinstance(kind, types.NoneType), zero, shift)


def _no_squares(shift, bounds):
    """The sums of no elements."""
    return splat(bounds.zero)


def _no_moments(shift, bounds):
    return Sums(splat(bounds.zero), splat(bounds.zero))


def _add_squares(squares, values, shift):
    """One more element of each of the 64 chains."""
    return _math.accumulate_square(squares, values)


def _add_moments(sums, values, shift):
    distance = values - shift
    return Sums(sums.total + distance, _math.accumulate_square(sums.squares, distance))


def _add_first_squares(squares, values, count, shift):
    """One more element of each of the first `count` chains. The other values are 0, but not their distance from a shift."""
    return _math.accumulate_square(squares, values)


def _add_first_moments(sums, values, count, shift):
    distance = select(first_lanes(count), values - shift, shift - shift)
    return Sums(sums.total + distance, _math.accumulate_square(sums.squares, distance))


def _scaled_values(values, count, shift, scale, bounds):
    """What is squared of the first `count` elements; 0 of the others."""
    return values * scale


def _scaled_distances(values, count, shift, scale, bounds):
    return select(first_lanes(count), _math.scaled_distance(values, shift, scale, bounds), bounds.zero)


scaled = about(_scaled_values, _scaled_distances)


def _sum_scaled_squares(source, start, stop, scale, shift, bounds):
    """The sums of a block of scaled elements; apart because even a factor of 1 would cost the common path."""
    squares = splat(bounds.zero)
    for j in range(start, stop, LANES):
        count = stop - j if stop - j < LANES else LANES
        squares = _math.accumulate_square(squares, scaled(read_first(source, j, count), count, shift, scale, bounds))
    return squares


def _sum_scaled_moments(source, start, stop, scale, shift, bounds):
    total, squares = splat(bounds.zero), splat(bounds.zero)
    for j in range(start, stop, LANES):
        count = stop - j if stop - j < LANES else LANES
        distance = scaled(read_first(source, j, count), count, shift, scale, bounds)
        total = total + distance
        squares = _math.accumulate_square(squares, distance)
    return Sums(total, squares)


@inlined
def sum_squares_exactly(source, start, stop, shift, scale, bounds):
    """The sum of the squares of a block, and what its roundings have lost."""
    sums = _math.Exact(splat(bounds.zero), splat(bounds.zero))
    for j in range(start, stop, LANES):
        count = stop - j if stop - j < LANES else LANES
        values = scaled(read_first(source, j, count), count, shift, scale, bounds)
        sums = _math.add_square_exactly(sums, values, bounds)
    totals, lost = stack_of(bounds.zero, LANES), stack_of(bounds.zero, LANES)
    store(totals, 0, sums.total)
    store(lost, 0, sums.lost)
    half = LANES // 2
    while half > 0:
        for i in range(half):
            both = _math.join_exact(_math.Exact(totals[i], lost[i]), _math.Exact(totals[i + half], lost[i + half]))
            totals[i], lost[i] = both.total, both.lost
        half //= 2
    return _math.Exact(totals[0], lost[0])


@inlined
def exact_if_dominated(squares, total, source, start, stop, shift, scale, bounds):
    """The sum of the squares of a block, given those of its chains: that, or the exact one."""
    if stop - start > LANES and any_lane(_math.is_dominated(squares, total, bounds)):
        return sum_squares_exactly(source, start, stop, shift, scale, bounds)
    return _math.Exact(total, bounds.zero)


def _summed_squares(squares, source, start, stop, shift, lifted_eps, bounds):
    """The statistics of a block, given its plain sums: of these, or where squares left the safe range of others, scaled."""
    total = sum_lanes(squares)
    scale = _math.rescue_scale(total, lifted_eps, bounds)
    if scale != bounds.one:
        squares = _sum_scaled_squares(source, start, stop, scale, shift, bounds)
        total = sum_lanes(squares)
    exact = exact_if_dominated(squares, total, source, start, stop, shift, scale, bounds)
    return _math.Power(scale, as_number(stop - start, bounds.one), exact.total, exact.lost)


def _summed_moments(sums, source, start, stop, shift, lifted_eps, bounds):
    squares = sum_lanes(sums.squares)
    scale = _math.rescue_scale(squares, lifted_eps, bounds)
    if scale != bounds.one:
        sums = _sum_scaled_moments(source, start, stop, scale, shift, bounds)
        squares = sum_lanes(sums.squares)
    exact = exact_if_dominated(sums.squares, squares, source, start, stop, shift, scale, bounds)
    return _math.Moments(scale, as_number(stop - start, bounds.one), sum_lanes(sums.total), exact.total, exact.lost)


inlined(_sum_scaled_squares)
inlined(_sum_scaled_moments)
no_sums = about(_no_squares, _no_moments)
add_lanes = about(_add_squares, _add_moments)
add_first = about(_add_first_squares, _add_first_moments)
summed = about(_summed_squares, _summed_moments)


@inlined
def block_statistics(source, start, stop, shift, lifted_eps, bounds):
    """Statistics of up to 512 elements."""
    sums = no_sums(shift, bounds)
    j = start
    while j + LANES <= stop:
        sums = add_lanes(sums, read(source, j), shift)
        j += LANES
    if j < stop:
        sums = add_first(sums, read_first(source, j, stop - j), stop - j, shift)
    return summed(sums, source, start, stop, shift, lifted_eps, bounds)


# -------------------------------------------------------------------------------------------------------- the tree
def no_statistics(centred, bounds):
    """An example of what a tree is made of."""
    kind = _math.Moments if centred else _math.Power
    return kind(*[bounds.zero] * len(kind._fields))


@inlined
def climb(join, tree, top, index, statistics):
    """Add leaf `index` to a tree under construction: `tree` holds the roots of its complete subtrees, the first `top` count.

    Returns the new `top`. Works like adding 1 to a binary number: every trailing 1 of `index` is a carry, a join.
    """
    while index & 1:
        top -= 1
        statistics = join(tree[top], statistics)
        index >>= 1
    tree[top] = statistics
    return top + 1


@inlined
def root(join, tree, top):
    """Join what is left from right to left: the statistics of the whole row."""
    top -= 1
    statistics = tree[top]
    while top > 0:
        top -= 1
        statistics = join(tree[top], statistics)
    return statistics


# ----------------------------------------------------------------------------------------------------- a whole row
@inlined
def no_shift(source, stride, n, bounds):
    """The shift of a norm that takes none."""
    return


@inlined
def guess_shift(source, stride, n, bounds):
    """The shift of a row: about the mean of its first 64 elements."""
    count = LANES if n > LANES else n
    values = read_first(gathered(source, stride, count, stack_like(memory_of(source), LANES)), 0, count)
    first = read_one(source)
    distances = _math.scaled_distance(values, first, bounds.fraction, bounds)
    total = sum_lanes(select(first_lanes(count), distances, bounds.zero))
    return _math.guess_mean(first, total, as_number(count, bounds.one), bounds)


@inlined
def summarise(join, tree, source, stride, n, shift, lifted_eps, bounds):
    """The statistics of a row, or of a piece of one, of any stride."""
    block = stack_like(memory_of(source), BLOCK)
    index, top, start = 0, 0, 0
    while start < n:
        count = BLOCK if start + BLOCK < n else n - start
        values = gathered(moved(source, times(stride, start)), stride, count, block)
        top = climb(join, tree, top, index, block_statistics(values, 0, count, shift, lifted_eps, bounds))
        index += 1
        start += count
    return root(join, tree, top)


def _as_it_is(join, tree, row, source, stride, n, shift, lifted_eps, bounds):
    """The statistics of a row and their shift: those given, or better ones."""
    return row, shift


@inlined
def exact_if_few(row, source, stride, n, shift, bounds):
    """The statistics of a row, with an exact total if the row is very short."""
    if n <= FEW:
        sums = _math.Exact(bounds.zero, bounds.zero)
        for j in range(n):
            sums = _math.add_distance_exactly(sums, read_one(moved(source, times(stride, j))), shift, row.scale, bounds)
        row = _math.with_total(row, sums, bounds)
    return row


def _on_centre(join, tree, row, source, stride, n, shift, lifted_eps, bounds):
    row = exact_if_few(row, source, stride, n, shift, bounds)
    if _math.is_off_centre(row, bounds):
        shift = _math.better_guess(row, shift, bounds)
        row = summarise(join, tree, source, stride, n, shift, lifted_eps, bounds)
        row = exact_if_few(row, source, stride, n, shift, bounds)
    return row, shift


on_centre = about(_as_it_is, _on_centre)
