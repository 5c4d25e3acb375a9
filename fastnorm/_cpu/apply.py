"""The result of a row, given its factors: 64 elements at a time, or one; streamed past the caches or not."""

from typing import Any, NamedTuple

from .._vocabulary import magnitude, maximum, minimum, select
from .memory import get, itemsize, load, load_first, pointer_to, put, shifted, store, store_first, stream
from .simd import LANES, any_lane, either, first_lanes, inlined, splat
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


class Channels(NamedTuple):
    """A weight or bias that is the same for `run` elements, 64 at least, then another: where a row is channels times space."""

    pointer: Any
    run: Any


def _of(each, channels):
    """A function of a parameter: `channels` for `Channels`."""
    return either(lambda kind: getattr(kind, "instance_class", None) is Channels, channels, each)


def _lanes_of(parameter, j):
    """Those of 64 elements."""
    return load(parameter.pointer, j * parameter.step)


def _lanes_of_channels(parameter, j):
    channel = j // parameter.run
    left = (channel + 1) * parameter.run - j
    value = parameter.pointer[channel]
    if left >= LANES:
        return splat(value)
    return select(first_lanes(left), splat(value), parameter.pointer[channel + 1])


def _first_of(parameter, j, count):
    """Those of the first `count` of 64 elements."""
    return load_first(parameter.pointer, j * parameter.step, count)


def _first_of_channels(parameter, j, count):
    channel = j // parameter.run
    left = (channel + 1) * parameter.run - j
    following = channel + 1 if left < count else channel
    return select(first_lanes(left), splat(parameter.pointer[channel]), parameter.pointer[following])


def _one_of(parameter, j):
    """That of one element."""
    return get(shifted(parameter.pointer, j * parameter.step * itemsize(parameter.pointer)))


def _one_of_channels(parameter, j):
    return parameter.pointer[j // parameter.run]


def _moved(parameter, distance):
    """A weight or bias further on, by bytes: that of another row."""
    return Parameter(shifted(parameter.pointer, distance), parameter.step)


def _moved_channels(parameter, distance):
    return Channels(shifted(parameter.pointer, distance), parameter.run)


lanes_of = _of(_lanes_of, _lanes_of_channels)
first_of = _of(_first_of, _first_of_channels)
one_of = _of(_one_of, _one_of_channels)
moved_parameter = _of(_moved, _moved_channels)


@inlined
def all_ordinary(weight, n, bounds):
    """True if all weights are ordinary: checked once a call, since the common path does not look."""
    lightest, heaviest = splat(bounds.one), splat(bounds.zero)
    j = 0
    while j < n:
        size = magnitude(lanes_of(weight, j) if j + LANES <= n else first_of(weight, j, n - j))
        lightest, heaviest = minimum(select(size == bounds.zero, bounds.one, size), lightest), maximum(size, heaviest)
        j += LANES if weight.step else n
    return not any_lane((lightest < bounds.light) | (heaviest > bounds.heavy))


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
