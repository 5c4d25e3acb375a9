"""Queries, keys and values on their way into the products: in the dtype of the computation, as neighbours, normalised."""

from .. import _math
from .._vocabulary import RANGES, fma
from .attention_layout import KEYS, NO_NORM, RMS, padded
from .blocks import no_statistics, summarise
from .layout import DEPTH
from .memory import get, itemsize, load, load_first, put, shifted, stack_of, store
from .simd import LANES, any_lane, converted, inlined, splat
from .tile import TURNED, turn_over

inlined(padded)


@inlined
def gather_rows(source, row_stride, stride, count, n, target):
    """Some rows of any strides, one after the other as they are."""
    for i in range(count):
        for j in range(n):
            target[i * n + j] = shifted(source, i * row_stride + j * stride)[0]


def reading(computed):
    """The functions that read rows, for a dtype of the computation."""
    bounds = RANGES[computed]
    nothing = no_statistics(False, bounds)

    @inlined
    def copy_row(source, stride, n, target):
        """One row, of any dtype and stride, to neighbours; `target` has room for whole registers."""
        if stride == itemsize(source):
            j = 0
            while j + LANES <= n:
                store(target, j, converted(load(source, j), bounds.zero))
                j += LANES
            if j < n:
                store(target, j, converted(load_first(source, j, n - j), bounds.zero))
        else:
            for j in range(n):
                put(shifted(target, j * itemsize(target)), converted(get(shifted(source, j * stride)), bounds.zero))
            for j in range(n, (n + LANES - 1) // LANES * LANES):
                put(shifted(target, j * itemsize(target)), bounds.zero)

    @inlined
    def normalise_row(row, n, norm, eps, lifted_eps):
        """One row, in place, without a weight."""
        tree = stack_of(nothing, DEPTH)
        statistics = summarise(_math.join_powers, tree, row, itemsize(row), n, None, lifted_eps, bounds)
        if norm == RMS:
            factors = _math.settle_rms(statistics, None, eps, lifted_eps, bounds)
        else:
            factors = _math.settle_unit(statistics, None, eps, lifted_eps, bounds)
        for j in range(0, n, LANES):
            store(row, j, _math.apply_any(load(row, j), factors, bounds.one, None, bounds))

    @inlined
    def read_rows(source, row_stride, stride, count, n, target, norm, eps, lifted_eps):
        """Some rows, each to a multiple of 64 numbers of `target`, normalised or not."""
        for _ in range(count):
            copy_row(source, stride, n, target)
            if norm != NO_NORM:
                normalise_row(target, n, norm, eps, lifted_eps)
            source = shifted(source, row_stride)
            target = shifted(target, padded(n) * itemsize(target))

    @inlined
    def are_finite(rows, count, n):
        """True if all numbers of some rows, as `read_rows` leaves them, are finite."""
        sums = splat(bounds.zero)
        for j in range(0, count * padded(n), LANES):
            sums = fma(load(rows, j), bounds.zero, sums)
        return not any_lane(sums != sums)

    @inlined
    def turn(source, row_elements, n, turned):
        """64 rows of n numbers as n columns of 64, both rounded up to whole squares."""
        size = itemsize(source)
        for first in range(0, n, TURNED):
            for key in range(0, KEYS, TURNED):
                here = shifted(source, (key * row_elements + first) * size)
                turn_over(here, row_elements, shifted(turned, (first * KEYS + key) * size), KEYS)

    return copy_row, normalise_row, read_rows, are_finite, turn
