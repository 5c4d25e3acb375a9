"""Kernels that normalise along the last axis: whole rows, or one long row in pieces.

A row is read twice, for its statistics and for the result. `rows` takes both at once from two rows, the result of row i
and the statistics of row i + 1, so that memory is read and written at the same time as in a copy: 0.94 of the best copy's
rate, against 0.81 for one pass after the other (16384 x 4096 float32, two cores).
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES, magnitude, maximum
from .blocks import DEPTH, block_statistics, climb, rescued, root
from .layout import BLOCK
from .memory import (
    address,
    fence,
    forget_exceptions,
    get,
    itemsize,
    load,
    load_first,
    pointer_to,
    prefetch,
    put,
    shifted,
    stack_like,
    stack_of,
    store,
    store_first,
    stream,
    stream_line,
)
from .simd import LANES, any_lane, inlined, splat, sum_lanes

LINE = 64  # bytes: what a streaming store must be aligned to
EDGE = 2 * LANES  # elements: room for the end of a row, and for the beginning of the next
# Elements: rows this long are asked for so far ahead (0.94 of copy instead of 0.81); rows of 512 lose by it (0.73, not 0.98).
AHEAD = 4096


@inlined
def to_line(out, n):
    """The number of elements before the first that may be streamed."""
    head = (-address(out) % LINE) // itemsize(out)
    return head if head < n else n


@inlined
def apply_span(x, weight, step, inverse, out, start, stop, streaming):
    """The result for elements `start` to `stop` of a common row; `step` is 0 where the weight is one number, 64 times."""
    j = start
    while j + LANES <= stop:
        y = _math.apply_common(load(x, j), inverse, load(weight, j * step))
        if streaming:
            stream(out, j, y)
        else:
            store(out, j, y)
        j += LANES
    if j < stop:
        count = stop - j
        store_first(out, j, count, _math.apply_common(load_first(x, j, count), inverse, load_first(weight, j * step, count)))


@inlined
def apply_each(x, x_stride, weight, weight_stride, factors, out, out_stride, n, bounds):
    """The result for a row of any kind and any strides, element by element: rare, so that it shall not cost compile time."""
    for j in range(n):
        value, factor = get(shifted(x, j * x_stride)), get(shifted(weight, j * weight_stride))
        put(shifted(out, j * out_stride), _math.apply_any(value, factors, factor, bounds))


@inlined
def all_light(weight, step, n, bounds):
    """True if no weight is heavy: checked once a call, since the common path does not look."""
    heaviest = splat(bounds.zero)
    j = 0
    while j < n:
        if j + LANES <= n:
            heaviest = maximum(magnitude(load(weight, j * step)), heaviest)
        else:
            heaviest = maximum(magnitude(load_first(weight, j * step, n - j)), heaviest)
        j += LANES if step else n
    return not any_lane(heaviest > bounds.heavy)


@inlined
def apply_and_grow(x, weight, step, inverse, out, j, n, streaming, following, tree, lifted_eps, bounds):
    """A common row's result from `j` on, and whole blocks of the tree of the row after it, 64 elements of each in turn.

    Returns how far it came: the next element, the number of blocks, and the `top` of the tree.
    """
    index, top = 0, 0
    while (index + 1) * BLOCK <= n:
        squares = splat(bounds.zero)
        first = index * BLOCK
        for k in range(first, first + BLOCK, LANES):
            if j + LANES <= n:
                y = _math.apply_common(load(x, j), inverse, load(weight, j * step))
                if streaming:
                    if n >= AHEAD:
                        prefetch(following, k + AHEAD)
                    stream(out, j, y)
                else:
                    store(out, j, y)
                j += LANES
            squares = _math.accumulate_square(squares, load(following, k))
        top = climb(tree, top, index, rescued(sum_lanes(squares), following, first, first + BLOCK, lifted_eps, bounds))
        index += 1
    return j, index, top


@inlined
def stream_end(x, weight, step, inverse, out, j, n, edge):
    """The last elements of a row, fewer than 64: whole lines are streamed. Returns how many are held back in `edge`.

    A line that two rows share is streamed when both have written to it: an ordinary store would have to fetch it, and all
    later stores would wait (rows of 512: 0.45 of copy). The first half of `edge` is for the end of a row, the second for
    the beginning of the next; each takes 64 elements of which some are not needed, since whole registers are fast.
    """
    store(edge, 0, _math.apply_common(load(x, n - LANES), inverse, load(weight, (n - LANES) * step)))
    line = LINE // itemsize(out)
    while j + line <= n:
        stream_line(shifted(out, j * itemsize(out)), shifted(edge, (LANES - n + j) * itemsize(out)))
        j += line
    return n - j


@inlined
def stream_begin(x, weight, inverse, out, edge, held):
    """The first elements of a row, in one line with those that the row before held back."""
    store(edge, LANES, _math.apply_common(load(x, 0), inverse, load(weight, 0)))
    stream_line(shifted(out, -held * itemsize(out)), shifted(edge, (LANES - held) * itemsize(out)))


@inlined
def flush(edge, held, out):
    """Write what the row before `out` holds back."""
    for k in range(held):
        shifted(out, (k - held) * itemsize(out))[0] = edge[LANES - held + k]


@inlined
def summarise(x, x_stride, n, lifted_eps, bounds):
    """The statistics of a row, or of a piece of one, of any stride; strided ones are copied block by block."""
    tree = stack_of(_math.Statistics(bounds.zero, bounds.zero, bounds.zero), DEPTH)
    block = stack_like(x, BLOCK)
    index, top, start = 0, 0, 0
    while start < n:
        stop = start + BLOCK if start + BLOCK < n else n
        source = shifted(x, start * x_stride)
        if x_stride != itemsize(x):
            for j in range(stop - start):
                block[j] = shifted(source, j * x_stride)[0]
            source = block
        top = climb(tree, top, index, block_statistics(source, 0, stop - start, lifted_eps, bounds))
        index += 1
        start = stop
    return root(tree, top)


def rows(norm, dtype):
    """Kernel: normalise rows of any strides."""
    settle = _math.NORMS[norm].settle
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]

    @inlined
    def any_row(x, x_stride, weight, weight_stride, eps, lifted_eps, out, out_stride, n):
        """A row of any kind and any strides."""
        factors = settle(summarise(x, x_stride, n, lifted_eps, bounds), eps, lifted_eps, bounds)
        apply_each(x, x_stride, weight, weight_stride, factors, out, out_stride, n, bounds)
        return factors

    @inlined
    def contiguous(x, x_stride, weight, step, eps, lifted_eps, out, out_stride, rows, n, streaming):
        tree = stack_of(_math.Statistics(bounds.zero, bounds.zero, bounds.zero), DEPTH)
        edge, held = stack_like(out, EDGE), 0  # what rows hold back of the line that they share with the next
        shares = streaming and out_stride == n * itemsize(out) and n >= LANES
        following, top = x, 0
        for i in range(rows + 1):  # the result of row i - 1 and the tree of row i
            index, grown = 0, 0
            if i > 0:
                factors = settle(root(tree, top), eps, lifted_eps, bounds)
                if factors.common:
                    j = to_line(out, n) if streaming else 0
                    if held > 0:
                        stream_begin(x, weight, factors.inverse, out, edge, held)
                    elif j > 0:
                        apply_span(x, weight, step, factors.inverse, out, 0, j, False)
                    if i < rows:
                        j, index, grown = apply_and_grow(
                            x, weight, step, factors.inverse, out, j, n, streaming, following, tree, lifted_eps, bounds
                        )
                    whole = n - (n - j) % LANES if shares and i < rows else n
                    apply_span(x, weight, step, factors.inverse, out, j, whole, streaming)
                    held = stream_end(x, weight, step, factors.inverse, out, whole, n, edge) if whole < n else 0
                else:
                    flush(edge, held, out)
                    held = 0
                    size = itemsize(x)
                    any_row(x, size, weight, step * itemsize(weight), eps, lifted_eps, out, size, n)
                out = shifted(out, out_stride)
            while i < rows and index * BLOCK < n:
                start = index * BLOCK
                stop = start + BLOCK if start + BLOCK < n else n
                grown = climb(tree, grown, index, block_statistics(following, start, stop, lifted_eps, bounds))
                index += 1
            x, following, top = following, shifted(following, x_stride), grown

    def kernel(x, weight, eps, streaming, out):
        rows, n = x.shape
        if x.size > 0:
            xp, wp, op = pointer_to(x), pointer_to(weight), pointer_to(out)
            size, x_stride, w_stride, out_stride = x.itemsize, x.strides[1], weight.strides[0], out.strides[1]
            fast = x_stride == out_stride == size
            step = w_stride // weight.itemsize
            if w_stride == 0:
                same = stack_of(bounds.zero, LANES)
                store(same, 0, splat(wp[0]))
                wp = same
            else:
                fast = fast and w_stride == weight.itemsize
            if fast and all_light(wp, step, n, bounds):
                contiguous(xp, x.strides[0], wp, step, eps[0], eps[1], op, out.strides[0], rows, n, streaming[0])
                if streaming[0]:
                    fence()
            else:
                for i in range(rows):
                    xi, oi = shifted(xp, i * x.strides[0]), shifted(op, i * out.strides[0])
                    any_row(xi, x_stride, wp, w_stride, eps[0], eps[1], oi, out_stride, n)
            forget_exceptions()

    return Source(
        kernel,
        "(r,n),(n),(p),(q),(r,n)",
        f"void({dtype}[:,:], {computed}[:], {computed}[:], boolean[:], {dtype}[:,:])",
        ("out",),
    )


def piece_statistics(dtype):
    """Kernel: what `join` needs of one piece of a long row: a power of two of blocks, or the rest of the row."""
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]

    def kernel(x, eps, statistics):
        piece = summarise(pointer_to(x), x.strides[0], len(x), eps[1], bounds)
        statistics[0], statistics[1], statistics[2] = piece.scale, piece.count, piece.squares
        forget_exceptions()

    return Source(kernel, "(n),(p),(s)", f"void({dtype}[:], {computed}[:], {computed}[:])", ("statistics",))


def piece_apply(norm, dtype):
    """Kernel: the result for one piece of a long row, given the statistics of all its pieces."""
    settle = _math.NORMS[norm].settle
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]

    def kernel(x, weight, eps, statistics, streaming, out):
        tree = stack_of(_math.Statistics(bounds.zero, bounds.zero, bounds.zero), DEPTH)
        top = 0
        for i in range(len(statistics)):
            piece = _math.Statistics(statistics[i, 0], statistics[i, 1], statistics[i, 2])
            top = climb(tree, top, i, piece)
        factors = settle(root(tree, top), eps[0], eps[1], bounds)
        xp, wp, op, n = pointer_to(x), pointer_to(weight), pointer_to(out), len(x)
        step = weight.strides[0] // weight.itemsize
        if step == 0:
            same = stack_of(bounds.zero, LANES)
            store(same, 0, splat(wp[0]))
            wp = same
        fast = x.strides[0] == out.strides[0] == x.itemsize and weight.strides[0] in (0, weight.itemsize)
        if fast and factors.common and all_light(wp, step, n, bounds):
            head = to_line(op, n) if streaming[0] else 0
            apply_span(xp, wp, step, factors.inverse, op, 0, head, False)
            apply_span(xp, wp, step, factors.inverse, op, head, n, streaming[0])
            if streaming[0]:
                fence()
        else:
            apply_each(xp, x.strides[0], wp, weight.strides[0], factors, op, out.strides[0], n, bounds)
        forget_exceptions()

    return Source(
        kernel,
        "(n),(n),(p),(k,s),(q),(n)",
        f"void({dtype}[:], {computed}[:], {computed}[:], {computed}[:,:], boolean[:], {dtype}[:])",
        ("out",),
    )
