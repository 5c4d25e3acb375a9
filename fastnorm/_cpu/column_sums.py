"""What is kept of 64 columns at a time, in rows of scratch that are `width` wide: sums, nodes of trees, factors.

Each function has two bodies: for norms about zero, where `shifts` is None, and for norms about a shift, where it points to the
shifts of all columns.
"""

from .. import _math
from .._vocabulary import select
from .blocks import Sums, about
from .memory import itemsize, load, load_first, shifted, store
from .simd import LANES, inlined, splat


@inlined
def load_columns(pointer, column, columns):
    """64 neighbours, or as many as are left."""
    if column + LANES <= columns:
        return load(pointer, column)
    return load_first(pointer, column, columns - column)


# ------------------------------------------------------------------------------------------------------------ sums
def _sum_squares(x, x_stride, chain, count, column, columns, scale, shifts, bounds):
    """Sums of one chain, up to eight rows of memory."""
    squares = splat(bounds.zero)
    for j in range(chain, count, LANES):
        squares = _math.accumulate_square(squares, load_columns(shifted(x, j * x_stride), column, columns) * scale)
    return squares


def _sum_moments(x, x_stride, chain, count, column, columns, scale, shifts, bounds):
    total, squares = splat(bounds.zero), splat(bounds.zero)
    shift = load(shifts, column)
    for j in range(chain, count, LANES):
        values = load_columns(shifted(x, j * x_stride), column, columns)
        distance = _math.scaled_distance(values, shift, scale, bounds)
        total = total + distance
        squares = _math.accumulate_square(squares, distance)
    return Sums(total, squares)


def _join_squares(sums, level, width, column, squares, shifts):
    """The sums at `level` together with those of the chains after them."""
    return load(sums, level * width + column) + squares


def _join_moments(sums, level, width, column, more, shifts):
    place = 2 * level * width + column
    return Sums(load(sums, place) + more.total, load(sums, place + width) + more.squares)


def _store_squares(sums, level, width, column, squares, shifts):
    """Store sums at `level`."""
    store(sums, level * width + column, squares)


def _store_moments(sums, level, width, column, more, shifts):
    place = 2 * level * width + column
    store(sums, place, more.total)
    store(sums, place + width, more.squares)


def _squares_alone(sums, width, column, shifts):
    """The sum of squares of a whole block."""
    return load(sums, column)


def _squares_beside(sums, width, column, shifts):
    return load(sums, column + width)


def _squares_in(squares, shifts):
    """The squares among the sums of a chain."""
    return squares


def _squares_in_moments(more, shifts):
    return more.squares


def _block_power(sums, width, column, scale, count, squares, shifts):
    """The statistics of a whole block."""
    return _math.Power(scale, count, squares.total, squares.lost)


def _block_moments(sums, width, column, scale, count, squares, shifts):
    return _math.Moments(scale, count, load(sums, column), squares.total, squares.lost)


# ----------------------------------------------------------------------------------------------------------- trees
def _store_power(tree, level, width, column, node, shifts):
    """Store a node of the trees; its count is the same for all columns."""
    place = 3 * level * width + column
    store(tree, place, node.scale)
    store(tree, place + width, node.squares)
    store(tree, place + 2 * width, node.lost)


def _store_node(tree, level, width, column, node, shifts):
    place = 4 * level * width + column
    store(tree, place, node.scale)
    store(tree, place + width, node.squares)
    store(tree, place + 2 * width, node.lost)
    store(tree, place + 3 * width, node.total)


def _load_power(tree, counts, level, width, column, shifts):
    """A node of the trees."""
    place = 3 * level * width + column
    return _math.Power(load(tree, place), counts[level], load(tree, place + width), load(tree, place + 2 * width))


def _load_node(tree, counts, level, width, column, shifts):
    place = 4 * level * width + column
    squares, lost, total = load(tree, place + width), load(tree, place + 2 * width), load(tree, place + 3 * width)
    return _math.Moments(load(tree, place), counts[level], total, squares, lost)


# ------------------------------------------------------------------------------------------------ shifts and factors
@inlined
def no_shifts_in(results, width):
    """Where the shifts of a norm about zero lie."""
    return


@inlined
def shifts_in(results, width):
    """Where shifts lie: in the fourth row of the results."""
    return shifted(results, 3 * width * itemsize(results))


def _no_shift_of(shifts, column):
    """The shifts of 64 columns."""
    return


def _shift_of(shifts, column):
    return load(shifts, column)


@inlined
def _store_factors(results, width, column, row, bounds, shifts):
    """Store what applying needs."""
    store(results, column, row.inverse)
    store(results, width + column, row.scale)
    store(results, 2 * width + column, select(row.common, splat(bounds.one), bounds.zero))


def _store_centred(results, width, column, row, bounds, shifts):
    _store_factors(results, width, column, row, bounds, shifts)
    store(results, 4 * width + column, row.mean)
    store(results, 5 * width + column, row.unlift)


@inlined
def _load_factors(results, width, column, bounds, shifts):
    """What applying needs; a field that is not used is not loaded."""
    common = load(results, 2 * width + column) == bounds.one
    return _math.Factors(load(results, width + column), load(results, column), common)


def _load_centred(results, width, column, bounds, shifts):
    row = _load_factors(results, width, column, bounds, shifts)
    shift, mean, unlift = load(shifts, column), load(results, 4 * width + column), load(results, 5 * width + column)
    return _math.CentredFactors(row.scale, row.inverse, row.common, shift, mean, unlift)


sum_chain = about(_sum_squares, _sum_moments)
join_sums = about(_join_squares, _join_moments)
store_sums = about(_store_squares, _store_moments)
squares_of = about(_squares_alone, _squares_beside)
squares_in = about(_squares_in, _squares_in_moments)
block_of = about(_block_power, _block_moments)
store_node = about(_store_power, _store_node)
load_node = about(_load_power, _load_node)
shift_of = about(_no_shift_of, _shift_of)
store_factors = about(_store_factors, _store_centred)
load_factors = about(_load_factors, _load_centred)
