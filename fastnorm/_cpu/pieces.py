"""Kernels for one long row in pieces: a power of two of blocks each, so that what they sum is a node of the row's one tree."""

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, RANGES
from .apply import all_ordinary, apply_each, apply_span, parameter
from .blocks import about, climb, guess_shift, no_statistics, root, summarise
from .edges import to_line
from .layout import DEPTH
from .memory import fence, itemsize, pointer_to, stack_of
from .rows import signature
from .simd import LANES, inlined


@inlined
def shift_in(array):
    """The shift of a centred row."""
    return array[0]


@inlined
def no_shift_in(array):
    """The shift of another."""
    return


@inlined
def _write_power(array, piece, shift):
    """Store what is known of a piece."""
    array[0], array[1], array[2], array[3] = piece.scale, piece.count, piece.squares, piece.lost


def _write_moments(array, piece, shift):
    _write_power(array, piece, shift)
    array[4] = piece.total


def _read_power(array, shift):
    """The statistics that `write_statistics` stored."""
    return _math.Power(array[0], array[1], array[2], array[3])


def _read_moments(array, shift):
    return _math.Moments(array[0], array[1], array[4], array[2], array[3])


def _keep_shift(whole, shift, room, bounds):
    """Put a better guess of the shift into `room` if there must be one."""


def _better_shift(whole, shift, room, bounds):
    if _math.is_off_centre(whole, bounds):
        room[0] = _math.better_guess(whole, shift, bounds)


write_statistics = about(_write_power, _write_moments)
read_statistics = about(_read_power, _read_moments)
correct_shift = about(_keep_shift, _better_shift)


def guess(dtype):
    """Kernel: a first guess of the mean of a row, given its beginning."""
    computed = COMPUTED[dtype]
    bounds = RANGES[computed]

    def kernel(x, shift):
        shift[0] = guess_shift(pointer_to(x), x.strides[0], len(x), bounds)

    return Source(kernel, "(n),(o)", f"void({dtype}[:], {computed}[:])", ("shift",))


def measure(norm, dtype):
    """Kernel: the statistics of one piece."""
    norm = _math.NORMS[norm]
    computed = COMPUTED[dtype]
    bounds, join, nothing = RANGES[computed], norm.join, no_statistics(norm.centred, RANGES[computed])
    shift_of = shift_in if norm.centred else no_shift_in

    def kernel(x, shift, eps, statistics):
        origin = shift_of(shift)
        tree = stack_of(nothing, DEPTH)
        piece = summarise(join, tree, pointer_to(x), x.strides[0], len(x), origin, eps[1], bounds)
        write_statistics(statistics, piece, origin)

    return Source(kernel, "(n),(o),(p),(s)", f"void({dtype}[:], {computed}[:], {computed}[:], {computed}[:])", ("statistics",))


def join(norm, computed):
    """Kernel: the statistics of the row. If its pieces must be measured again, about a better guess, `shift` becomes that."""
    norm = _math.NORMS[norm]
    bounds, join, nothing = RANGES[computed], norm.join, no_statistics(norm.centred, RANGES[computed])
    shift_of = shift_in if norm.centred else no_shift_in

    def kernel(statistics, shift, row):
        origin = shift_of(shift)
        tree = stack_of(nothing, DEPTH)
        top = 0
        for i in range(len(statistics)):
            top = climb(join, tree, top, i, read_statistics(statistics[i], origin))
        whole = root(join, tree, top)
        write_statistics(row, whole, origin)
        correct_shift(whole, origin, shift, bounds)

    return Source(kernel, "(k,s),(o),(s)", f"void({computed}[:,:], {computed}[:], {computed}[:])", ("shift", "row"))


def apply(norm, dtype):
    """Kernel: the result for one piece, given the statistics of the row."""
    name, norm = norm, _math.NORMS[norm]
    computed = COMPUTED[dtype]
    bounds, settle, apply_common, apply_any = RANGES[computed], norm.settle, norm.apply_common, norm.apply_any
    wary, shift_of = norm.wary, shift_in if norm.centred else no_shift_in

    @inlined
    def run(x, weight, bias, eps, row, shift, streaming, out):
        origin = shift_of(shift)
        factors = settle(read_statistics(row, origin), origin, eps[0], eps[1], bounds)
        xp, op, n = pointer_to(x), pointer_to(out), len(x)
        w, b = parameter(weight, stack_of(bounds.zero, LANES)), parameter(bias, stack_of(bounds.zero, LANES))
        fast = factors.common and x.strides[0] == itemsize(xp) and out.strides[0] == itemsize(op)
        fast = fast and 0 <= w.step <= 1 and 0 <= b.step <= 1
        if wary:
            fast = fast and all_ordinary(w, n, bounds)
        if fast:
            head = to_line(op, n) if streaming[0] else 0
            apply_span(apply_common, xp, w, b, factors, op, 0, head, False, False)
            apply_span(apply_common, xp, w, b, factors, op, head, n, streaming[0], False)
            if streaming[0]:
                fence()
        else:
            apply_each(apply_any, xp, x.strides[0], w, b, factors, op, out.strides[0], n, bounds)

    def plain(x, weight, eps, row, shift, streaming, out):
        run(x, weight, weight, eps, row, shift, streaming, out)

    def biased(x, weight, bias, eps, row, shift, streaming, out):
        run(x, weight, bias, eps, row, shift, streaming, out)

    kernel, layout, types = signature(name, computed, plain, biased)
    return Source(
        kernel,
        f"(n),{layout},(p),(s),(o),(q),(n)",
        f"void({dtype}[:], {types}, {computed}[:], {computed}[:], {computed}[:], boolean[:], {dtype}[:])",
        ("out",),
    )
