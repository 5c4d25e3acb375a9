"""Kernels that normalise groups: rows of channels times space, each row with weights of its own, one a channel.

`dense` is for groups that lie in memory as rows do, `channels_last` for pixels whose channels are neighbours, `scattered`
for any strides.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES
from .apply import Channels, Parameter, apply_each, apply_span
from .blocks import block_statistics, climb, exact_if_few, guess_shift, no_statistics, root
from .layout import BLOCK, DEPTH
from .memory import fence, get, load_first, pointer_to, put, shifted, stack_like, stack_of, store_first
from .rows import schedule
from .simd import LANES, inlined


def dense(norm, dtype, by_channel):
    """Kernel: normalise the rows of a matrix. A row of the weight and one of the bias go with each.

    `by_channel`: a row has fewer weights than elements, each for a run of 64 or more. Otherwise there is one for each element.
    """
    computed = COMPUTED[dtype]
    _, contiguous = schedule(norm, computed)

    @inlined
    def channels(array, n):
        return Channels(pointer_to(array), n // array.shape[1])

    @inlined
    def elements(array, n):
        return Parameter(pointer_to(array), 1)

    parameter = channels if by_channel else elements

    def kernel(x, weight, bias, eps, streaming, out):
        rows, n = x.shape
        if rows * n > 0:
            w, b, xp, op = parameter(weight, n), parameter(bias, n), pointer_to(x), pointer_to(out)
            stride = weight.strides[0]
            contiguous(xp, x.strides[0], w, b, stride, True, eps[0], eps[1], op, out.strides[0], rows, n, streaming[0])
            if streaming[0]:
                fence()

    return Source(
        kernel,
        "(r,n),(r,c),(r,c),(p),(q),(r,n)",
        f"void({dtype}[:,:], {computed}[:,:], {computed}[:,:], {computed}[:], boolean[:], {dtype}[:,:])",
        ("out",),
    )


# ------------------------------------------------------------------------------------- groups that are no rows in memory
@inlined
def gather_elements(x, place, count, room):
    """Elements `place` to ``place + count`` of (before, channels, after), as neighbours in `room`."""
    _, channels, after = x.shape
    a, rest = place // (channels * after), place % (channels * after)
    c, b = rest // after, rest % after
    for k in range(count):
        at = a * x.strides[0] + c * x.strides[1] + b * x.strides[2]
        shifted(room, k * x.itemsize)[0] = shifted(pointer_to(x), at)[0]
        b += 1
        if b == after:
            b = 0
            c += 1
            if c == channels:
                c = 0
                a += 1


@inlined
def gather_runs(x, place, count, room):
    """Elements `place` to ``place + count`` of (pixels, channels), as neighbours in `room`: channels are that already."""
    channels = x.shape[1]
    a, c = place // channels, place % channels
    k = 0
    while k < count:
        few = channels - c if channels - c < count - k else count - k
        few = few if few < LANES else LANES
        run = shifted(pointer_to(x), a * x.strides[0] + c * x.itemsize)
        store_first(room, k, few, load_first(run, 0, few))
        k += few
        c += few
        if c == channels:
            c = 0
            a += 1


@inlined
def summarise_gathered(gather, join, tree, x, shift, room, lifted_eps, bounds):
    """The statistics of a group."""
    index, top, start = 0, 0, 0
    while start < x.size:
        count = BLOCK if start + BLOCK < x.size else x.size - start
        gather(x, start, count, room)
        top = climb(join, tree, top, index, block_statistics(room, 0, count, shift, lifted_eps, bounds))
        index += 1
        start += count
    return root(join, tree, top)


@inlined
def measure_group(gather, join, tree, x, room, lifted_eps, bounds):
    """The statistics of a group and its shift, as `blocks` finds those of a row."""
    few = x.size if x.size < LANES else LANES
    gather(x, 0, few, room)
    shift = guess_shift(room, x.itemsize, few, bounds)
    row = summarise_gathered(gather, join, tree, x, shift, room, lifted_eps, bounds)
    gather(x, 0, few, room)
    row = exact_if_few(row, room, x.itemsize, x.size, shift, bounds)
    if _math.is_off_centre(row, bounds):
        shift = _math.better_guess(row, shift, bounds)
        row = summarise_gathered(gather, join, tree, x, shift, room, lifted_eps, bounds)
        gather(x, 0, few, room)
        row = exact_if_few(row, room, x.itemsize, x.size, shift, bounds)
    return row, shift


def scattered(norm, dtype):
    """Kernel: normalise a group of axes before the channels, channels, and axes after them, of any strides."""
    norm = _math.NORMS[norm]
    computed = COMPUTED[dtype]
    bounds, join, settle, apply_any = RANGES[computed], norm.join, norm.settle, norm.apply_any
    nothing = no_statistics(norm.centred, bounds)

    def kernel(x, weight, bias, eps, out):
        before, channels, after = x.shape
        if x.size > 0:
            tree, room = stack_of(nothing, DEPTH), stack_like(pointer_to(x), BLOCK)
            row, shift = measure_group(gather_elements, join, tree, x, room, eps[1], bounds)
            factors = settle(row, shift, eps[0], eps[1], bounds)
            for a in range(before):
                for c in range(channels):
                    xp = shifted(pointer_to(x), a * x.strides[0] + c * x.strides[1])
                    op = shifted(pointer_to(out), a * out.strides[0] + c * out.strides[1])
                    for b in range(after):
                        value = get(shifted(xp, b * x.strides[2]))
                        put(shifted(op, b * out.strides[2]), apply_any(value, factors, weight[c], bias[c], bounds))

    return Source(
        kernel,
        "(a,c,b),(c),(c),(p),(a,c,b)",
        f"void({dtype}[:,:,:], {computed}[:], {computed}[:], {computed}[:], {dtype}[:,:,:])",
        ("out",),
    )


def channels_last(norm, dtype):
    """Kernel: normalise a group of pixels, whose channels are neighbours."""
    norm = _math.NORMS[norm]
    computed = COMPUTED[dtype]
    bounds, join, settle, apply_common, apply_any = (
        RANGES[computed],
        norm.join,
        norm.settle,
        norm.apply_common,
        norm.apply_any,
    )
    nothing = no_statistics(norm.centred, bounds)

    def kernel(x, weight, bias, eps, out):
        pixels, channels = x.shape
        if x.size > 0:
            tree, room = stack_of(nothing, DEPTH), stack_like(pointer_to(x), BLOCK)
            row, shift = measure_group(gather_runs, join, tree, x, room, eps[1], bounds)
            factors = settle(row, shift, eps[0], eps[1], bounds)
            w, b = Parameter(pointer_to(weight), 1), Parameter(pointer_to(bias), 1)
            for a in range(pixels):
                xp, op = shifted(pointer_to(x), a * x.strides[0]), shifted(pointer_to(out), a * out.strides[0])
                if factors.common:
                    apply_span(apply_common, xp, w, b, factors, op, 0, channels, False, False)
                else:
                    apply_each(apply_any, xp, x.itemsize, w, b, factors, op, out.itemsize, channels, bounds)

    return Source(
        kernel,
        "(a,c),(c),(c),(p),(a,c)",
        f"void({dtype}[:,:], {computed}[:], {computed}[:], {computed}[:], {dtype}[:,:])",
        ("out",),
    )
