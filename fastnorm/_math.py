"""Every formula, once. No loop, no branch, no literal, no backend: operators and the words of `_vocabulary`.

A norm is three formulas. `statistics` describe a piece of a row; `join` makes one of two, so that a row may be
cut into blocks, pieces or chunks, wherever they are; `apply` turns an element into its result. Schedules (which piece
when, on which thread) belong to the backends.
"""

from typing import Any, NamedTuple

from ._vocabulary import fma, magnitude, minimum, select, sqrt


class Statistics(NamedTuple):
    """A piece of a row: ``sum((scale * x)**2) == squares`` over `count` elements. `scale` is a power of two."""

    scale: Any
    count: Any
    squares: Any


def accumulate_square(squares, x):
    """One more element of a chain."""
    return fma(x, x, squares)


def rescue_scale(squares, lifted_eps, bounds):
    """The scale with which a piece must be summed again, given its plain sum; 1: the sum is good. NaN and inf drop.

    Where eps outweighs whatever squares lose to underflow, a tiny piece needs no lifting, but a sum of 0 does: to tell
    a piece of zeros, which are common, from one of numbers that a weight may bring back.
    """
    lift = select((lifted_eps < bounds.faint_eps) | (squares == bounds.zero), bounds.lift, bounds.one)
    return select(squares < bounds.small, lift, select(squares <= bounds.large, bounds.one, bounds.drop))


def join(a, b):
    """The statistics of two pieces together. All factors but the sum are powers of two, hence exact."""
    scale = minimum(a.scale, b.scale)
    to_a = scale / a.scale
    to_b = scale / b.scale
    return Statistics(scale, a.count + b.count, a.squares * to_a * to_a + b.squares * to_b * to_b)


class Factors(NamedTuple):
    """What `apply` needs of a row besides its elements: ``y = scale * x * inverse * weight``."""

    scale: Any
    inverse: Any
    common: Any  # nearly every row: scale is 1 (or x is 0) and no product on the way to y leaves the range


def lift_eps_of_squares(eps, bounds):
    """An eps in units of ``x**2``, as a lifted row sees it."""
    return eps * bounds.lift * bounds.lift


def lift_eps_of_length(eps, bounds):
    """An eps in units of x, squared: what `rescue_scale` compares is in units of ``x**2``."""
    return eps * bounds.lift * (eps * bounds.lift)


def settle_rms(row, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * sqrt(mean(x**2) + eps))``; 0 for a row of zeros.

    One root of one quotient: three roundings, where ``1 / sqrt(squares / count + eps)`` has four. Above and below the
    fraction bar stands `shrink`, so that no eps overflows there.
    """
    drowned = (row.scale > bounds.one) & (lifted_eps >= bounds.faint_eps)  # lifted for nothing: eps is all that counts
    scale = select(drowned, bounds.one, row.scale)
    squares = select(drowned, bounds.zero, row.squares)
    floor = select(scale > bounds.one, lifted_eps, eps * scale * scale)
    shrink = select(floor > bounds.one, bounds.drop, bounds.one)
    count = row.count * shrink
    power = fma(count, floor, squares * shrink)
    inverse = select(row.squares == bounds.zero, bounds.zero, sqrt(count / power))
    common = ((scale == bounds.one) & (squares >= bounds.small)) | (row.squares == bounds.zero)
    return Factors(scale, inverse, common)


def settle_unit(row, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * max(length, eps))``; 0 for a row of zeros. A length of NaN stays NaN."""
    drowned = (row.scale > bounds.one) & (lifted_eps >= bounds.faint_eps)
    scale = select(drowned, bounds.one, row.scale)
    squares = select(drowned, bounds.zero, row.squares)
    floor = select(scale > bounds.one, sqrt(lifted_eps), eps * scale)
    length = sqrt(squares)
    longest = select(floor > length, floor, length)
    inverse = select(row.squares == bounds.zero, bounds.zero, bounds.one / longest)
    common = ((scale == bounds.one) & (squares >= bounds.small)) | (row.squares == bounds.zero)
    return Factors(scale, inverse, common)


def is_light(weight, bounds):
    """False for a weight so large that it brings back what a subnormal ``x * inverse`` has lost."""
    return magnitude(weight) <= bounds.heavy


def apply_common(x, inverse, weight):
    """The result for an element of a common row with a light weight."""
    return x * inverse * weight


def apply_any(x, row, weight, bounds):
    """The result for any element: elsewhere scaled as its squares were, and lifted where a factor nears underflow.

    What is not selected may be infinite. What is: ``lifted`` is below 1 where `y` is tiny, and so is its first factor where
    only `scaled` is.
    """
    scaled = x * row.scale
    y = scaled * row.inverse
    lifted = x * bounds.lift * row.scale * row.inverse
    exact = select(magnitude(scaled) < bounds.small, lifted * bounds.unlift, y)
    rescued = select(magnitude(y) < bounds.small, lifted * weight * bounds.unlift, exact * weight)
    return select(row.common & is_light(weight, bounds), apply_common(x, row.inverse, weight), rescued)


class Norm(NamedTuple):
    """What makes a norm: what follows from the statistics of a row, and what a lifted row sees of eps."""

    settle: Any
    lift_eps: Any


NORMS = {
    "rms_norm": Norm(settle_rms, lift_eps_of_squares),
    "unit_norm": Norm(settle_unit, lift_eps_of_length),
}
FORMULAS = (
    accumulate_square,
    rescue_scale,
    join,
    lift_eps_of_squares,
    lift_eps_of_length,
    settle_rms,
    settle_unit,
    is_light,
    apply_common,
    apply_any,
)
