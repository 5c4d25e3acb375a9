"""The kernels that normalise very long rows, many blocks a row: sums of pieces, what follows from all of a row, the result.

Rows of a megabyte are few: a block each would leave most of a device idle. Every kernel reads what the one before has left, so
none waits within. A row whose mean was badly guessed, or that left the range, is summed again by one block.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .block import add_exactly, as_number, inlined, shifted, with_lost
from .launch import PIECE
from .norms import FOUND
from .rows import application, first_load, shared_by, source
from .sums import formulas_of, guess, measure
from .tiles import kind_of, moves


def _beginning(norm, dtype, aligned):
    """The function that guesses a row's shift, the same in each of its blocks."""
    centred = _math.NORMS[norm].centred
    zero = kind_of(dtype).bounds.zero
    load_guessed, guess_shift = first_load(dtype, aligned), guess(dtype, warp=False)

    @inlined
    def shift_of(x, n, tile, shared):
        if centred:
            load_guessed(x, x, n, tile)
            return guess_shift(tile, n, shared)
        return zero

    return shift_of


def sum_pieces(norm, dtype, aligned):
    """Kernel: both sums of each piece, about the shift of its row."""
    _, kind, _, bounds, size, _, held = kind_of(dtype)
    one, n_shared, piece = bounds.one, shared_by(norm), PIECE // bounds.one.itemsize
    shift_of = _beginning(norm, dtype, aligned)
    sum_all, _ = measure(norm, dtype, aligned, False, False, False)

    def kernel(x, x_stride, n, pieces, sums):
        shared, tile = cuda.shared.array(n_shared, kind), cuda.local.array(held, kind)
        row, first = types.int64(cuda.blockIdx.x) // pieces, types.int64(cuda.blockIdx.x) % pieces * piece
        x = shifted(x, row * x_stride)
        shift = shift_of(x, n, tile, shared)
        x = shifted(x, first * size)
        total, squares = sum_all(x, x, x, min(n - first, types.int64(piece)), tile, shift, one, True, shared)
        if cuda.threadIdx.x == 0:
            sums[2 * cuda.blockIdx.x], sums[2 * cuda.blockIdx.x + 1] = total, squares

    return source(kernel, dtype)


def join_pieces(norm, dtype, aligned):
    """Kernel: the statistics of each row, a block a row."""
    _, kind, _, bounds, _, _, held = kind_of(dtype)
    zero, one, n_shared = bounds.zero, bounds.one, shared_by(norm)
    statistics, is_off_centre, _ = formulas_of(norm)
    centred = _math.NORMS[norm].centred
    shift_of = _beginning(norm, dtype, aligned)
    _, measure_row = measure(norm, dtype, aligned, False, False, False)

    def kernel(x, x_stride, lifted_eps, n, pieces, sums, found):
        shared, tile = cuda.shared.array(n_shared, kind), cuda.local.array(held, kind)
        row = types.int64(cuda.blockIdx.x)
        x, place = shifted(x, row * x_stride), row * pieces * 2
        shift = shift_of(x, n, tile, shared)
        total, total_lost, squares, squares_lost = zero, zero, zero, zero
        for i in range(pieces):
            total, total_lost = add_exactly(total, total_lost, sums[place + 2 * i])
            squares, squares_lost = add_exactly(squares, squares_lost, sums[place + 2 * i + 1])
        squares = with_lost(squares, squares_lost)
        whole = statistics(one, as_number(n, one), with_lost(total, total_lost), squares)
        if _math.rescue_scale(squares, lifted_eps, bounds) != one or is_off_centre(whole, bounds):
            cuda.syncthreads()
            whole, shift = measure_row(x, x, x, n, tile, shift, lifted_eps, shared)
        if cuda.threadIdx.x == 0:
            found[FOUND * row], found[FOUND * row + 1] = whole.scale, whole.total if centred else zero
            found[FOUND * row + 2], found[FOUND * row + 3] = whole.squares, shift

    return source(kernel, dtype)


def apply_pieces(norm, dtype, aligned):
    """Kernel: the result of each piece."""
    _, kind, _, bounds, _, _, held = kind_of(dtype)
    one, piece = bounds.one, PIECE // bounds.one.itemsize
    settle, statistics = _math.NORMS[norm].settle, formulas_of(norm)[0]
    _, load_tile, _, _ = moves(dtype, aligned)
    apply_tile = application(norm, dtype, aligned, False)

    def kernel(x, x_stride, out, out_stride, weight, bias, eps, lifted_eps, n, pieces, found):
        tile = cuda.local.array(held, kind)
        row, start = types.int64(cuda.blockIdx.x) // pieces, types.int64(cuda.blockIdx.x) % pieces * piece
        x, out = shifted(x, row * x_stride), shifted(out, row * out_stride)
        scale, total, squares = found[FOUND * row], found[FOUND * row + 1], found[FOUND * row + 2]
        whole = statistics(scale, as_number(n, one), total, squares)
        factors = settle(whole, found[FOUND * row + 3], eps, lifted_eps, bounds)
        stop = min(n, start + piece)
        while start < stop:
            load_tile(x, start, n, tile)
            apply_tile(tile, weight, bias, n, 1, factors, out, start, n)
            start += held * cuda.blockDim.x

    return source(kernel, dtype)
