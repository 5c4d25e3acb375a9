"""Scores of queries and keys, what the options make of them, and their weights."""

from .. import _math
from .._vocabulary import EXPONENTIALS, fma, select
from . import attention_layout as layout
from .attention_layout import KEYS, NO_MASK, padded
from .memory import load, load_first, prefetch, shifted, stack_like, store
from .simd import LANES, as_number, converted, first_lanes, inlined, lane_numbers, largest_lane, splat, sum_lanes
from .tile import ROWS, TURNED, add_products, add_tile, store_quarters, store_tile, tile_width, turn_over, zero_tile

SQUARE = TURNED * TURNED
SQUARES = 4 * SQUARE
CHAIN = 64  # features: of heads of 128 it halves the variance of what summing loses, and takes 1 % of the time


def scoring(computed):
    """The functions about scores, for a dtype of the computation."""
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8

    @inlined
    def products(queries, head_size, turned, scores):
        """Six queries with 64 keys that were turned over: a chain of products for each 64 features."""
        for column in range(0, KEYS, tile_width(scores)):
            keys, target = shifted(turned, column * size), shifted(scores, column * size)
            for first in range(0, max(head_size, 1), CHAIN):
                tile = zero_tile(scores, ROWS)
                for j in range(first, min(first + CHAIN, head_size)):
                    tile = add_products(tile, shifted(queries, j * size), padded(head_size), keys)
                    keys = shifted(keys, KEYS * size)
                if first > 0:
                    tile = add_tile(tile, target, KEYS)
                store_tile(tile, target, KEYS)

    @inlined
    def read_key(keys, j, head_size):
        """64 features of a key, in the dtype of the computation."""
        if j + LANES <= head_size:
            return converted(load(keys, j), numbers.zero)
        return converted(load_first(keys, j, head_size - j), numbers.zero)

    @inlined
    def dots(queries, rows, keys, key_stride, count, head_size, scores, values, value_stride):
        """Some queries with keys as they lie in memory: 64 chains for each product, whose trees 16 keys take together.

        Four queries at a time share the reading of a key; `queries` has whole registers for each, filled with zeros, and rows
        up to six. Meanwhile the values are asked for, which will be needed next.
        """
        partial, turned = stack_like(scores, SQUARES), stack_like(scores, SQUARE)
        across = padded(head_size) * size
        for first in range(0, count, TURNED):
            some = min(TURNED, count - first)
            for row in range(0, rows, 4):
                here, query = keys, shifted(queries, row * across)
                second = shifted(query, across if row + 1 < rows else 0)
                third = shifted(query, 2 * across if row + 2 < rows else 0)
                fourth = shifted(query, 3 * across if row + 3 < rows else 0)
                for key in range(some):
                    a = b = c = d = splat(numbers.zero)
                    for j in range(0, head_size, LANES):
                        features = read_key(here, j, head_size)
                        a = fma(load(query, j), features, a)
                        if rows > 1:
                            b = fma(load(second, j), features, b)
                            c = fma(load(third, j), features, c)
                            d = fma(load(fourth, j), features, d)
                        if row == 0:
                            prefetch(values, j)
                    place = shifted(partial, key * TURNED * size)
                    store_quarters(place, a)
                    if rows > 1:
                        store_quarters(shifted(place, SQUARE * size), b)
                        store_quarters(shifted(place, 2 * SQUARE * size), c)
                        store_quarters(shifted(place, 3 * SQUARE * size), d)
                    here = shifted(here, key_stride)
                    if row == 0:
                        values = shifted(values, value_stride)
                for i in range(min(4, rows - row)):
                    turn_over(shifted(partial, i * SQUARE * size), TURNED, turned, TURNED)
                    sums = (load(turned, 0) + load(turned, 2 * LANES)) + (load(turned, LANES) + load(turned, 3 * LANES))
                    store_quarters(shifted(scores, ((row + i) * KEYS + first) * size), sums)
            keys = shifted(keys, some * key_stride)

    @inlined
    def scores_of(products, biases, plan, given, slope, lift, before, first, end, position):
        """The scores of one query, in place of its biases: minus infinity for keys not allowed. Returns the largest.

        `before` is the lift before the soft cap, which leaves nothing to lift.
        """
        values = load(products, 0) * given[layout.SCALE]
        if plan[layout.ATTEMPT] < layout.LIFTED:
            values = _math.infinite_as_nan(values, numbers)
        if plan[layout.HAS_CAP]:
            values = _math.capped(_math.lifted(values, before), given[layout.CAP], numbers)
        if plan[layout.HAS_SLOPES]:
            here, keys = as_number(position, numbers.zero), lane_numbers(numbers.zero)
            values = _math.with_distance(values, _math.lowered(slope, lift, numbers), here, keys, numbers)
        if plan[layout.MASK] != NO_MASK:
            values = _math.with_bias(values, _math.lowered(load(biases, 0), lift, numbers), numbers)
        if first > 0 or end < KEYS:
            values = select(first_lanes(max(end, 0)), values, numbers.nothing)
            values = select(first_lanes(max(first, 0)), numbers.nothing, values)
        store(biases, 0, values)
        return largest_lane(values)

    @inlined
    def weights_of(scores, against, lift, attempt, shrink, weights):
        """The weights of one query's scores. Returns their sum."""
        distances = load(scores, 0) - against
        if attempt > layout.FIRST:
            values = _math.exponential(_math.lifted(distances, lift), numbers)
            store(weights, 0, values * shrink)
        else:
            values = _math.exponential(distances, numbers)
            store(weights, 0, values)
        return sum_lanes(values)

    return dots, products, scores_of, weights_of
