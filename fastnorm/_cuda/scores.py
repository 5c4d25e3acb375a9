"""What the options of attention make of a score, and of where keys stand: the same in each kernel."""

from numba.cuda import types

from .._vocabulary import EXPONENTIALS, magnitude, maximum, minimum, select
from .attention_layout import BFLOAT16, BOOLEAN, FLOAT16
from .block import get, inlined, pointer_as, shifted


def mask_reader(computed, wide):
    """The function that reads an element of a mask as what is added to a score; minus infinity forbids.

    `wide`: the mask is of float64. In other kernels of float32 there is no float64, which most GPUs compute 64 times slower.
    """
    numbers, double = EXPONENTIALS[computed], EXPONENTIALS["float64"]
    narrow = types.float32 if computed == "float32" else types.float64

    @inlined
    def wide_bias_at(mask, kind):
        value = get(pointer_as(mask, types.float64), 0)
        lowest = types.float64(numbers.lowest)  # what is finite stays so
        within = minimum(maximum(value, lowest), double.zero - lowest)
        return narrow(select(magnitude(value) <= double.zero - double.lowest, within, value))

    @inlined
    def bias_at(mask, kind):
        if kind == BOOLEAN:
            return numbers.zero if mask[0] != 0 else numbers.nothing
        if kind == FLOAT16:
            return narrow(get(pointer_as(mask, types.int16), 0))
        if kind == BFLOAT16:
            return narrow(get(pointer_as(mask, types.uint16), 0))
        return narrow(get(pointer_as(mask, types.float32), 0))

    return wide_bias_at if wide else bias_at


def kinds_of(query, key, value, result, number):
    """The types of what each kernel of attention takes, given those of pointers to queries, keys, values, results, numbers."""
    i, four, integers = types.int64, [types.int64] * 4, types.CPointer(types.int64)
    return (
        *(query, *four, key, *four, value, *four, result, *four, number, types.CPointer(types.uint8), *four, i),
        *(integers, integers, number, number, i, i, i, i, number.dtype, number.dtype, i, number),
        *(i, i, i, i, i, i, i, number, number, number),
    )


@inlined
def seen(row, n, start, length, left, right):
    """The first key that a row may see, and the end of the last."""
    here = start + row % n
    return max(types.int64(0), here - left), min(length, here + right + 1)


@inlined
def query_at(q, head_stride, row_stride, head, n, row):
    """Where a row's query lies: rows are the queries of all heads that share keys, head after head."""
    return shifted(q, (head + row // n) * head_stride + (row % n) * row_stride)
