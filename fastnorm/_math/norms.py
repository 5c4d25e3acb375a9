"""Formulas of the norms.

A norm is three formulas. The statistics of a piece of a row are joined to those of its neighbours, so that a row may be cut
into blocks, pieces or chunks, wherever they are; `settle` says what follows from those of the whole row; `apply` turns an
element into its result.
"""

from typing import Any, NamedTuple

from .._vocabulary import fma, magnitude, maximum, minimum, select, sqrt


# ------------------------------------------------------------------------------------------- statistics of a piece
class Power(NamedTuple):
    """A piece of a row about zero: ``sum((scale * x)**2) == squares + lost`` over `count` elements.

    `scale` is a power of two. What is `lost` are roundings of `squares`.
    """

    scale: Any
    count: Any
    squares: Any
    lost: Any


class Moments(NamedTuple):
    """A piece of a row about a shift: `total` is the sum of ``d = scale * (x - shift)``, `squares` that of ``d**2``."""

    scale: Any
    count: Any
    total: Any
    squares: Any
    lost: Any


class Shifted(NamedTuple):
    """Moments of a piece, and the shift that they are about: of pieces that each choose their own."""

    scale: Any
    count: Any
    total: Any
    squares: Any
    lost: Any
    shift: Any


class Exact(NamedTuple):
    """A sum, and what its roundings have lost."""

    total: Any
    lost: Any


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


def add_exact(sums, x):
    """One more number. What the sum loses by rounding is found exactly (Knuth)."""
    total = sums.total + x
    added = total - sums.total
    return Exact(total, sums.lost + ((sums.total - (total - added)) + (x - added)))


def join_exact(a, b):
    """Two sums together, in either order."""
    return add_exact(Exact(a.total, a.lost + b.lost), b.total)


# An element that outweighs all others takes the last bits of their squares, wherever these are added to its own: seven times
# along its chain, six times among the chains, then block by block. So a block of more than 64 elements that has one, or up to
# five of one size, is summed again with what its roundings lose.
def is_dominated(chain, squares, bounds):
    """True if one of 64 chains has so much of the squares of a block that few elements may outweigh the others."""
    return chain > squares * bounds.much


def add_square_exactly(sums, x, bounds):
    """One more element of a chain, and what its square and its sum lose by rounding."""
    square = x * x
    return join_exact(sums, Exact(square, fma(x, x, bounds.zero - square)))


def with_lost(sums):
    """A sum rounded but once; what an infinite one has lost is NaN."""
    return select(sums.lost == sums.lost, sums.total + sums.lost, sums.total)


def join_powers(a, b):
    """The statistics of two pieces together. All factors but the sum are powers of two, hence exact."""
    scale = minimum(a.scale, b.scale)
    to_a = scale / a.scale
    to_b = scale / b.scale
    of_a = Exact(a.squares * to_a * to_a, a.lost * to_a * to_a)
    of_b = Exact(b.squares * to_b * to_b, b.lost * to_b * to_b)
    squares = join_exact(of_a, of_b)
    return Power(scale, a.count + b.count, squares.total, squares.lost)


def join_moments(a, b):
    """The statistics of two pieces together, both about the same shift."""
    both = join_powers(Power(a.scale, a.count, a.squares, a.lost), Power(b.scale, b.count, b.squares, b.lost))
    total = a.total * (both.scale / a.scale) + b.total * (both.scale / b.scale)
    return Moments(both.scale, both.count, total, both.squares, both.lost)


# ------------------------------------------------------------------------------------------------------- the shift
# Variance is the mean square less the square of the mean. Far from zero the two are nearly equal, and their difference is
# what rounding has left. So the mean is guessed first, from the first elements of a row, and subtracted from every element.
def scaled_distance(x, shift, scale, bounds):
    """``scale * (x - shift)``: dropped before the difference could overflow, lifted after it."""
    before = minimum(scale, bounds.one)
    return (x * before - shift * before) * (scale / before)


def guess_mean(first, total, count, bounds):
    """The shift of a row: the mean of its first 64 elements, rounded.

    `total` is the sum of a `fraction` of their distances from `first`: so small a part that the sum cannot overflow. If the
    elements are equal, the shift is exactly `first`, and so the result for a row of equal numbers exactly its bias.
    """
    guess = (first * bounds.fraction + total / count) / bounds.fraction
    return select(total == bounds.zero, first, guess)


def add_distance_exactly(sums, x, shift, scale, bounds):
    """One more ``x - shift``: the difference and the sum as rounded, and exactly what both lose by it.

    For the mean of a few elements. In a short row a heavy weight may stand beside a small deviation, and light ones beside
    the large deviations whose roundings make up the error of the mean.
    """
    before = minimum(scale, bounds.one)
    x = x * before
    shift = shift * before
    distance = x - shift
    back = x - distance
    return join_exact(sums, Exact(distance, (x - (distance + back)) + (back - shift)))


def with_total(row, sums, bounds):
    """Statistics with an exact total."""
    return Moments(row.scale, row.count, (sums.total + sums.lost) * maximum(row.scale, bounds.one), row.squares, row.lost)


def is_off_centre(row, bounds):
    """True if the guess was too bad: the mean lies further from it than half a deviation.

    The variance then is a difference of nearer numbers; up to here it loses less than a unit in the last place by it. The
    mean of 64 normal numbers is four times nearer, so that one row in 16 000 is summed again.
    """
    mean = row.total / row.count
    variation = fma(mean, bounds.zero - row.total, row.squares)
    return (mean + mean) * (row.total + row.total) > variation


def better_guess(row, shift, bounds):
    """The mean of a row, rounded: the shift to sum it again with."""
    before = minimum(row.scale, bounds.one)
    return (shift * before + row.total / row.count / (row.scale / before)) / before


# -------------------------------------------------------------------------------- pieces that do not share a shift
def moved(row, shift, scale, bounds):
    """Moments of a `Shifted` about another shift, at another scale."""
    by = scaled_distance(row.shift, shift, scale, bounds)
    total = row.total * (scale / row.scale)
    squares = row.squares * (scale / row.scale) * (scale / row.scale)
    lost = row.lost * (scale / row.scale) * (scale / row.scale)
    way = row.count * by
    return Moments(scale, row.count, total + way, fma(by, total + total + way, squares), lost)


def join_shifted(a, b, lifted_eps, bounds):
    """The statistics of two pieces together, each about a shift near its own mean; about the mean of both.

    Both are moved, so that no piece, however far off, decides what the others are measured from. A move only adds a square to a
    sum of squares about the mean, so nothing cancels. The way between the shifts may ask for another scale than either piece.
    """
    way = b.shift - a.shift
    scale = minimum(minimum(a.scale, b.scale), rescue_scale(way * way * (a.count + b.count), lifted_eps, bounds))
    about_a = join_moments(moved(a, a.shift, scale, bounds), moved(b, a.shift, scale, bounds))
    shift = better_guess(about_a, a.shift, bounds)
    both = join_moments(moved(a, shift, scale, bounds), moved(b, shift, scale, bounds))
    return Shifted(*both, shift)


# ------------------------------------------------------------------------------------------- what follows for a row
class Factors(NamedTuple):
    """What applying needs of a row besides its elements: ``y = scale * x * inverse * weight``."""

    scale: Any
    inverse: Any
    common: Any  # nearly every row: scale is 1 (or x is 0) and no product on the way to y leaves the range


class CentredFactors(NamedTuple):
    """The same about a mean: ``y = (scale * (x - shift) - mean) * inverse * unlift * weight + bias``."""

    scale: Any
    inverse: Any
    common: Any
    shift: Any
    mean: Any  # of ``scale * (x - shift)``
    unlift: Any  # 1, but where a row was lifted for nothing, since eps drowns it


def lift_eps_of_squares(eps, bounds):
    """An eps in units of ``x**2``, as a lifted row sees it."""
    return eps * bounds.lift * bounds.lift


def lift_eps_of_length(eps, bounds):
    """An eps in units of x, squared: what `rescue_scale` compares is in units of ``x**2``."""
    return eps * bounds.lift * (eps * bounds.lift)


def settle_rms(row, shift, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * sqrt(mean(x**2) + eps))``; 0 for a row of zeros.

    One root of one quotient: three roundings, where ``1 / sqrt(squares / count + eps)`` has four. Above and below the
    fraction bar stands `shrink`, so that no eps overflows there.
    """
    drowned = (row.scale > bounds.one) & (lifted_eps >= bounds.faint_eps)  # lifted for nothing: eps is all that counts
    scale = select(drowned, bounds.one, row.scale)
    squares = select(drowned, bounds.zero, with_lost(Exact(row.squares, row.lost)))
    floor = select(scale > bounds.one, lifted_eps, eps * scale * scale)
    shrink = select(floor > bounds.one, bounds.drop, bounds.one)
    count = row.count * shrink
    power = fma(count, floor, squares * shrink)
    inverse = select(row.squares == bounds.zero, bounds.zero, sqrt(count / power))
    common = ((scale == bounds.one) & (squares >= bounds.small)) | (row.squares == bounds.zero)
    return Factors(scale, inverse, common)


def settle_unit(row, shift, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * max(length, eps))``; 0 for a row of zeros. A length of NaN stays NaN."""
    drowned = (row.scale > bounds.one) & (lifted_eps >= bounds.faint_eps)
    scale = select(drowned, bounds.one, row.scale)
    squares = select(drowned, bounds.zero, with_lost(Exact(row.squares, row.lost)))
    floor = select(scale > bounds.one, sqrt(lifted_eps), eps * scale)
    length = sqrt(squares)
    longest = select(floor > length, floor, length)
    inverse = select(row.squares == bounds.zero, bounds.zero, bounds.one / longest)
    ordinary = (scale == bounds.one) & (squares >= bounds.small) & (floor <= bounds.heavy)
    common = ordinary | (row.squares == bounds.zero)
    return Factors(scale, inverse, common)


def settle_layer(row, shift, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * sqrt(variance + eps))``, as `settle_rms` of the row less its mean; 0 for equal numbers."""
    mean = row.total / row.count
    variation = with_lost(Exact(fma(mean, bounds.zero - row.total, row.squares), row.lost))
    variation = select(variation <= bounds.zero, bounds.zero, variation)
    centred = settle_rms(Power(row.scale, row.count, variation, bounds.zero), shift, eps, lifted_eps, bounds)
    unlift = select(centred.scale == row.scale, bounds.one, bounds.unlift)
    return CentredFactors(row.scale, centred.inverse, centred.common, shift, mean, unlift)


# ---------------------------------------------------------------------------------------------- the result, applied
def is_ordinary(weight, bounds):
    """False for a weight so large or small that its product with the `inverse` of a common row might leave the range."""
    size = magnitude(weight)
    return (size == bounds.zero) | ((size >= bounds.light) & (size <= bounds.heavy))


def apply_common(x, row, weight, bias):
    """The result for an element of a common row with an ordinary weight.

    The factors come first: their product is in range, whatever x is, so that only a result may be subnormal. Were it
    ``x * inverse``, a large weight would bring back what that has lost.
    """
    return x * (row.inverse * weight)


def apply_any(x, row, weight, bias, bounds):
    """The result for any element: elsewhere scaled as its squares were, and lifted where a factor nears underflow.

    What is not selected may be infinite or NaN. What is: ``lifted`` is below 1 where `y` is tiny, and so is its first factor
    where only `scaled` is. It is not below 1 where it is NaN, as it is of a large element beside an infinity, whose `y` is 0.
    Where even ``lifted`` is tiny, a weight that matters is so large that it can come first, dropped.
    """
    scaled = x * row.scale
    y = scaled * row.inverse
    first = x * bounds.lift * row.scale
    lifted = first * row.inverse
    exact = select(magnitude(scaled) < bounds.small, lifted * bounds.unlift, y)
    tiny = select(
        magnitude(lifted) < bounds.small, first * (weight * bounds.unlift) * row.inverse, lifted * weight * bounds.unlift
    )
    rescued = select(magnitude(lifted) < bounds.one, tiny, exact * weight)
    return select(row.common & is_ordinary(weight, bounds), apply_common(x, row, weight, bias), rescued)


def apply_common_centred(x, row, weight, bias):
    """The result for an element of a common row, with any weight: what a tiny element loses is nothing beside the largest."""
    return fma((x - row.shift - row.mean) * row.inverse, weight, bias)


def apply_any_centred(x, row, weight, bias, bounds):
    """The result for any element: scaled as its squares were. It nears underflow only where eps drowns a lifted row."""
    lifted = (scaled_distance(x, row.shift, row.scale, bounds) - row.mean) * row.inverse
    y = lifted * row.unlift
    rescued = select(magnitude(y) < bounds.small, fma(lifted * weight, row.unlift, bias), fma(y, weight, bias))
    return select(row.common, apply_common_centred(x, row, weight, bias), rescued)


# ---------------------------------------------------------------------------------------------------- the norms
class Norm(NamedTuple):
    """What makes a norm: the statistics it needs, what follows from those of a row, and how that is applied."""

    join: Any  # of Power, or of Moments: about zero, or about the mean
    lift_eps: Any  # what a lifted row sees of eps
    settle: Any
    apply_common: Any
    apply_any: Any
    centred: bool  # by Moments, hence with a shift
    biased: bool  # takes a bias; if not, formulas must not look at the one they are given: on a CPU the weight stands there
    wary: bool  # `apply_common` takes ordinary weights only


NORMS = {
    "rms_norm": Norm(join_powers, lift_eps_of_squares, settle_rms, apply_common, apply_any, False, False, True),
    "unit_norm": Norm(join_powers, lift_eps_of_length, settle_unit, apply_common, apply_any, False, False, True),
    "layer_norm": Norm(
        join_moments, lift_eps_of_squares, settle_layer, apply_common_centred, apply_any_centred, True, True, False
    ),
}
