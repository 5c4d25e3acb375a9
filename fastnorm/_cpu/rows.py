"""Kernels that normalise along the last axis what lies in memory, not in a cache: rows, or sums of rows, of neighbours.

A row is read twice, for its statistics and for the result. A kernel takes both at once from two rows, the result of row i
and the statistics of row i + 1, so that memory is read and written at the same time as in a copy: 0.94 of the best copy's
rate, against 0.81 for one pass after the other (16384 x 4096 float32, two cores).
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES
from .apply import all_ordinary, apply_each, apply_span, lanes_of, moved_parameter, parameter, write
from .blocks import (
    add_lanes,
    block_statistics,
    climb,
    guess_shift,
    no_shift,
    no_statistics,
    no_sums,
    on_centre,
    root,
    summed,
)
from .edges import EDGE, flush, stream_begin, stream_end, to_line
from .layout import BLOCK, DEPTH
from .memory import fence, itemsize, pointer_to, shifted, stack_like, stack_of
from .simd import LANES, inlined
from .sources import (
    ask,
    dense,
    in_step,
    is_lasting,
    keep,
    keep_begin,
    keep_end,
    keep_flush,
    memory_of,
    moved,
    read,
    strides_of,
    sum_of,
)

# Elements: rows this long are asked for so far ahead (0.94 of copy instead of 0.81); rows of 512 lose by it (0.73, not 0.98).
AHEAD = 4096


def schedule(norm, computed):
    """The schedule over rows, for a norm: what all kernels of this file do."""
    norm = _math.NORMS[norm]
    bounds = RANGES[computed]
    join, settle, apply_common, apply_any, wary = norm.join, norm.settle, norm.apply_common, norm.apply_any, norm.wary
    guess = guess_shift if norm.centred else no_shift
    nothing = no_statistics(norm.centred, bounds)

    @inlined
    def apply_and_grow(source, weight, bias, row, out, j, n, streaming, keep_streaming, following, shift, tree, lifted_eps):
        """A common row's result from `j` on, and whole blocks of the tree of the row after it, 64 elements of each in turn.

        Returns how far it came: the next element, the number of blocks, and the `top` of the tree.
        """
        index, top = 0, 0
        while (index + 1) * BLOCK <= n:
            sums = no_sums(shift, bounds)
            first = index * BLOCK
            for k in range(first, first + BLOCK, LANES):
                if j + LANES <= n:
                    values = read(source, j)
                    y = apply_common(values, row, lanes_of(weight, j), lanes_of(bias, j))
                    if streaming and n >= AHEAD:
                        ask(following, k + AHEAD)
                    keep(source, j, values, keep_streaming)
                    write(out, j, y, streaming)
                    j += LANES
                sums = add_lanes(sums, read(following, k), shift)
            leaf = summed(sums, following, first, first + BLOCK, shift, lifted_eps, bounds)
            top = climb(join, tree, top, index, leaf)
            index += 1
        return j, index, top

    @inlined
    def contiguous(source, stride, weight, bias, step, ordinary, eps, lifted_eps, out, out_stride, rows, n, streaming):
        tree = stack_of(nothing, DEPTH)
        # What rows hold back of the line that they share with the next; also of what a sum keeps, if its lines begin alike.
        edge, keep_edge, held = stack_like(out, EDGE), stack_like(memory_of(source), EDGE), 0
        shares = streaming and out_stride == n * itemsize(out) and n >= LANES and is_lasting(source)
        keep_streaming = streaming and in_step(source, stride, out, out_stride)
        following, top, shift = source, 0, guess(source, dense(source), n, bounds)
        for i in range(rows + 1):  # the result of row i - 1 and the tree of row i
            index, grown, next_shift = 0, 0, shift
            if i > 0:
                row = root(join, tree, top)
                row, shift = on_centre(join, tree, row, source, dense(source), n, shift, lifted_eps, bounds)
                factors = settle(row, shift, eps, lifted_eps, bounds)
                if i < rows:
                    next_shift = guess(following, dense(following), n, bounds)
                if factors.common and ordinary:
                    j = to_line(out, n) if streaming else 0
                    if held > 0:
                        values = read(source, 0)
                        y = apply_common(values, factors, lanes_of(weight, 0), lanes_of(bias, 0))
                        keep_begin(source, values, keep_edge, held, keep_streaming)
                        stream_begin(out, y, edge, held)
                    elif j > 0:
                        apply_span(apply_common, source, weight, bias, factors, out, 0, j, False, False)
                    if i < rows:
                        j, index, grown = apply_and_grow(
                            source,
                            weight,
                            bias,
                            factors,
                            out,
                            j,
                            n,
                            streaming,
                            keep_streaming,
                            following,
                            next_shift,
                            tree,
                            lifted_eps,
                        )
                    whole = n - (n - j) % LANES if shares and i < rows else n
                    apply_span(apply_common, source, weight, bias, factors, out, j, whole, streaming, keep_streaming)
                    held = 0
                    if whole < n:
                        j = n - LANES
                        values = read(source, j)
                        y = apply_common(values, factors, lanes_of(weight, j), lanes_of(bias, j))
                        keep_end(source, values, keep_edge, whole, n, keep_streaming)
                        held = stream_end(out, y, edge, whole, n)
                else:
                    flush(edge, held, out)
                    keep_flush(source, keep_edge, held, keep_streaming)
                    held, size = 0, itemsize(out)
                    apply_each(apply_any, source, dense(source), weight, bias, factors, out, size, n, bounds)
                out = shifted(out, out_stride)
                weight, bias = moved_parameter(weight, step), moved_parameter(bias, step)
            while i < rows and index * BLOCK < n:
                start = index * BLOCK
                stop = start + BLOCK if start + BLOCK < n else n
                leaf = block_statistics(following, start, stop, next_shift, lifted_eps, bounds)
                grown = climb(join, tree, grown, index, leaf)
                index += 1
            source, following, top, shift = following, moved(following, stride), grown, next_shift

    @inlined
    def run(source, row_stride, weight, bias, eps, streaming, out):
        rows, n = out.shape
        if rows * n > 0:
            w = parameter(weight, stack_of(bounds.zero, LANES))
            b = parameter(bias, stack_of(bounds.zero, LANES))
            op, ordinary = pointer_to(out), True
            if wary:
                ordinary = all_ordinary(w, n, bounds)
            contiguous(source, row_stride, w, b, 0, ordinary, eps[0], eps[1], op, out.strides[0], rows, n, streaming[0])
            if streaming[0]:
                fence()

    return run, contiguous


def rows(norm, dtype):
    """Kernel: normalise rows of neighbours. It does not look at the stride of their elements."""
    computed = COMPUTED[dtype]
    run, _ = schedule(norm, computed)

    def plain(x, weight, eps, streaming, out):
        run(pointer_to(x), x.strides[0], weight, weight, eps, streaming, out)

    def biased(x, weight, bias, eps, streaming, out):
        run(pointer_to(x), x.strides[0], weight, bias, eps, streaming, out)

    kernel, layout, types = signature(norm, computed, plain, biased)
    return Source(
        kernel,
        f"(r,n),{layout},(p),(q),(r,n)",
        f"void({dtype}[:,:], {types}, {computed}[:], boolean[:], {dtype}[:,:])",
        ("out",),
    )


def sum_rows(norm, dtype, residual_dtype):
    """Kernel: normalise the rows of x + residual, and keep these."""
    computed = COMPUTED[dtype]
    run, _ = schedule(norm, computed)

    def plain(x, residual, weight, eps, streaming, kept, out):
        source, row_stride = sum_of(x, residual, kept), strides_of(x, residual, kept, 0)
        run(source, row_stride, weight, weight, eps, streaming, out)

    def biased(x, residual, weight, bias, eps, streaming, kept, out):
        source, row_stride = sum_of(x, residual, kept), strides_of(x, residual, kept, 0)
        run(source, row_stride, weight, bias, eps, streaming, out)

    kernel, layout, types = signature(norm, computed, plain, biased)
    x, residual = f"{dtype}[:,:]", f"{residual_dtype}[:,:]"
    return Source(
        kernel,
        f"(r,n),(r,n),{layout},(p),(q),(r,n),(r,n)",
        f"void({x}, {residual}, {types}, {computed}[:], boolean[:], {residual}, {x})",
        ("kept", "out"),
    )


def signature(norm, computed, plain, biased):
    """The kernel that takes what a norm has of weight and bias, and their part of its layout and types."""
    if _math.NORMS[norm].biased:
        return biased, "(n),(n)", f"{computed}[:], {computed}[:]"
    return plain, "(n)", f"{computed}[:]"
