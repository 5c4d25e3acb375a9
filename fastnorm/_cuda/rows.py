"""Kernels that normalise rows, a block of threads a row: rows of memory, sums of two, or groups of channels.

A row that the block can hold is read once and written once; a longer one goes through the registers in tiles, twice. A row
whose mean was badly guessed is summed again: from the registers, or read once more.
"""

import inspect

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import magnitude, maximum, minimum, select
from .block import WARP, inlined, is_given, rounded, shifted
from .launch import MOST_THREADS, SHORT_ROWS, Source
from .sums import GUESSED, SHARED, guess, measure
from .tiles import kind_of, layout, moves, parameters


def shared_by(norm):
    """Numbers that a team shares."""
    return SHARED if _math.NORMS[norm].centred else WARP


def first_load(dtype, aligned, added=False):
    """The function that loads what the shift of a row is guessed from, in those threads that hold it."""
    _, kind, _, bounds, _, width, _ = kind_of(dtype)
    place, count = layout(dtype)
    load, _, _, _ = moves(dtype, aligned)

    @inlined
    def load_guessed(x, residual, n, tile):
        j, stop = place(0), count(0, n)
        if j < GUESSED:
            load(x, j, stop, bounds.zero, tile, 0)
            if added:
                room = cuda.local.array(width, kind)
                load(residual, j, stop, bounds.zero, room, 0)
                for i in range(width):
                    tile[i] = rounded(residual, tile[i] + room[i])

    return load_guessed


def application(norm, dtype, aligned, whole, grouped=False):
    """The function that turns a tile into its result, and stores it."""
    biased, wary = _math.NORMS[norm].biased, _math.NORMS[norm].wary
    apply_common, apply_any = _math.NORMS[norm].apply_common, _math.NORMS[norm].apply_any
    _, kind, _, bounds, _, width, held = kind_of(dtype)
    # Elements whose weights are loaded at once: as many as there are registers for, beside a tile, of the 64 a thread has.
    scarce = wary and dtype == "float64" and not aligned and not whole  # a test of weights takes some
    part = width if grouped else max(width, held // (1 + biased) // (2 - whole) // (1 + scarce))
    load_parameters = parameters(norm, dtype, aligned, whole, grouped)
    _, _, _, store_tile = moves(dtype, aligned)

    @inlined
    def all_ordinary(weights):
        """True if no weight is one that `apply_common` must not meet."""
        heaviest = bounds.zero
        for k in range(part):
            heaviest = maximum(magnitude(weights[k]), heaviest)
        if heaviest > bounds.heavy:  # one after the other, as registers are short
            return False
        lightest = bounds.one
        for k in range(part):
            size = magnitude(weights[k])
            lightest = minimum(select(size == bounds.zero, bounds.one, size), lightest)
        return lightest >= bounds.light

    @inlined
    def apply_tile(tile, weight, bias, channels, inner, factors, out, start, n):
        weights, biases = cuda.local.array(part, kind), cuda.local.array(part, kind)
        for first in range(0, held, part):
            for k in range(0, part, width):
                load_parameters(weight, bias, channels, inner, start, n, first + k, weights, biases, k)
            if factors.common and (not wary or all_ordinary(weights)):
                for k in range(part):
                    tile[first + k] = apply_common(tile[first + k], factors, weights[k], biases[k])
            else:
                for k in range(part):
                    tile[first + k] = apply_any(tile[first + k], factors, weights[k], biases[k], bounds)
        store_tile(out, start, n, tile)

    return apply_tile


def schedule(norm, dtype, aligned, whole, added=False, grouped=False, warp=False):
    """What the kernels of this file have in common, as a function.

    `aligned`: arrays, strides between rows and the length of a row are multiples of 16 bytes, and so is the address of a
    weight or bias that is not `grouped`. `whole`: a block holds a row, ``n <= held * blockDim.x``. `added`: rows
    are those of x + residual, and kept. `grouped`: weight and bias have an element for each of a row's channels. `warp`: a
    row is the work of a warp, and `threadIdx.y` tells which.
    """
    centred, settle = _math.NORMS[norm].centred, _math.NORMS[norm].settle
    _, kind, _, bounds, _, _, held = kind_of(dtype)
    zero = bounds.zero
    n_shared = shared_by(norm)
    _, load_tile, add_tile, store_tile = moves(dtype, aligned)
    load_guessed, guess_shift = first_load(dtype, aligned, added), guess(dtype, warp)
    _, measure_row = measure(norm, dtype, aligned, whole, added, warp)
    apply_tile = application(norm, dtype, aligned, whole, grouped)
    room = n_shared * (SHORT_ROWS if warp else 1)

    @inlined
    def run(x, residual, kept, weight, bias, channels, inner, eps, lifted_eps, out, n):
        """Normalise a row, from where the pointers point to."""
        shared = cuda.shared.array(room, kind)
        if warp:
            shared = shared[cuda.threadIdx.y * n_shared :]
        tile = cuda.local.array(held, kind)
        if whole:
            load_tile(x, 0, n, tile)
            if added:
                add_tile(residual, 0, n, tile)
                store_tile(kept, 0, n, tile)
        elif centred:
            load_guessed(x, residual, n, tile)
        shift = guess_shift(tile, n, shared) if centred else zero
        row, shift = measure_row(x, residual, kept, n, tile, shift, lifted_eps, shared)
        factors = settle(row, shift, eps, lifted_eps, bounds)
        if whole:
            apply_tile(tile, weight, bias, channels, inner, factors, out, 0, n)
        else:
            start = 0
            while start < n:
                load_tile(kept, start, n, tile)
                apply_tile(tile, weight, bias, channels, inner, factors, out, start, n)
                start += held * cuda.blockDim.x

    return run


def rows(norm, dtype, aligned, whole):
    """Kernel: normalise rows of `n` contiguous elements."""
    run = schedule(norm, dtype, aligned, whole)

    def kernel(x, x_stride, out, out_stride, weight, bias, eps, lifted_eps, n):
        x, out = shifted(x, cuda.blockIdx.x * x_stride), shifted(out, cuda.blockIdx.x * out_stride)
        run(x, x, x, weight, bias, n, 1, eps, lifted_eps, out, n)

    return source(kernel, dtype)


def short_rows(norm, dtype, aligned, whole):
    """Kernel: normalise rows of `n` contiguous elements that a warp can hold, several a block."""
    run = schedule(norm, dtype, aligned, whole, warp=True)

    def kernel(x, x_stride, out, out_stride, weight, bias, eps, lifted_eps, n, n_rows):
        row = types.int64(cuda.blockIdx.x) * SHORT_ROWS + cuda.threadIdx.y
        if row < n_rows:
            x, out = shifted(x, row * x_stride), shifted(out, row * out_stride)
            run(x, x, x, weight, bias, n, 1, eps, lifted_eps, out, n)

    return source(kernel, dtype, WARP * SHORT_ROWS)


def sum_rows(norm, dtype, aligned, whole):
    """Kernel: keep the rows of x + residual, and normalise them."""
    run = schedule(norm, dtype, aligned, whole, added=True)

    def kernel(x, x_stride, residual, residual_stride, out, out_stride, kept, kept_stride, weight, bias, eps, lifted_eps, n):
        x, residual = shifted(x, cuda.blockIdx.x * x_stride), shifted(residual, cuda.blockIdx.x * residual_stride)
        kept, out = shifted(kept, cuda.blockIdx.x * kept_stride), shifted(out, cuda.blockIdx.x * out_stride)
        run(x, residual, kept, weight, bias, n, 1, eps, lifted_eps, out, n)

    return source(kernel, dtype)


def groups(norm, dtype, aligned, whole):
    """Kernel: normalise groups of channels, the rows from number `first` on."""
    run = schedule(norm, dtype, aligned, whole, grouped=True)
    size = kind_of(dtype).bounds.zero.itemsize

    def kernel(x, x_stride, out, out_stride, weight, bias, eps, lifted_eps, n, first, n_groups, channels, inner):
        x, out = shifted(x, cuda.blockIdx.x * x_stride), shifted(out, cuda.blockIdx.x * out_stride)
        before = (first + cuda.blockIdx.x) % n_groups * channels * size
        weight = shifted(weight, before) if is_given(weight) else weight
        bias = shifted(bias, before) if is_given(bias) else bias
        run(x, x, x, weight, bias, channels, inner, eps, lifted_eps, out, n)

    return source(kernel, dtype)


def source(kernel, dtype, threads=MOST_THREADS):
    """A kernel with the types of its arguments, which their names tell."""
    stored, computed = kind_of(dtype)[:2]
    known = dict.fromkeys(("x", "residual", "out", "kept"), types.CPointer(stored))
    known |= dict.fromkeys(("weight", "bias", "sums", "found"), types.CPointer(computed))
    known |= dict.fromkeys(("eps", "lifted_eps", "sign", "scale"), computed)
    return Source(kernel, tuple(known.get(name, types.int64) for name in inspect.signature(kernel).parameters), threads)
