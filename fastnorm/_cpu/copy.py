"""The yardstick: the fastest copies of an array that this library can make. `fastnorm bench` holds the norms against them.

A norm reads its input and writes its output once, as a copy does; what it computes meanwhile should cost nothing.
"""

from .. import _compile
from .._compile import Source
from .edges import to_line
from .memory import fence, load, load_first, pointer_to, store, store_first, stream
from .simd import LANES, inlined
from .threads import get_num_threads, share

PIECE = 1 << 16, 1 << 22  # elements a piece, at least and at most; between them eight pieces a thread, as the norms do


@inlined
def copy_span(x, out, start, stop, streaming):
    """Elements `start` to `stop`."""
    j = start
    while j + LANES <= stop:
        if streaming:
            stream(out, j, load(x, j))
        else:
            store(out, j, load(x, j))
        j += LANES
    if j < stop:
        store_first(out, j, stop - j, load_first(x, j, stop - j))


def copy_kernel(dtype):
    """Kernel: copy a contiguous row. Without `prefetch`: it made this copy 20 % slower (one thread, 4096 x 4096 float32)."""

    def kernel(x, streaming, out):
        xp, op, n = pointer_to(x), pointer_to(out), len(x)
        head = to_line(op, n) if streaming[0] else 0
        copy_span(xp, op, 0, head, False)
        copy_span(xp, op, head, n, streaming[0])
        if streaming[0]:
            fence()

    return Source(kernel, "(n),(q),(n)", f"void({dtype}[:], boolean[:], {dtype}[:])", ("out",))


def copy(x, streaming, out):
    """Copy contiguous `x` to `out`; `streaming` is an array of one truth value, as kernels take it."""
    x, out = x.reshape(-1), out.reshape(-1)
    run = _compile.kernel("fastnorm._cpu.copy:copy_kernel", x.dtype.name).over("n", x, streaming, out)
    least, most = PIECE
    share(run, x.size, min(max(least, x.size // (8 * get_num_threads())), most))
