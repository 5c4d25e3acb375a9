"""The kernel of RoPE: pairs of features of each row, turned by the row's angles."""

from llvmlite import ir
from numba.extending import intrinsic

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED
from .apply import write
from .edges import LINE, copy_first, stream_staged
from .layout import HEADS, STAGED
from .memory import (
    address,
    fence,
    get,
    itemsize,
    load,
    load_first,
    pointer_to,
    put,
    shifted,
    stack_like,
    stack_of,
    store_first,
)
from .simd import LANES, inlined

INTERLEAVED, STREAMING = range(2)  # in `flags`
ROOM = HEADS * STAGED + LANES


def _picked(first, step):
    """Lanes of two registers, side by side."""

    @intrinsic
    def picked(typing, a, b):
        def codegen(context, builder, signature, args):
            order = [(first + i // 2 + (LANES if i % 2 else 0)) if step < 0 else first + step * i for i in range(LANES)]
            return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))

        return a(a, b), codegen

    return picked


evens, odds = _picked(0, 2), _picked(1, 2)  # of 128 lanes
lower_pairs, upper_pairs = _picked(0, -1), _picked(LANES // 2, -1)  # of two registers, alternately


def rotate(dtype):
    """Kernel: rotate rows of features."""
    computed = COMPUTED[dtype]

    @inlined
    def halves(x, cosine, sine, n, out, streaming):
        """Feature i with feature i + n, of neighbours."""
        size = itemsize(x)
        others, other_out = shifted(x, n * size), shifted(out, n * size)
        for j in range(0, n, LANES):
            if j + LANES <= n:
                pair = _math.rotated(load(x, j), load(others, j), load(cosine, j), load(sine, j))
                write(out, j, pair.x, streaming)
                write(other_out, j, pair.y, streaming)
            else:
                count = n - j
                a, b = load_first(x, j, count), load_first(others, j, count)
                pair = _math.rotated(a, b, load_first(cosine, j, count), load_first(sine, j, count))
                store_first(out, j, count, pair.x)
                store_first(other_out, j, count, pair.y)

    @inlined
    def pairs(x, cosine, sine, n, out, streaming):
        """Feature 2 i with feature 2 i + 1, of neighbours."""
        for j in range(0, n, LANES):
            low, high = min(LANES, 2 * (n - j)), min(LANES, max(0, 2 * (n - j) - LANES))
            a, b = load_first(x, 2 * j, low), load_first(x, 2 * j + LANES, high)
            count = min(LANES, n - j)
            pair = _math.rotated(evens(a, b), odds(a, b), load_first(cosine, j, count), load_first(sine, j, count))
            if high == LANES:
                write(out, 2 * j, lower_pairs(pair.x, pair.y), streaming)
                write(out, 2 * j + LANES, upper_pairs(pair.x, pair.y), streaming)
            else:
                store_first(out, 2 * j, low, lower_pairs(pair.x, pair.y))
                store_first(out, 2 * j + LANES, high, upper_pairs(pair.x, pair.y))

    @inlined
    def one_by_one(x, cosine, sine, n, out, strides, interleaved):
        """Features of any strides."""
        stride, cosine_stride, sine_stride, out_stride = strides
        step, apart = (2, 1) if interleaved else (1, n)
        for i in range(n):
            here, there = i * step, i * step + apart
            c, s = get(shifted(cosine, i * cosine_stride)), get(shifted(sine, i * sine_stride))
            pair = _math.rotated(get(shifted(x, here * stride)), get(shifted(x, there * stride)), c, s)
            put(shifted(out, here * out_stride), pair.x)
            put(shifted(out, there * out_stride), pair.y)

    @inlined
    def pass_through(x, stride, first, n, out, out_stride):
        """Features that are not turned."""
        for j in range(first, n):
            shifted(out, j * out_stride)[0] = shifted(x, j * stride)[0]

    def kernel(x, cosine, sine, flags, out):
        planes, rows, features = x.shape
        n = cosine.shape[2]
        dense = x.strides[2] == x.itemsize and out.strides[2] == out.itemsize
        dense = dense and cosine.strides[2] == cosine.itemsize and sine.strides[2] == sine.itemsize
        in_place = address(pointer_to(x)) == address(pointer_to(out)) and x.strides == out.strides
        lines = (address(pointer_to(out)) | out.strides[0] | out.strides[1] | n * out.itemsize) % LINE == 0
        streaming = flags[STREAMING] != 0 and lines
        # Rows that are neighbours, but share lines, are put together in the first cache before they are streamed (0.93 of copy
        # instead of 0.68; those of 16 bits gain nothing by it).
        staging = flags[STREAMING] != 0 and not lines and dense and out.itemsize > 2
        staging = staging and LANES <= features <= STAGED - 2 * LANES and out.strides[1] == features * out.itemsize
        room, helds = stack_like(pointer_to(out), ROOM), stack_of(n, HEADS)
        room = shifted(room, -address(room) % LINE)
        for start in range(0, planes, HEADS):
            for i in range(rows):
                for p in range(start, min(start + HEADS, planes)):
                    source = shifted(pointer_to(x), p * x.strides[0] + i * x.strides[1])
                    place = shifted(pointer_to(out), p * out.strides[0] + i * out.strides[1])
                    held = helds[p - start] if i > 0 else 0
                    stage = shifted(room, (p - start) * STAGED * out.itemsize)
                    target = shifted(stage, held * out.itemsize) if staging else place
                    c = shifted(pointer_to(cosine), p * cosine.strides[0] + i * cosine.strides[1])
                    s = shifted(pointer_to(sine), p * sine.strides[0] + i * sine.strides[1])
                    if not dense:
                        steps = x.strides[2], cosine.strides[2], sine.strides[2], out.strides[2]
                        one_by_one(source, c, s, n, target, steps, flags[INTERLEAVED] != 0)
                    elif flags[INTERLEAVED] != 0:
                        pairs(source, c, s, n, target, streaming)
                    else:
                        halves(source, c, s, n, target, streaming)
                    if not in_place:
                        pass_through(source, x.strides[2], 2 * n, features, target, out.strides[2])
                    if staging:
                        held = stream_staged(place, stage, held, features, i == 0)
                        if i == rows - 1:
                            end = shifted(place, (features - held) * out.itemsize)
                            copy_first(end, stage, held)
                        helds[p - start] = held
        if streaming or staging:
            fence()

    array, table = f"{dtype}[:,:,:]", f"{computed}[:,:,:]"
    return Source(
        kernel, "(p,l,n),(p,l,h),(p,l,h),(q),(p,l,n)", f"void({array}, {table}, {table}, int64[:], {array})", ("out",)
    )
