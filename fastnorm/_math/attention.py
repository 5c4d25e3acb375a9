"""Formulas of softmax, attention and RoPE."""

from typing import Any, NamedTuple

from .._vocabulary import fma, logarithm, magnitude, maximum, minimum, polynomial, select, two_to


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


def infinite_as_nan(score, numbers):
    """A score, or not a number where it has overflowed, and so is what depends on it."""
    return fma(score, numbers.zero, score)


class Lift(NamedTuple):
    """What makes scores of those that are kept small: two powers of two, of which one alone might overflow."""

    first: Any
    second: Any


def lift_for(size, power, numbers):
    """The lift of scores of a query whose largest feature is `size`, times `power`: its products then cannot overflow."""
    n = (logarithm(size) + logarithm(power)) * numbers.log2_e + numbers.margin
    n = minimum(maximum(n, numbers.zero), numbers.highest_lift)
    half = n / numbers.two + numbers.shift
    return Lift(two_to(half), two_to(n - (half - numbers.shift) + numbers.shift))


def lift_further(lift, excess, numbers):
    """The lift where a factor of the scale was left out, too; as far as there are numbers."""
    return Lift(lift.first, minimum(lift.second * excess, numbers.zero - numbers.lowest))


def lifted(x, lift):
    """What is kept small, as it is."""
    return x * lift.first * lift.second


def lowered(x, lift, numbers):
    """What is to be kept small, made so."""
    return x * (numbers.one / lift.first) * (numbers.one / lift.second)


def weight_of(score, against, lift, numbers):
    """The weight of a score: 1 for that of the reference."""
    return exponential(lifted(score - against, lift), numbers)


def mean_of(total, inverse, shrink, numbers):
    """A mean of values whose sum was kept small by a factor: rounding brings none beyond the largest number."""
    mean = total * inverse
    bound = numbers.lowest * shrink
    within = minimum(maximum(bound, mean), numbers.zero - bound)
    return select(magnitude(mean) <= numbers.zero - numbers.lowest, within, mean) / shrink


class Step(NamedTuple):
    """What changes when more scores come."""

    largest: Any
    against: Any  # what they are compared with
    factor: Any  # of all sums so far


def next_step(before, largest, lift, numbers):
    """Prepare for scores up to `largest`, after others whose largest was `before`."""
    largest = maximum(largest, before)
    against = reference(largest, numbers)
    return Step(largest, against, weight_of(before, against, lift, numbers))


class Mixture(NamedTuple):
    """Two sets of scores together: the largest, and the factors of all sums over the one and over the other."""

    largest: Any
    of_a: Any
    of_b: Any


def mix(a, b, lift, numbers):
    """Prepare to add up two sets of scores whose largest are `a` and `b`."""
    largest = maximum(a, b)
    against = reference(largest, numbers)
    return Mixture(largest, weight_of(a, against, lift, numbers), weight_of(b, against, lift, numbers))


def mixed(a, b, mixture):
    """The sum over both of what was summed over each: weights, or weighted values."""
    return a * mixture.of_a + b * mixture.of_b


def is_outweighed(total, numbers):
    """True if the exponential of the largest score, 1, is so much of the sum that what it takes from others may show."""
    return total < numbers.two + numbers.two


def add_totals(a, b):
    """The sums of two parts of a row together, both about the same score."""
    return a + b


def log_sum(weights, numbers):
    """The logarithm of the sum of the exponentials of scores; minus infinity if there is none."""
    return reference(weights.largest, numbers) + logarithm(weights.total)


def share_of(part, whole, numbers):
    """The factor that makes a mean over a part of the scores its share of the mean over the whole, given `log_sum` of both."""
    return select(part == numbers.nothing, numbers.zero, exponential(part - reference(whole, numbers), numbers))


def grown(total, more, factor):
    """A sum of weights, with those of more scores; `factor` is that of a `Step`."""
    return fma(total, factor, more)


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


def with_distance(score, slope, position, key, numbers):
    """A score less its key's distance from the query, times a slope (ALiBi): what overflows stays finite."""
    total = score - slope * magnitude(position - key)
    return select(magnitude(score) <= numbers.zero - numbers.lowest, maximum(numbers.lowest, total), total)


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
