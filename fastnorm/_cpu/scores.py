"""Scores of queries and keys, what the options make of them, and their weights."""

from .. import _math
from .._vocabulary import EXPONENTIALS, fma, magnitude, select
from . import attention_layout as layout
from .attention_layout import KEYS, NO_MASK
from .memory import load, load_first, prefetch, shifted, stack_like, store
from .simd import LANES, as_number, converted, first_lanes, inlined, lane_numbers, largest_lane, splat, sum_lanes
from .tile import ROWS, TURNED, add_products, store_quarters, store_tile, tile_width, turn_over, zero_tile

SQUARE = TURNED * TURNED


def scoring(computed, biased):
    """The functions about scores, for a dtype of the computation."""
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8

    @inlined
    def products(queries, head_size, turned, scores):
        """Six queries with 64 keys that were turned over: a chain of products for each."""
        for column in range(0, KEYS, tile_width(scores)):
            tile = zero_tile(scores, ROWS)
            keys = shifted(turned, column * size)
            for j in range(head_size):
                tile = add_products(tile, shifted(queries, j * size), head_size, keys)
                keys = shifted(keys, KEYS * size)
            store_tile(tile, shifted(scores, column * size), KEYS)

    @inlined
    def dots(queries, rows, keys, key_stride, count, head_size, scores, values, value_stride):
        """Some queries with keys as they lie in memory: 64 chains for each product, whose trees 16 keys take together.

        Meanwhile the values are asked for, which will be needed next.
        """
        partial, turned = stack_like(scores, SQUARE), stack_like(scores, SQUARE)
        for first in range(0, count, TURNED):
            some = min(TURNED, count - first)
            for i in range(rows):
                query, here = shifted(queries, i * head_size * size), keys
                for key in range(some):
                    chains = splat(numbers.zero)
                    j = 0
                    while j + LANES <= head_size:
                        chains = fma(load(query, j), converted(load(here, j), numbers.zero), chains)
                        if i == 0:
                            prefetch(values, j)
                        j += LANES
                    if j < head_size:
                        rest = head_size - j
                        chains = fma(load_first(query, j, rest), converted(load_first(here, j, rest), numbers.zero), chains)
                    store_quarters(shifted(partial, key * TURNED * size), chains)
                    here = shifted(here, key_stride)
                    if i == 0:
                        values = shifted(values, value_stride)
                turn_over(partial, TURNED, turned, TURNED)
                sums = (load(turned, 0) + load(turned, 2 * LANES)) + (load(turned, LANES) + load(turned, 3 * LANES))
                store_quarters(shifted(scores, (i * KEYS + first) * size), sums)
            keys = shifted(keys, some * key_stride)

    @inlined
    def next_weights(scores, biases, plan, given, slope, first, end, position, largest, total, factor):
        """From products of one query to weights, in place; its largest score, total and factor follow.

        In `biases` stays what the scores were: minus infinity for keys that are not allowed.
        """
        values = load(scores, 0) * given[layout.SCALE]
        if plan[layout.HAS_CAP]:
            values = _math.capped(values, given[layout.CAP], numbers)
        if plan[layout.HAS_SLOPES]:
            distance = magnitude(as_number(position, numbers.zero) - lane_numbers(numbers.zero))
            values = values - slope * distance
        if plan[layout.MASK] != NO_MASK:
            values = biased(values, load(biases, 0))
        if first > 0 or end < KEYS:
            values = select(first_lanes(max(end, 0)), values, numbers.nothing)
            values = select(first_lanes(max(first, 0)), numbers.nothing, values)
        store(biases, 0, values)
        step = _math.next_step(largest[0], largest_lane(values), numbers)
        weights = _math.weight_of(values, step.against, numbers)
        store(scores, 0, weights)
        largest[0] = step.largest
        total[0] = fma(total[0], step.factor, sum_lanes(weights))
        factor[0] = step.factor

    return dots, products, next_weights
