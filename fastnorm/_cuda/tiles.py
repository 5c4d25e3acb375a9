"""A tile of a row: what the threads of a block hold of it in registers, 64 bytes each, in four loads of 128 bits.

A load is 16 bytes of the row, whether they come at once or, unaligned, element by element: alignment shows in the clock alone.
"""

from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import COMPUTED, RANGES, Range
from .block import LOAD, get, inlined, is_given, load_wide, place_of, put, quotient, rounded, shifted, store_wide
from .launch import HELD


class Kind(NamedTuple):
    """What there is to know of a dtype as it is stored, by its name in kernels."""

    stored: Any  # numba's type
    computed: Any  # that of the computation
    name: str  # of that
    bounds: Range
    size: int  # bytes of an element
    width: int  # elements of a load of 128 bits
    held: int  # elements that a thread holds in registers


def kind_of(dtype):
    """The `Kind` of a dtype."""
    name = COMPUTED[dtype]
    stored, computed = getattr(types, dtype), getattr(types, name)
    size = stored.bitwidth // 8
    return Kind(stored, computed, name, RANGES[name], size, LOAD // size, HELD * 8 // computed.bitwidth)


def layout(dtype):
    """Where elements lie within a tile, in 32 bits, as functions: ``place(k)``, ``count(start, n)``."""
    width, held = kind_of(dtype).width, kind_of(dtype).held

    @inlined
    def place(k):
        """Where the load begins whose first element is the thread's k-th."""
        return place_of(cuda.threadIdx.x, cuda.blockDim.x, k // width, width)

    @inlined
    def count(start, n):
        """How many elements of a row of n there are in the tile that begins at `start`."""
        return types.int32(min(n - start, held * cuda.blockDim.x))

    return place, count


def moves(dtype, aligned):
    """What moves elements, as functions: `load`, `load_tile`, `add_tile`, `store_tile`."""
    _, kind, _, bounds, size, width, held = kind_of(dtype)
    zero = bounds.zero
    place, count = layout(dtype)

    @inlined
    def load(x, j, stop, absent, tile, k):
        """One load, of the elements from `j` on; `absent` from `stop` on."""
        for i in range(width):
            tile[k + i] = absent
        if aligned:
            if j < stop:
                load_wide(x, j, tile, k)
        else:
            for i in range(width):
                if j + i < stop:
                    tile[k + i] = get(x, j + i)

    @inlined
    def store(out, j, stop, tile, k):
        if aligned:
            if j < stop:
                store_wide(out, j, tile, k)
        else:
            for i in range(width):
                if j + i < stop:
                    put(out, j + i, tile[k + i])

    @inlined
    def load_tile(x, start, n, tile):
        """What the thread holds of the tile that begins at `start`; zeros past the end of the row."""
        x, stop = shifted(x, start * size), count(start, n)
        for k in range(0, held, width):
            load(x, place(k), stop, zero, tile, k)

    @inlined
    def store_tile(out, start, n, tile):
        out, stop = shifted(out, start * size), count(start, n)
        for k in range(0, held, width):
            store(out, place(k), stop, tile, k)

    @inlined
    def add_tile(x, start, n, tile):
        """Add to a tile, load by load, and round as the sum will be stored."""
        x, stop = shifted(x, start * size), count(start, n)
        room = cuda.local.array(width, kind)
        for k in range(0, held, width):
            load(x, place(k), stop, zero, room, 0)
            for i in range(width):
                tile[k + i] = rounded(x, tile[k + i] + room[i])

    return load, load_tile, add_tile, store_tile


def parameters(norm, dtype, aligned, whole, grouped):
    """The function that loads weight and bias: an element for each of a row, or if `grouped` for each of its channels."""
    biased = _math.NORMS[norm].biased
    _, _, computed, bounds, _, width, _ = kind_of(dtype)
    size = bounds.zero.itemsize  # parameters are of the dtype of the computation
    step = kind_of(computed).width
    integer = types.int32 if whole else types.int64
    place, count = layout(dtype)
    load_one, _, _, _ = moves(computed, aligned)

    @inlined
    def load_several(parameter, j, stop, absent, values, k):
        """As many as elements come with one load."""
        for i in range(0, width, step):
            load_one(parameter, j + i, stop, absent, values, k + i)

    load = load_one if width == step else load_several  # the sum of two integers has 64 bits, and takes two registers

    @inlined
    def load_channels(weight, bias, channels, inner, j, weights, biases, k):
        """An element's channel is ``j // inner % channels``: two divisions a load, from there it is counted."""
        channel = quotient(j, inner)
        behind = j - channel * inner
        channel -= quotient(integer(channel), channels) * channels
        for i in range(width):
            if is_given(weight):
                weights[k + i] = weight[channel]
            if is_given(bias):
                biases[k + i] = bias[channel]
            behind += 1
            if behind == inner:
                behind = 0
                channel += 1
                if channel == channels:
                    channel = 0

    @inlined
    def load_parameters(weight, bias, channels, inner, start, n, of, weights, biases, k):
        """Those of one load, of the thread's elements from number `of` on: 1 and 0 where they are not given."""
        j, stop = place(of), count(start, n)
        for i in range(width):
            weights[k + i], biases[k + i] = bounds.one, bounds.zero
        if grouped:
            if j < stop:
                load_channels(weight, bias, integer(channels), integer(inner), integer(start + j), weights, biases, k)
        elif whole:  # a parameter that is not given ends before it begins, which takes no branch
            load(weight, j, stop if is_given(weight) else 0, bounds.one, weights, k)
            if biased:
                load(bias, j, stop if is_given(bias) else 0, bounds.zero, biases, k)
        else:  # a branch takes fewer registers
            if is_given(weight):
                load(shifted(weight, start * size), j, stop, bounds.one, weights, k)
            if biased and is_given(bias):
                load(shifted(bias, start * size), j, stop, bounds.zero, biases, k)

    return load_parameters
