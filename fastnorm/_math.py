"""Every formula, once. No loop, no branch, no literal, no backend: operators and the words of `_vocabulary`.

A norm is three formulas. The statistics of a piece of a row are joined to those of its neighbours, so that a row may be cut
into blocks, pieces or chunks, wherever they are; `settle` says what follows from those of the whole row; `apply` turns an
element into its result. Schedules (which piece when, on which thread) belong to the backends.
"""

from typing import Any, NamedTuple

from ._vocabulary import fma, functions_of, logarithm, magnitude, maximum, minimum, polynomial, select, sqrt, two_to


# ------------------------------------------------------------------------------------------- statistics of a piece
class Power(NamedTuple):
    """A piece of a row about zero: ``sum((scale * x)**2) == squares`` over `count` elements. `scale` is a power of two."""

    scale: Any
    count: Any
    squares: Any


class Moments(NamedTuple):
    """A piece of a row about a shift: `total` is the sum of ``d = scale * (x - shift)``, `squares` that of ``d**2``."""

    scale: Any
    count: Any
    total: Any
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


def join_powers(a, b):
    """The statistics of two pieces together. All factors but the sum are powers of two, hence exact."""
    scale = minimum(a.scale, b.scale)
    to_a = scale / a.scale
    to_b = scale / b.scale
    return Power(scale, a.count + b.count, a.squares * to_a * to_a + b.squares * to_b * to_b)


def join_moments(a, b):
    """The statistics of two pieces together, both about the same shift."""
    both = join_powers(Power(a.scale, a.count, a.squares), Power(b.scale, b.count, b.squares))
    return Moments(both.scale, both.count, a.total * (both.scale / a.scale) + b.total * (both.scale / b.scale), both.squares)


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


class Exact(NamedTuple):
    """A sum, and what its roundings have lost."""

    total: Any
    lost: Any


def add_exactly(sums, x, shift, scale, bounds):
    """One more ``x - shift``: the difference and the sum as rounded, and exactly what both lose by it.

    For the mean of a few elements. In a short row a heavy weight may stand beside a small deviation, and light ones beside
    the large deviations whose roundings make up the error of the mean.
    """
    before = minimum(scale, bounds.one)
    x = x * before
    shift = shift * before
    distance = x - shift
    back = x - distance
    total = sums.total + distance
    added = total - sums.total
    lost = (x - (distance + back)) + (back - shift)
    return Exact(total, sums.lost + (lost + ((sums.total - (total - added)) + (distance - added))))


def with_total(row, sums, bounds):
    """Statistics with an exact total."""
    return Moments(row.scale, row.count, (sums.total + sums.lost) * maximum(row.scale, bounds.one), row.squares)


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
    squares = select(drowned, bounds.zero, row.squares)
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
    squares = select(drowned, bounds.zero, row.squares)
    floor = select(scale > bounds.one, sqrt(lifted_eps), eps * scale)
    length = sqrt(squares)
    longest = select(floor > length, floor, length)
    inverse = select(row.squares == bounds.zero, bounds.zero, bounds.one / longest)
    common = ((scale == bounds.one) & (squares >= bounds.small)) | (row.squares == bounds.zero)
    return Factors(scale, inverse, common)


def settle_layer(row, shift, eps, lifted_eps, bounds):
    """``inverse = 1 / (scale * sqrt(variance + eps))``, as `settle_rms` of the row less its mean; 0 for equal numbers."""
    mean = row.total / row.count
    variation = fma(mean, bounds.zero - row.total, row.squares)
    variation = select(variation <= bounds.zero, bounds.zero, variation)
    centred = settle_rms(Power(row.scale, row.count, variation), shift, eps, lifted_eps, bounds)
    unlift = select(centred.scale == row.scale, bounds.one, bounds.unlift)
    return CentredFactors(row.scale, centred.inverse, centred.common, shift, mean, unlift)


# ---------------------------------------------------------------------------------------------- the result, applied
def is_light(weight, bounds):
    """False for a weight so large that it brings back what a subnormal ``x * inverse`` has lost."""
    return magnitude(weight) <= bounds.heavy


def apply_common(x, row, weight, bias):
    """The result for an element of a common row with a light weight."""
    return x * row.inverse * weight


def apply_any(x, row, weight, bias, bounds):
    """The result for any element: elsewhere scaled as its squares were, and lifted where a factor nears underflow.

    What is not selected may be infinite. What is: ``lifted`` is below 1 where `y` is tiny, and so is its first factor where
    only `scaled` is. Where even ``lifted`` is tiny, a weight that matters is so large that it can come first, dropped.
    """
    scaled = x * row.scale
    y = scaled * row.inverse
    first = x * bounds.lift * row.scale
    lifted = first * row.inverse
    exact = select(magnitude(scaled) < bounds.small, lifted * bounds.unlift, y)
    tiny = select(
        magnitude(lifted) < bounds.small, first * (weight * bounds.unlift) * row.inverse, lifted * weight * bounds.unlift
    )
    rescued = select(magnitude(y) < bounds.small, tiny, exact * weight)
    return select(row.common & is_light(weight, bounds), apply_common(x, row, weight, bias), rescued)


def apply_common_centred(x, row, weight, bias):
    """The result for an element of a common row, with any weight: what a tiny element loses is nothing beside the largest."""
    return fma((x - row.shift - row.mean) * row.inverse, weight, bias)


def apply_any_centred(x, row, weight, bias, bounds):
    """The result for any element: scaled as its squares were. It nears underflow only where eps drowns a lifted row."""
    lifted = (scaled_distance(x, row.shift, row.scale, bounds) - row.mean) * row.inverse
    y = lifted * row.unlift
    rescued = select(magnitude(y) < bounds.small, fma(lifted * weight, row.unlift, bias), fma(y, weight, bias))
    return select(row.common, apply_common_centred(x, row, weight, bias), rescued)


# ----------------------------------------------------------------------------------------- exponentials up to exp(0)
class Parts(NamedTuple):
    """An exponential in two parts: ``power * (1 + rest)``, the first a power of two."""

    power: Any
    rest: Any


def exponential_parts(x, numbers):
    """``x = n * ln 2 + r``: two to the n, and ``exp(r) - 1``. Where n leaves the normal numbers, `power` is 0; NaN stays.

    The product with ln 2 is exact, in `fma`, but ln 2 is not: that is n / 60 units in the last place in float32, n / 10 in
    float64, of an exponential that is 2**n times that of 0. A second step would cost a tenth of all this.
    """
    x = maximum(numbers.least, x)
    shifted = fma(x, numbers.log2_e, numbers.shift)
    n = shifted - numbers.shift
    r = fma(n, numbers.zero - numbers.ln2, x)
    return Parts(two_to(shifted), r * polynomial(r, numbers.coefficients))


def exponential(x, numbers):
    """``exp(x)`` for x up to 0, within 1.5 units in the last place near 0; 0 where it is subnormal."""
    parts = exponential_parts(x, numbers)
    return fma(parts.power, parts.rest, parts.power)


def hyperbolic_tangent(x, numbers):
    """``tanh(x)``: of ``exp(-2 * |x|) - 1``, which is exact in relative terms near 0."""
    parts = exponential_parts(magnitude(x) * (numbers.zero - numbers.two), numbers)
    less_one = fma(parts.power, parts.rest, parts.power - numbers.one)
    y = less_one / (numbers.two + less_one)
    return select(x < numbers.zero, y, numbers.zero - y)


# --------------------------------------------------------------------------------------------- softmax and attention
class Weights(NamedTuple):
    """What is known of some scores: the largest, and the sum of ``exp(score - reference(largest))``."""

    largest: Any
    total: Any


def reference(largest, numbers):
    """What scores are compared with: the largest, or 0 if all are minus infinity, so that their weights are 0, not NaN."""
    return select(largest == numbers.nothing, numbers.zero, largest)


def weight_of(score, against, numbers):
    """The weight of a score: 1 for that of the reference."""
    return exponential(score - against, numbers)


class Step(NamedTuple):
    """What changes when more scores come."""

    largest: Any
    against: Any  # what they are compared with
    factor: Any  # of all sums so far


def next_step(before, largest, numbers):
    """Prepare for scores up to `largest`, after others whose largest was `before`."""
    largest = maximum(largest, before)
    against = reference(largest, numbers)
    return Step(largest, against, weight_of(before, against, numbers))


class Mixture(NamedTuple):
    """Two sets of scores together: the largest, and the factors of all sums over the one and over the other."""

    largest: Any
    of_a: Any
    of_b: Any


def mix(a, b, numbers):
    """Prepare to add up two sets of scores whose largest are `a` and `b`."""
    largest = maximum(a, b)
    against = reference(largest, numbers)
    return Mixture(largest, weight_of(a, against, numbers), weight_of(b, against, numbers))


def mixed(a, b, mixture):
    """The sum over both of what was summed over each: weights, or weighted values."""
    return a * mixture.of_a + b * mixture.of_b


def add_totals(a, b):
    """The sums of two parts of a row together, both about the same score."""
    return a + b


def log_sum(weights, numbers):
    """The logarithm of the sum of the exponentials of scores; minus infinity if there is none."""
    return reference(weights.largest, numbers) + logarithm(weights.total)


def share_of(part, whole, numbers):
    """The factor that makes a mean over a part of the scores its share of the mean over the whole, given `log_sum` of both."""
    return select(part == numbers.nothing, numbers.zero, weight_of(part, reference(whole, numbers), numbers))


def grown(total, more, step):
    """A sum of weights, with those of more scores."""
    return fma(total, step.factor, more)


class Comparison(NamedTuple):
    """How elements of a row are compared with that of its largest score."""

    before: Any
    against: Any
    after: Any


def comparison(largest, smallest, sign, scale, fraction, numbers):
    """How to compare, given the extremes of a row times the sign of the scale.

    `before` is 1, and differences exact, but where one would overflow and the scaled one would not.
    """
    before = select(magnitude(largest - smallest) <= numbers.zero - numbers.lowest, numbers.one, fraction)
    against = numbers.zero - reference(largest, numbers) * sign * before
    return Comparison(before, against, scale / before)


def scaled_difference(x, how):
    """``scale * (x - y)``, where y has the largest score."""
    return fma(x, how.before, how.against) * how.after


def with_distance(score, slope, position, key):
    """A score less its key's distance from the query, times a slope (ALiBi)."""
    return score - slope * magnitude(position - key)


def with_bias(score, bias, numbers):
    """A score and what a mask adds: minus infinity forbids, and a finite sum that overflows stays finite."""
    total = score + bias
    finite = magnitude(score) <= numbers.zero - numbers.lowest
    return select(bias == numbers.nothing, numbers.nothing, select(finite, maximum(numbers.lowest, total), total))


def capped(score, cap, numbers):
    """A score kept within ``-cap .. cap``."""
    return cap * hyperbolic_tangent(score / cap, numbers)


def rotated(x, y, cosine, sine):
    """A pair of features, turned by an angle."""
    return Pair(x * cosine - y * sine, fma(y, cosine, x * sine))


class Pair(NamedTuple):
    """Two features that are turned together."""

    x: Any
    y: Any


# ---------------------------------------------------------------------------------------------------- the norms
class Norm(NamedTuple):
    """What makes a norm: the statistics it needs, what follows from those of a row, and how that is applied."""

    join: Any  # of Power, or of Moments: about zero, or about the mean
    lift_eps: Any  # what a lifted row sees of eps
    settle: Any
    apply_common: Any
    apply_any: Any
    centred: bool  # by Moments, hence with a shift
    biased: bool  # takes a bias
    wary: bool  # heavy weights are not for `apply_common`


NORMS = {
    "rms_norm": Norm(join_powers, lift_eps_of_squares, settle_rms, apply_common, apply_any, False, False, True),
    "unit_norm": Norm(join_powers, lift_eps_of_length, settle_unit, apply_common, apply_any, False, False, True),
    "layer_norm": Norm(
        join_moments, lift_eps_of_squares, settle_layer, apply_common_centred, apply_any_centred, True, True, False
    ),
}
FORMULAS = functions_of(globals())
