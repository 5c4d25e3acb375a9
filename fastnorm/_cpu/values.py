"""Weighted sums of values."""

from .._vocabulary import EXPONENTIALS, fma
from .attention_layout import KEYS
from .memory import load, prefetch, shifted, store
from .simd import LANES, inlined, splat
from .tile import ROWS, add_products, load_tile, store_tile, tile_width


def summing(computed):
    """The functions that add values to sums, for a dtype of the computation."""
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8

    def adding(rows):
        """`add_values` for so many rows."""

        @inlined
        def add(scores, values, stride, first, end, value_size, outputs, width, factors, following, following_stride):
            """Weighted sums of values of some keys: they are scaled, then grow by each value times its weight.

            Meanwhile the keys are asked for that will be needed next, if there are any.
            """
            for column in range(0, value_size, tile_width(outputs)):
                here = shifted(outputs, column * size)
                tile = load_tile(here, width, factors, rows)
                across = shifted(values, (first * stride + column) * size)
                ahead = following
                for key in range(first, end):
                    tile = add_products(tile, shifted(scores, key * size), KEYS, across)
                    across = shifted(across, stride * size)
                    if following_stride != 0:
                        prefetch(ahead, column)
                        ahead = shifted(ahead, following_stride)
                store_tile(tile, here, width)

        return add

    add_to_four, add_to_six = adding(4), adding(ROWS)

    @inlined
    def add_values(present, scores, values, stride, first, end, value_size, outputs, width, factors, ahead, ahead_stride):
        """The same, in the smaller tile if it holds the rows."""
        if present <= 4:
            add_to_four(scores, values, stride, first, end, value_size, outputs, width, factors, ahead, ahead_stride)
        else:
            add_to_six(scores, values, stride, first, end, value_size, outputs, width, factors, ahead, ahead_stride)

    @inlined
    def add_allowed_values(scores, biased_scores, values, first, end, outputs, width, factors, rows):
        """The same where a value is not a number: those that a row may not see are left out, not multiplied by 0."""
        for i in range(rows):
            for column in range(0, width, LANES):
                total = load(outputs, i * width + column) * factors[i]
                for key in range(first, end):
                    if biased_scores[i * KEYS + key] != numbers.nothing:
                        total = fma(splat(scores[i * KEYS + key]), load(values, key * width + column), total)
                store(outputs, i * width + column, total)

    return add_values, add_allowed_values
