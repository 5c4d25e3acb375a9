"""A row of a mask as what is added to scores: minus infinity forbids a key, whatever the dtype of the mask."""

from numba.core import types

from .._vocabulary import EXPONENTIALS, magnitude, maximum, minimum, select
from .attention_layout import BFLOAT16, BOOLEAN, FLOAT16, FLOAT32, KEYS
from .memory import load, load_truths, pointer_as, stack_of
from .simd import converted, inlined

WIDEST = 8 * KEYS  # bytes of 64 elements of a mask


@inlined
def bytes_of(mask):
    """Bytes of an element, by the kind of a mask."""
    if mask == BOOLEAN:
        return 1
    if mask in (FLOAT16, BFLOAT16):
        return 2
    return 4 if mask == FLOAT32 else 8


@inlined
def neighbours(source, stride, size, count, room):
    """The first `count` elements of a row, of any stride and size, one after the other."""
    for j in range(count):
        for byte in range(size):
            room[j * size + byte] = source[j * stride + byte]
    return room


def masking(computed):
    """The function that reads a row of a mask."""
    numbers = EXPONENTIALS[computed]
    double = EXPONENTIALS["float64"]

    @inlined
    def row_of_mask(source, stride, mask, count):
        """What is added to 64 scores, of which `count` are there."""
        size = bytes_of(mask)
        if stride != size or count < KEYS:
            room = stack_of(source[0], WIDEST)
            source = neighbours(source, stride, size, count, room)
        if mask == BOOLEAN:
            return select(load_truths(source, 0), numbers.zero, numbers.nothing)
        if mask == FLOAT16:
            return converted(load(pointer_as(source, types.int16), 0), numbers.zero)
        if mask == BFLOAT16:
            return converted(load(pointer_as(source, types.uint16), 0), numbers.zero)
        if mask == FLOAT32:
            return converted(load(pointer_as(source, types.float32), 0), numbers.zero)
        values = load(pointer_as(source, types.float64), 0)
        # What is finite stays so: only infinity forbids a key.
        lowest = converted(numbers.lowest, double.zero)
        within = minimum(maximum(values, lowest), double.zero - lowest)
        return converted(select(magnitude(values) <= double.zero - double.lowest, within, values), numbers.zero)

    return row_of_mask
