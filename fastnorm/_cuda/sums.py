"""The statistics of a row, summed by a block of threads about zero or, for norms that are centred, about a shift.

The order of summation depends on the length of a row alone.
"""

from numba import cuda

from .. import _math
from .._vocabulary import select
from .block import ALL, CHAINS, WARP, as_number, barrier, inlined, leave_for_block, sum_block, sum_warp
from .tiles import kind_of, layout, moves

GUESSED = 64  # elements whose mean is a row's shift: what the first warp holds in its first load
TOTAL, SHIFT, SHARED = WARP, 2 * WARP, 2 * WARP + 1  # of a centred norm's shared memory, after the squares; and all of it


# -------------------------------------------------------------------- what has no total is about zero, and stays there
@inlined
def _power(scale, count, total, squares, zero):
    return _math.Power(scale, count, squares, zero)


@inlined
def _moments(scale, count, total, squares, zero):
    return _math.Moments(scale, count, total, squares, zero)


@inlined
def _never(row, bounds):
    return False


@inlined
def _same(row, shift, bounds):
    return shift


def formulas_of(norm):
    """`statistics` of the sums over a row, `is_off_centre` and `better_guess` of the shift that they are about."""
    if _math.NORMS[norm].centred:
        return _moments, _math.is_off_centre, _math.better_guess
    return _power, _never, _same


def guess(dtype, warp):
    """The function that guesses the shift of a row from its first 64 elements."""
    _, _, _, bounds, _, width, _ = kind_of(dtype)
    zero, one = bounds.zero, bounds.one
    wait = barrier(warp)

    @inlined
    def guess_shift(tile, n, shared):
        """The same in every thread of the team. The first warp works it out from the first load of its tile."""
        first = cuda.shfl_sync(ALL, tile[0], 0)
        count = min(n, GUESSED)
        total = zero
        for i in range(width):
            distance = _math.scaled_distance(tile[i], first, bounds.fraction, bounds)
            total += select(width * cuda.threadIdx.x + i < count, distance, zero)
        total = sum_warp(total)
        if cuda.threadIdx.x == 0:
            shared[SHIFT] = _math.guess_mean(first, total, as_number(count, one), bounds)
        wait()
        return shared[SHIFT]

    return guess_shift


def measure(norm, dtype, aligned, whole, added, warp):
    """The functions that sum a row over a block, and that find its statistics: `sum_all`, `measure_row`."""
    centred = _math.NORMS[norm].centred
    statistics, is_off_centre, better_guess = formulas_of(norm)
    sum_row, wait = row_sums(norm, dtype, aligned, whole, added), barrier(warp)
    bounds = kind_of(dtype).bounds
    zero, one = bounds.zero, bounds.one

    @inlined
    def sum_all(x, residual, kept, n, tile, shift, scale, fresh, shared):
        """The sums over the block of `sum_row`."""
        total, squares = sum_row(x, residual, kept, n, tile, shift, scale, fresh)
        leave_for_block(squares, shared, 0)
        if centred:
            leave_for_block(total, shared, TOTAL)
        wait()
        squares = sum_block(shared, 0, zero)
        if centred:
            total = sum_block(shared, TOTAL, zero)
        return total, squares

    @inlined
    def measure_row(x, residual, kept, n, tile, shift, lifted_eps, shared):
        """The statistics and the shift they are about: the given one, or a better one if that was a bad guess.

        What is decided here is decided in all threads alike.
        """
        fresh = True
        while True:
            total, squares = sum_all(x, residual, kept, n, tile, shift, one, fresh, shared)
            scale = _math.rescue_scale(squares, lifted_eps, bounds)
            if scale != one:
                wait()
                total, squares = sum_all(x, residual, kept, n, tile, shift, scale, False, shared)
            row = statistics(scale, as_number(n, one), total, squares, zero)
            if not (fresh and is_off_centre(row, bounds)):
                return row, shift
            shift, fresh = better_guess(row, shift, bounds), False
            wait()

    return sum_all, measure_row


def row_sums(norm, dtype, aligned, whole, added):
    """The function that sums a thread's share of a row."""
    centred = _math.NORMS[norm].centred
    _, kind, _, bounds, _, width, held = kind_of(dtype)
    zero = bounds.zero
    chains = CHAINS // 2 if centred else CHAINS  # of each sum
    place, count = layout(dtype)
    _, load_tile, add_tile, store_tile = moves(dtype, aligned)

    @inlined
    def distance(tile, start, n, k, shift, scale):
        """From the shift, scaled. Past the end of a row are zeros, but not at a distance of 0 from a shift."""
        if centred:
            inside = place(k) + (0 if aligned else k % width) < count(start, n)  # aligned, a load is inside or not
            return select(inside, _math.scaled_distance(tile[k], shift, scale, bounds), zero)
        return tile[k] * scale

    @inlined
    def sum_tile(tile, start, n, shift, scale):
        """Sums of the distances that the thread holds, and of their squares: chains side by side, joined in a tree."""
        totals, squares = cuda.local.array(chains, kind), cuda.local.array(chains, kind)
        for c in range(chains):
            totals[c], squares[c] = zero, zero
        for k in range(0, held, chains):
            for c in range(chains):
                d = distance(tile, start, n, k + c, shift, scale)
                squares[c] = _math.accumulate_square(squares[c], d)
                if centred:
                    totals[c] += d
        return tree(totals), tree(squares)

    @inlined
    def tree(sums):
        if chains == 2:
            return sums[0] + sums[1]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    @inlined
    def sum_row(x, residual, kept, n, tile, shift, scale, fresh):
        """Sums of distances and of their squares. If `whole`, the row is in the tile already.

        A thread of a block of 1024 adds up 1024 pieces of a row of 2**24; in plain float32 a row of equal numbers would be
        off by hundreds of units in the last place.

        A long row of x + residual is kept while it is summed for the first time, when it is `fresh`, and read back later: so
        `kept` may be x or residual, and no thread reads what another one has written.
        """
        if whole:
            return sum_tile(tile, 0, n, shift, scale)
        source = x if fresh else kept
        total, total_lost, squares, squares_lost, start = zero, zero, zero, zero, 0
        while start < n:
            load_tile(source, start, n, tile)
            if added and fresh:
                add_tile(residual, start, n, tile)
                store_tile(kept, start, n, tile)
            tile_total, tile_squares = sum_tile(tile, start, n, shift, scale)
            total, total_lost = _math.add_exact(_math.Exact(total, total_lost), tile_total)
            squares, squares_lost = _math.add_exact(_math.Exact(squares, squares_lost), tile_squares)
            start += held * cuda.blockDim.x
        return _math.with_lost(_math.Exact(total, total_lost)), _math.with_lost(_math.Exact(squares, squares_lost))

    return sum_row
