"""The order of summation: which element meets which, whatever the schedule.

A row is cut into blocks of 512. Within a block, element j goes to chain ``j mod 64``, so that a chain has at most eight links;
the chains join in one binary tree (i with i + 32, then i + 16, ... i + 1), and so do the blocks (neighbours, then pairs of
neighbours, ...). Rows sum with a lane a chain, columns with a lane a row, threads take whole subtrees: always the same bits.

Why chains of eight: every link of a row of equal numbers rounds the same way, so that the error grows with the length of a
chain. 64 links put the norm off by up to 4.1 units in the last place, eight by 0.6 (20 000 rows of equal numbers).
"""

from .. import _math
from .memory import load, load_first
from .simd import LANES, as_number, inlined, splat, sum_lanes

DEPTH = 64  # of a tree: enough for any row that fits into memory


@inlined
def block_statistics(x, start, stop, lifted_eps, bounds):
    """Statistics of up to 512 elements."""
    squares = splat(bounds.zero)
    j = start
    while j + LANES <= stop:
        squares = _math.accumulate_square(squares, load(x, j))
        j += LANES
    if j < stop:
        squares = _math.accumulate_square(squares, load_first(x, j, stop - j))
    return rescued(sum_lanes(squares), x, start, stop, lifted_eps, bounds)


@inlined
def rescued(squares, x, start, stop, lifted_eps, bounds):
    """The statistics of a block, given its plain sum: that sum, or where it left the safe range another, scaled one."""
    scale = _math.rescue_scale(squares, lifted_eps, bounds)
    if scale != bounds.one:
        squares = sum_scaled_block(x, start, stop, scale, bounds)
    return _math.Statistics(scale, as_number(stop - start, bounds.one), squares)


@inlined
def sum_scaled_block(x, start, stop, scale, bounds):
    """The sum of squares of ``scale * x``; apart because even a factor of 1 would cost the common path."""
    squares = splat(bounds.zero)
    j = start
    while j + LANES <= stop:
        squares = _math.accumulate_square(squares, load(x, j) * scale)
        j += LANES
    if j < stop:
        squares = _math.accumulate_square(squares, load_first(x, j, stop - j) * scale)
    return sum_lanes(squares)


@inlined
def climb(tree, top, index, statistics):
    """Add leaf `index` to a tree under construction: `tree` holds the roots of its complete subtrees, the first `top` count.

    Returns the new `top`. Works like adding 1 to a binary number: every trailing 1 of `index` is a carry, a join.
    """
    while index & 1:
        top -= 1
        statistics = _math.join(tree[top], statistics)
        index >>= 1
    tree[top] = statistics
    return top + 1


@inlined
def root(tree, top):
    """Join what is left from right to left: the statistics of the whole row."""
    top -= 1
    statistics = tree[top]
    while top > 0:
        top -= 1
        statistics = _math.join(tree[top], statistics)
    return statistics
