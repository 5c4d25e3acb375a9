"""Kernels that normalise groups: rows of channels times space, each row with weights of its own, one a channel.

`dense` is for groups that lie in memory as rows do, `scattered` for all others: channels last, or any strides.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES
from .apply import Channels, Parameter
from .blocks import DEPTH, block_statistics, climb, exact_if_few, guess_shift, no_statistics, root
from .layout import BLOCK
from .memory import fence, forget_exceptions, get, pointer_to, put, shifted, stack_like, stack_of
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
            contiguous(xp, x.strides[0], w, b, stride, eps[0], eps[1], op, out.strides[0], rows, n, streaming[0])
            if streaming[0]:
                fence()
            forget_exceptions()

    return Source(
        kernel,
        "(r,n),(r,c),(r,c),(p),(q),(r,n)",
        f"void({dtype}[:,:], {computed}[:,:], {computed}[:,:], {computed}[:], boolean[:], {dtype}[:,:])",
        ("out",),
    )


def scattered(norm, dtype):
    """Kernel: normalise a group of axes before the channels, channels, and axes after them, of any strides."""
    norm = _math.NORMS[norm]
    computed = COMPUTED[dtype]
    bounds, join, settle, apply_any = RANGES[computed], norm.join, norm.settle, norm.apply_any
    nothing = no_statistics(norm.centred, bounds)

    @inlined
    def gather(x, place, count, room):
        """Elements `place` to ``place + count`` of a group, as neighbours; returns where they are."""
        _, channels, after = x.shape
        xp = pointer_to(x)
        a, rest = place // (channels * after), place % (channels * after)
        c, b = rest // after, rest % after
        for k in range(count):
            at = a * x.strides[0] + c * x.strides[1] + b * x.strides[2]
            shifted(room, k * x.itemsize)[0] = shifted(xp, at)[0]
            b += 1
            if b == after:
                b = 0
                c += 1
                if c == channels:
                    c = 0
                    a += 1
        return room

    @inlined
    def summarise(x, n, shift, tree, room, lifted_eps):
        index, top, start = 0, 0, 0
        while start < n:
            count = BLOCK if start + BLOCK < n else n - start
            leaf = block_statistics(gather(x, start, count, room), 0, count, shift, lifted_eps, bounds)
            top = climb(join, tree, top, index, leaf)
            index += 1
            start += count
        return root(join, tree, top)

    def kernel(x, weight, bias, eps, out):
        before, channels, after = x.shape
        n = x.size
        if n > 0:
            tree, room, few = stack_of(nothing, DEPTH), stack_like(pointer_to(x), BLOCK), stack_like(pointer_to(x), LANES)
            count = n if n < LANES else LANES
            gather(x, 0, count, few)
            shift = guess_shift(few, x.itemsize, count, bounds)
            row = exact_if_few(summarise(x, n, shift, tree, room, eps[1]), few, x.itemsize, n, shift, bounds)
            if _math.is_off_centre(row, bounds):
                shift = _math.better_guess(row, shift, bounds)
                row = summarise(x, n, shift, tree, room, eps[1])
                row = exact_if_few(row, few, x.itemsize, n, shift, bounds)
            factors = settle(row, shift, eps[0], eps[1], bounds)
            for a in range(before):
                for c in range(channels):
                    xp = shifted(pointer_to(x), a * x.strides[0] + c * x.strides[1])
                    op = shifted(pointer_to(out), a * out.strides[0] + c * out.strides[1])
                    for b in range(after):
                        value = get(shifted(xp, b * x.strides[2]))
                        put(shifted(op, b * out.strides[2]), apply_any(value, factors, weight[c], bias[c], bounds))
            forget_exceptions()

    return Source(
        kernel,
        "(a,c,b),(c),(c),(p),(a,c,b)",
        f"void({dtype}[:,:,:], {computed}[:], {computed}[:], {computed}[:], {dtype}[:,:,:])",
        ("out",),
    )
