"""The kernel that normalises columns: rows along an axis that is not last, 32 of them side by side in a block.

A lane takes a column, and a warp the part of it that a warp of `rows` would take of a row, thread after thread: so each sum has
the same terms in the same order, and a row the same bits, however its elements lie. A warp reads whole lines of memory; what
has been read for the sums is read once more for the result.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import select
from .block import CHAINS, WARP, as_number, get, inlined, is_given, put, shifted
from .launch import HALF, MOST_THREADS
from .rows import source
from .sums import GUESSED, formulas_of
from .tiles import kind_of

LEVELS = 5  # of a tree over 32 numbers
ROOM = MOST_THREADS  # numbers: one for each column and warp of a row


def tree_over(pair_at):
    """The function that sums the pairs ``pair_at(i, ...)`` over 32 numbers i, each in the order of `block.sum_warp`."""

    @inlined
    def tree(zero, firsts, seconds, *args):
        first = second = zero
        i = 0
        while i < WARP:
            first, second = pair_at(i, *args)
            for level in range(LEVELS):  # as a binary counter carries
                below = (1 << level) - 1
                if i & below == below:
                    if (i >> level) & 1:
                        first, second = firsts[level] + first, seconds[level] + second
                    else:
                        firsts[level], seconds[level] = first, second
            i += 1
        return first, second

    return tree


def columns(norm, dtype):
    """Kernel: normalise columns of `n` elements, `step` bytes from one to the next, `inner` columns side by side."""
    centred, settle, apply_any = _math.NORMS[norm].centred, _math.NORMS[norm].settle, _math.NORMS[norm].apply_any
    _, kind, _, bounds, size, width, held = kind_of(dtype)
    zero, one = bounds.zero, bounds.one
    statistics, is_off_centre, better_guess = formulas_of(norm)
    chains = CHAINS // 2 if centred else CHAINS  # of each sum
    integer = types.int64
    n_totals = ROOM if centred else 1

    @inlined
    def distance(x, step, j, n, shift, scale):
        """Of element j from the shift, scaled; 0 past the end."""
        if j >= n:
            return zero
        value = get(shifted(x, j * step), 0)
        if centred:
            return _math.scaled_distance(value, shift, scale, bounds)
        return value * scale

    @inlined
    def sum_share(t, x, step, n, shift, scale, warp, warps):
        """What thread t of one of `warps` would sum of a row: totals, squares, as in `row_sums`."""
        threads, thread = integer(WARP * warps), integer(WARP * warp + t)
        totals, squares = cuda.local.array(chains, kind), cuda.local.array(chains, kind)
        exact_total, exact_square, start = _math.Exact(zero, zero), _math.Exact(zero, zero), integer(0)
        while start < n:
            for c in range(chains):
                totals[c], squares[c] = zero, zero
            for k in range(held):
                j = start + width * (thread + k // width * threads) + k % width
                d = distance(x, step, j, n, shift, scale)
                squares[k % chains] = _math.accumulate_square(squares[k % chains], d)
                if centred:
                    totals[k % chains] += d
            if chains == 2:
                tile_total, tile_squares = totals[0] + totals[1], squares[0] + squares[1]
            else:
                tile_total, tile_squares = zero, (squares[0] + squares[1]) + (squares[2] + squares[3])
            exact_total = _math.add_exact(exact_total, tile_total)
            exact_square = _math.add_exact(exact_square, tile_squares)
            start += held * threads
        return _math.with_lost(exact_total), _math.with_lost(exact_square)

    @inlined
    def left_by_warp(w, totals, squares, warps):
        place = w * WARP + cuda.threadIdx.x
        if w >= warps:
            return zero, zero
        return totals[place] if centred else zero, squares[place]

    @inlined
    def guessed_share(t, x, step, first, count):
        """What thread t finds of the distances from the first element."""
        total = zero
        for i in range(width):
            j = integer(width * t + i)
            near = select(j < count, j, integer(0))
            d = _math.scaled_distance(get(shifted(x, near * step), 0), first, bounds.fraction, bounds)
            total += select(j < count, d, zero)
        return total, zero

    sum_warp, join_warps, sum_guessed = tree_over(sum_share), tree_over(left_by_warp), tree_over(guessed_share)

    @inlined
    def sum_all(x, step, n, shift, scale, warps, totals, squares, firsts, seconds):
        """Both sums over a column, the same bits in every warp."""
        cuda.syncthreads()
        warp = cuda.threadIdx.y
        while warp < warps:
            total, square = sum_warp(zero, firsts, seconds, x, step, n, shift, scale, warp, warps)
            place = warp * WARP + cuda.threadIdx.x
            squares[place] = square
            if centred:
                totals[place] = total
            warp += cuda.blockDim.y
        cuda.syncthreads()
        return join_warps(zero, firsts, seconds, totals, squares, warps)

    def kernel(x, x_step, x_outer, out, out_step, out_outer, weight, bias, eps, lifted_eps, n, inner, blocks, warps):
        totals, squares = cuda.shared.array(n_totals, kind), cuda.shared.array(ROOM, kind)
        firsts, seconds = cuda.local.array(LEVELS, kind), cuda.local.array(LEVELS, kind)
        outer = integer(cuda.blockIdx.x) // blocks
        column = integer(cuda.blockIdx.x) % blocks * WARP + cuda.threadIdx.x
        inside = column < inner
        column = min(column, inner - 1)  # a lane past the last column does as the last one, and stores nothing
        x, out = shifted(x, outer * x_outer + column * size), shifted(out, outer * out_outer + column * size)
        shift = zero
        if centred:
            count = min(n, integer(GUESSED))
            first = get(x, 0)
            guessed, _ = sum_guessed(zero, firsts, seconds, x, x_step, first, count)
            shift = _math.guess_mean(first, guessed, as_number(count, one), bounds)
        fresh = True
        while True:
            total, square = sum_all(x, x_step, n, shift, one, warps, totals, squares, firsts, seconds)
            scale = _math.rescue_scale(square, lifted_eps, bounds)
            if cuda.syncthreads_or(types.int32(scale != one)) != 0:
                total, square = sum_all(x, x_step, n, shift, scale, warps, totals, squares, firsts, seconds)
            row = statistics(scale, as_number(n, one), total, square, zero)
            again = fresh and is_off_centre(row, bounds)
            if cuda.syncthreads_or(types.int32(again)) == 0:
                break
            if again:
                shift = better_guess(row, shift, bounds)
            fresh = False
        factors = settle(row, shift, eps, lifted_eps, bounds)
        j = integer(cuda.threadIdx.y)
        while j < n:
            heavy = weight[j] if is_given(weight) else one
            added = bias[j] if is_given(bias) else zero
            value = apply_any(get(shifted(x, j * x_step), 0), factors, heavy, added, bounds)
            if inside:
                put(shifted(out, j * out_step), 0, value)
            j += cuda.blockDim.y

    return source(kernel, dtype, (HALF, 1))  # one block a multiprocessor will do: told more, ptxas spills
