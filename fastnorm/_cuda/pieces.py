"""The kernels that normalise very long rows, many blocks a row: sums of pieces, what follows from all of a row, the result.

Rows of a megabyte are few: a block each would leave most of a device idle. Every kernel reads what the one before has left, so
none waits within. A row whose mean was badly guessed, or that left the range, is summed again by one block.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .block import as_number, shifted
from .launch import HALF, PIECE
from .norms import FOUND, SUMMED
from .rows import application, first_load, shared_by, source
from .sums import formulas_of, guess, measure
from .tiles import kind_of, moves


def sum_pieces(norm, dtype, aligned):
    """Kernel: both sums of each piece, and the shift of its row that they are about."""
    _, kind, _, bounds, size, _, held = kind_of(dtype)
    zero, one, n_shared, piece = bounds.zero, bounds.one, shared_by(norm), PIECE // bounds.one.itemsize
    centred, load_guessed, guess_shift = _math.NORMS[norm].centred, first_load(dtype, aligned), guess(dtype, warp=False)
    sum_all, _ = measure(norm, dtype, aligned, False, False, False)

    def kernel(x, x_stride, n, pieces, sums):
        shared, tile = cuda.shared.array(n_shared, kind), cuda.local.array(held, kind)
        row, first = types.int64(cuda.blockIdx.x) // pieces, types.int64(cuda.blockIdx.x) % pieces * piece
        x = shifted(x, row * x_stride)
        shift = zero
        if centred:
            load_guessed(x, x, n, tile)
            shift = guess_shift(tile, n, shared)
        x = shifted(x, first * size)
        total, squares = sum_all(x, x, x, min(n - first, types.int64(piece)), tile, shift, one, True, shared)
        if cuda.threadIdx.x == 0:
            place = SUMMED * cuda.blockIdx.x
            sums[place], sums[place + 1], sums[place + 2] = total, squares, shift

    return source(kernel, dtype)


def join_pieces(norm, dtype, aligned):
    """Kernel: the statistics of each row, a block a row."""
    _, kind, _, bounds, _, _, held = kind_of(dtype)
    zero, one, n_shared = bounds.zero, bounds.one, shared_by(norm)
    statistics, is_off_centre, _ = formulas_of(norm)
    centred = _math.NORMS[norm].centred
    _, measure_row = measure(norm, dtype, aligned, False, False, False)

    def kernel(x, x_stride, lifted_eps, n, pieces, sums, found):
        shared, tile = cuda.shared.array(n_shared, kind), cuda.local.array(held, kind)
        x, first = shifted(x, cuda.blockIdx.x * x_stride), SUMMED * pieces * cuda.blockIdx.x
        shift = sums[first + 2]
        totals, squares = _math.Exact(zero, zero), _math.Exact(zero, zero)
        for i in range(first, first + SUMMED * pieces, SUMMED):
            totals = _math.add_exact(totals, sums[i])
            squares = _math.add_exact(squares, sums[i + 1])
        square = _math.with_lost(squares)
        row = statistics(one, as_number(n, one), _math.with_lost(totals), square, zero)
        if _math.rescue_scale(square, lifted_eps, bounds) != one or is_off_centre(row, bounds):
            cuda.syncthreads()
            row, shift = measure_row(x, x, x, n, tile, shift, lifted_eps, shared)
        if cuda.threadIdx.x == 0:
            place = FOUND * cuda.blockIdx.x
            found[place], found[place + 1] = row.scale, row.total if centred else zero
            found[place + 2], found[place + 3] = row.squares, shift

    return source(kernel, dtype, (HALF, 1))


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
        whole = statistics(scale, as_number(n, one), total, squares, bounds.zero)
        factors = settle(whole, found[FOUND * row + 3], eps, lifted_eps, bounds)
        stop = min(n, start + piece)
        while start < stop:
            load_tile(x, start, n, tile)
            apply_tile(tile, weight, bias, n, 1, factors, out, start, n)
            start += held * cuda.blockDim.x

    return source(kernel, dtype)
