"""What a row is read from: memory, or the sum of two rows, which is stored as well. One schedule serves both.

Elements of memory are a pointer. Elements of a sum are a `Sum` of three pointers: those of x + residual, rounded as they are
stored where `kept` points. A row is read once for its statistics and once for its result, and its sum is stored in the
second reading, after the same elements were read: so `kept` may be x or residual itself.
"""

from typing import Any, NamedTuple

from .edges import LINE, flush, stream_begin, stream_end
from .memory import (
    address,
    get,
    itemsize,
    load,
    load_first,
    pointer_to,
    prefetch,
    put,
    rounded,
    shifted,
    store,
    store_first,
    stream,
)
from .simd import LANES, either, inlined


class Sum(NamedTuple):
    """Pointers to the elements of a sum; or the strides that go with them."""

    x: Any
    residual: Any
    kept: Any


@inlined
def sum_of(x, residual, kept):
    """The elements of a sum, from the beginning of three arrays on."""
    return Sum(pointer_to(x), pointer_to(residual), pointer_to(kept))


@inlined
def strides_of(x, residual, kept, axis):
    """The strides that go with them, along an axis."""
    return Sum(x.strides[axis], residual.strides[axis], kept.strides[axis])


def _of(memory, total):
    """A function of a source: `memory` for a pointer, `total` for a `Sum`."""
    return either(lambda kind: getattr(kind, "instance_class", None) is Sum, total, memory)


def _read(source, j):
    """64 elements from `j` on."""
    return load(source, j)


def _read_sum(source, j):
    return rounded(source.kept, load(source.x, j) + load(source.residual, j))


def _read_first(source, j, count):
    """The first `count` of 64 elements from `j` on; the others are 0."""
    return load_first(source, j, count)


def _read_first_sum(source, j, count):
    return rounded(source.kept, load_first(source.x, j, count) + load_first(source.residual, j, count))


def _read_one(source):
    """The element that a source points to."""
    return get(source)


def _read_one_sum(source):
    return rounded(source.kept, get(source.x) + get(source.residual))


def _keep(source, j, values, streaming):
    """Store 64 elements of a sum; memory is where it is."""


def _keep_sum(source, j, values, streaming):
    if streaming:
        stream(source.kept, j, values)
    else:
        store(source.kept, j, values)


def _keep_first(source, j, count, values):
    """Store the first `count` of 64 elements of a sum."""


def _keep_first_sum(source, j, count, values):
    store_first(source.kept, j, count, values)


def _keep_one(source, value):
    """Store one element of a sum."""


def _keep_one_sum(source, value):
    put(source.kept, value)


def _moved(source, distance):
    """A source further on: by bytes, for a sum by bytes of each."""
    return shifted(source, distance)


def _moved_sum(source, distance):
    return Sum(shifted(source.x, distance.x), shifted(source.residual, distance.residual), shifted(source.kept, distance.kept))


def _times(distance, factor):
    """So many distances."""
    return distance * factor


def _times_sum(distance, factor):
    return Sum(distance.x * factor, distance.residual * factor, distance.kept * factor)


def _ask(source, j):
    """Ask for 64 elements that will be read."""
    prefetch(source, j)


def _ask_sum(source, j):
    prefetch(source.x, j)
    prefetch(source.residual, j)


def _memory_of(source):
    """Where elements lie as they are read: a pointer of the type of gathered ones."""
    return source


def _memory_of_sum(source):
    return source.kept


def _is_dense(source, stride):
    """True if elements are neighbours."""
    return stride == itemsize(source)


def _is_dense_sum(source, stride):
    dense = stride.x == itemsize(source.x) and stride.residual == itemsize(source.residual)
    return dense and stride.kept == itemsize(source.kept)


def _gathered(source, stride, count, room):
    """Elements of any stride as neighbours: where they are, if they are that, or in `room`."""
    if stride == itemsize(source):
        return source
    for j in range(count):
        shifted(room, j * itemsize(room))[0] = shifted(source, j * stride)[0]
    return room


def _gathered_sum(source, stride, count, room):
    if stride.x == itemsize(source.x) and stride.residual == itemsize(source.residual):
        for j in range(0, count, LANES):
            left = count - j if count - j < LANES else LANES
            store_first(room, j, left, load_first(source.x, j, left) + load_first(source.residual, j, left))
    else:
        for j in range(count):
            value = get(shifted(source.x, j * stride.x)) + get(shifted(source.residual, j * stride.residual))
            put(shifted(room, j * itemsize(room)), value)
    return room


def _dense(source):
    """The stride of neighbours."""
    return itemsize(source)


def _dense_sum(source):
    return Sum(itemsize(source.x), itemsize(source.residual), itemsize(source.kept))


def _is_lasting(source):
    """True if a row can be read once more after its result was written."""
    return True


@inlined
def _is_lasting_sum(source):
    return address(source.kept) != address(source.x) and address(source.kept) != address(source.residual)


def _in_step(source, stride, out, out_stride):
    """True if what a sum keeps can be streamed along with `out`: in all rows, lines begin at the same elements."""
    return False


def _in_step_sum(source, stride, out, out_stride):
    alike = itemsize(source.kept) == itemsize(out) and stride.kept == out_stride
    return alike and _is_lasting_sum(source) and (address(source.kept) - address(out)) % LINE == 0


def _keep_begin(source, values, edge, held, streaming):
    """What a sum keeps at the beginning of a row that shares a line with the row before, see `stream_begin`."""


def _keep_begin_sum(source, values, edge, held, streaming):
    if streaming:
        stream_begin(source.kept, values, edge, held)
    else:
        store(source.kept, 0, values)


def _keep_end(source, values, edge, j, n, streaming):
    """What a sum keeps at the end of a row that shares a line with the next, see `stream_end`."""


def _keep_end_sum(source, values, edge, j, n, streaming):
    if streaming:
        stream_end(source.kept, values, edge, j, n)
    else:
        store(source.kept, n - LANES, values)


def _keep_flush(source, edge, held, streaming):
    """What the row before holds back."""


def _keep_flush_sum(source, edge, held, streaming):
    if streaming:
        flush(edge, held, source.kept)


read = _of(_read, _read_sum)
read_first = _of(_read_first, _read_first_sum)
read_one = _of(_read_one, _read_one_sum)
keep = _of(_keep, _keep_sum)
keep_first = _of(_keep_first, _keep_first_sum)
keep_one = _of(_keep_one, _keep_one_sum)
moved = _of(_moved, _moved_sum)
ask = _of(_ask, _ask_sum)
memory_of = _of(_memory_of, _memory_of_sum)
is_dense = _of(_is_dense, _is_dense_sum)
gathered = _of(_gathered, _gathered_sum)
times = _of(_times, _times_sum)
is_lasting = _of(_is_lasting, _is_lasting_sum)
in_step = _of(_in_step, _in_step_sum)
dense = _of(_dense, _dense_sum)
keep_begin = _of(_keep_begin, _keep_begin_sum)
keep_end = _of(_keep_end, _keep_end_sum)
keep_flush = _of(_keep_flush, _keep_flush_sum)
