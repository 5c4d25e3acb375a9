"""The result of a row, given its factors: 64 elements at a time, or one; streamed past the caches or not."""

from typing import Any, NamedTuple

from .._vocabulary import magnitude, maximum
from .memory import get, itemsize, load, load_first, pointer_to, put, shifted, store, store_first, stream
from .simd import LANES, any_lane, inlined, splat
from .sources import keep, keep_first, keep_one, moved, read, read_first, read_one, times


# ------------------------------------------------------------------------------------------------ weights and biases
class Parameter(NamedTuple):
    """A weight or bias: a number for each element, `step` elements apart; `step` 0: the same for all, 64 times."""

    pointer: Any
    step: Any


@inlined
def parameter(array, room):
    """A weight or bias as kernels read it; what is one number for all is spread in `room`."""
    pointer, step = pointer_to(array), array.strides[0] // array.itemsize
    if step == 0:
        store(room, 0, splat(pointer[0]))
        pointer = room
    return Parameter(pointer, step)


@inlined
def lanes_of(parameter, j):
    """Those of 64 elements."""
    return load(parameter.pointer, j * parameter.step)


@inlined
def first_of(parameter, j, count):
    """Those of the first `count` of 64 elements."""
    return load_first(parameter.pointer, j * parameter.step, count)


@inlined
def one_of(parameter, j):
    """That of one element."""
    return get(shifted(parameter.pointer, j * parameter.step * itemsize(parameter.pointer)))


@inlined
def all_light(weight, n, bounds):
    """True if no weight is heavy: checked once a call, since the common path does not look."""
    heaviest = splat(bounds.zero)
    j = 0
    while j < n:
        if j + LANES <= n:
            heaviest = maximum(magnitude(lanes_of(weight, j)), heaviest)
        else:
            heaviest = maximum(magnitude(first_of(weight, j, n - j)), heaviest)
        j += LANES if weight.step else n
    return not any_lane(heaviest > bounds.heavy)


# ------------------------------------------------------------------------------------------------- rows, or part of them
@inlined
def write(out, j, values, streaming):
    """Store 64 elements."""
    if streaming:
        stream(out, j, values)
    else:
        store(out, j, values)


@inlined
def apply_span(apply, source, weight, bias, row, out, start, stop, streaming, keep_streaming):
    """The result for elements `start` to `stop` of a common row."""
    j = start
    while j + LANES <= stop:
        values = read(source, j)
        y = apply(values, row, lanes_of(weight, j), lanes_of(bias, j))
        keep(source, j, values, keep_streaming)
        write(out, j, y, streaming)
        j += LANES
    if j < stop:
        count = stop - j
        values = read_first(source, j, count)
        y = apply(values, row, first_of(weight, j, count), first_of(bias, j, count))
        keep_first(source, j, count, values)
        store_first(out, j, count, y)


@inlined
def apply_each(apply, source, stride, weight, bias, row, out, out_stride, n, bounds):
    """The result for a row of any kind and any strides, element by element: rare, so that it shall not cost compile time."""
    for j in range(n):
        here = moved(source, times(stride, j))
        value = read_one(here)
        y = apply(value, row, one_of(weight, j), one_of(bias, j), bounds)
        keep_one(here, value)
        put(shifted(out, j * out_stride), y)
