"""Kernels for rows that are in a cache, or of any strides: one row after the other, its statistics, then its result.

Where memory does not bound, that beats taking both at once from two rows, as `rows` does (128 x 4096 float32: 0.66 us a row
instead of 0.74), since a row is found in the first cache when it is read for the second time; and it compiles faster.
"""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES
from .apply import all_ordinary, apply_each, apply_span, parameter
from .blocks import guess_shift, no_shift, no_statistics, on_centre, summarise
from .layout import DEPTH
from .memory import pointer_to, shifted, stack_of
from .rows import signature
from .simd import LANES, inlined
from .sources import is_dense, moved, strides_of, sum_of


def schedule(norm, computed):
    """Row after row, for a norm: what both kernels of this file do."""
    norm = _math.NORMS[norm]
    bounds = RANGES[computed]
    join, settle, apply_common, apply_any, wary = norm.join, norm.settle, norm.apply_common, norm.apply_any, norm.wary
    guess = guess_shift if norm.centred else no_shift
    nothing = no_statistics(norm.centred, bounds)

    @inlined
    def run(source, row_stride, stride, weight, bias, eps, out):
        rows, n = out.shape
        if rows * n > 0:
            w = parameter(weight, stack_of(bounds.zero, LANES))
            b = parameter(bias, stack_of(bounds.zero, LANES))
            tree, target = stack_of(nothing, DEPTH), pointer_to(out)
            fast = is_dense(source, stride) and out.strides[1] == out.itemsize and 0 <= w.step <= 1 and 0 <= b.step <= 1
            if wary:
                fast = fast and all_ordinary(w, n, bounds)
            for _ in range(rows):
                shift = guess(source, stride, n, bounds)
                row = summarise(join, tree, source, stride, n, shift, eps[1], bounds)
                row, shift = on_centre(join, tree, row, source, stride, n, shift, eps[1], bounds)
                factors = settle(row, shift, eps[0], eps[1], bounds)
                if fast and factors.common:
                    apply_span(apply_common, source, w, b, factors, target, 0, n, False, False)
                else:
                    apply_each(apply_any, source, stride, w, b, factors, target, out.strides[1], n, bounds)
                source, target = moved(source, row_stride), shifted(target, out.strides[0])

    return run


def rows(norm, dtype):
    """Kernel: normalise rows."""
    computed = COMPUTED[dtype]
    run = schedule(norm, computed)

    def plain(x, weight, eps, out):
        run(pointer_to(x), x.strides[0], x.strides[1], weight, weight, eps, out)

    def biased(x, weight, bias, eps, out):
        run(pointer_to(x), x.strides[0], x.strides[1], weight, bias, eps, out)

    kernel, layout, types = signature(norm, computed, plain, biased)
    return Source(kernel, f"(r,n),{layout},(p),(r,n)", f"void({dtype}[:,:], {types}, {computed}[:], {dtype}[:,:])", ("out",))


def sum_rows(norm, dtype, residual_dtype):
    """Kernel: normalise the rows of x + residual, and keep these."""
    computed = COMPUTED[dtype]
    run = schedule(norm, computed)

    def plain(x, residual, weight, eps, kept, out):
        source, row_stride = sum_of(x, residual, kept), strides_of(x, residual, kept, 0)
        run(source, row_stride, strides_of(x, residual, kept, 1), weight, weight, eps, out)

    def biased(x, residual, weight, bias, eps, kept, out):
        source, row_stride = sum_of(x, residual, kept), strides_of(x, residual, kept, 0)
        run(source, row_stride, strides_of(x, residual, kept, 1), weight, bias, eps, out)

    kernel, layout, types = signature(norm, computed, plain, biased)
    x, residual = f"{dtype}[:,:]", f"{residual_dtype}[:,:]"
    return Source(
        kernel,
        f"(r,n),(r,n),{layout},(p),(r,n),(r,n)",
        f"void({x}, {residual}, {types}, {computed}[:], {residual}, {x})",
        ("kept", "out"),
    )
