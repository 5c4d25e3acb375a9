"""The words that a formula may use, with their bodies for whole NumPy arrays.

A formula in `_math` is built from operators and from these words alone, so that one text serves four kinds of value:

==================  =======================================  =========================
value               where                                    bodies of the words
==================  =======================================  =========================
NumPy arrays        chunks of Dask, tests, plans             this file
lanes of a register CPU kernels                              `_cpu/simd.py`
one CPU number      CPU kernels, once a block or row         `_cpu/simd.py`
one GPU number      CUDA kernels                             `_cuda/block.py`
==================  =======================================  =========================

Beside the words stand what formulas are given, the constants of a dtype (`RANGES`, `EXPONENTIALS`), and the names of the dtypes
that kernels can be made for (`STORED`, `COMPUTED`).

Nothing here imports numba. To add a word: a function here, and its bodies in the two files named above;
`tests/test_vocabulary.py` holds the bodies against each other.
"""

import functools
import math
from typing import NamedTuple

import numpy as np


def fma(a, b, c):
    """``a * b + c``, rounded once where the processor can (this NumPy body rounds twice)."""
    return a * b + c


def sqrt(x):
    """Correctly rounded square root."""
    return np.sqrt(x)


def magnitude(x):
    """Absolute value."""
    return np.abs(x)


def minimum(a, b):
    """The smaller; of no meaning where one is NaN."""
    return np.minimum(a, b)


def maximum(a, b):
    """The larger; of no meaning where one is NaN."""
    return np.maximum(a, b)


def select(condition, if_true, if_false):
    """Element-wise choice. Both sides are computed, so neither may have a side effect."""
    return np.where(condition, if_true, if_false)


def polynomial(x, coefficients):
    """``coefficients[0] + coefficients[1] * x + ...``, by Horner's rule in `fma`."""
    result = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = fma(result, x, coefficient)
    return result


def two_to(shifted):
    """``2**n`` of a whole number n, given as `Exponential.shift` + n; 0 for n one below the least normal exponent."""
    shifted = np.asarray(shifted)
    kind, digits, bias = {4: (np.int32, 23, 127), 8: (np.int64, 52, 1023)}[shifted.itemsize]
    return ((shifted.view(kind) + kind(bias)) << kind(digits)).view(shifted.dtype)


def logarithm(x):
    """Natural logarithm, of single numbers."""
    with np.errstate(divide="ignore"):
        return np.log(x)


class Exponential(NamedTuple):
    """What `_math.exponential` takes of one dtype.

    `coefficients` are those of ``(exp(r) - 1) / r`` for `r` within half of ln 2 about zero, such that the largest error of
    exp(r) is least: 2**-26 of it in float32 once they are rounded, 2**-58 in float64 (fitted with 60 digits).
    """

    zero: np.floating
    one: np.floating
    two: np.floating
    nothing: np.floating  # minus infinity
    lowest: np.floating  # the most negative finite number
    least: np.floating  # arguments below this, whose exponential is subnormal, give 0
    log2_e: np.floating
    shift: np.floating  # adding it rounds to a whole number, whose bits then are the lowest of the sum
    ln2: np.floating
    margin: np.floating  # binary digits by which a query is kept below 1 where its scores might overflow
    shrink: np.floating  # of weights: leaves room for sums of values over 2**40 keys
    sharpest: np.floating  # exponent of 2 of the largest power that is taken from a scale
    highest_lift: np.floating  # that of the largest number times such a power, with the margin
    coefficients: tuple[np.floating, ...]


def _exponential(dtype, digits, least_exponent, sharpest, coefficients):
    """The constants of a dtype whose numbers have so many digits behind the first."""
    return Exponential(
        zero=dtype(0),
        one=dtype(1),
        two=dtype(2),
        nothing=dtype(-np.inf),
        lowest=np.finfo(dtype).min,
        least=dtype(least_exponent * 0.6931471805599453),
        log2_e=dtype(1.4426950408889634),
        shift=dtype(1.5 * 2.0**digits),
        ln2=dtype(0.6931471805599453),
        margin=dtype(20),
        shrink=dtype(2.0**-40),
        sharpest=dtype(sharpest),
        highest_lift=dtype(1 - least_exponent + sharpest + 20),
        coefficients=tuple(map(dtype, coefficients)),
    )


_COEFFICIENTS32 = (1.0, 0.50000001273, 0.16666416258, 0.041666142837, 0.0083750950713, 0.0013953484326)
_COEFFICIENTS64 = (
    1.0,
    0.50000000000000130,
    0.16666666666666715,
    0.041666666666513804,
    0.0083333333333023612,
    0.0013888888947400327,
    0.00019841269924029195,
    2.4801489567857374e-5,
    2.7557211994472174e-6,
    2.7631408593830816e-7,
    2.5118928326914580e-8,
)
EXPONENTIALS = {
    "float32": _exponential(np.float32, 23, -127, 100, _COEFFICIENTS32),
    "float64": _exponential(np.float64, 52, -1023, 900, _COEFFICIENTS64),
}


class Range(NamedTuple):
    """What is safe in one accumulation dtype. Literals would widen a GPU's float32 to double, so formulas take these.

    Squares are summed as they are. Where the sum leaves ``small .. large``, or is not a number, the piece is summed
    again, multiplied by `lift` or `drop`: powers of two, so that nothing else changes. Below `small` the squares
    of single elements start to lose bits to underflow; above `large` they come near overflow.
    """

    zero: np.floating
    one: np.floating
    small: np.floating
    large: np.floating
    lift: np.floating
    unlift: np.floating  # 1 / lift
    drop: np.floating
    light: np.floating  # weights below this, but 0, are not left to the common path
    heavy: np.floating  # nor are those above this
    much: np.floating  # of the squares of a block: where one chain of 64 has more, few elements outweigh the others
    fraction: np.floating  # of 64 differences of any two numbers: their sum stays in range
    faint_eps: np.floating  # eps * lift**2 from which on underflowing squares are negligible beside eps


def _range(dtype, small, large, lift, drop, faint_eps, heavy):
    """The range with these exponents of 2."""
    power = lambda exponent: np.ldexp(dtype(1), exponent)  # noqa: E731
    return Range(
        zero=dtype(0),
        one=dtype(1),
        small=power(small),
        large=power(large),
        lift=power(lift),
        unlift=power(-lift),
        drop=power(drop),
        light=power(-heavy),
        heavy=power(heavy),
        much=3 * power(-4),
        fraction=power(-8),
        faint_eps=power(faint_eps),
    )


# float32: elements reach 2**128 and 2**-149. Lifted, the smallest is 2**-49, its square 2**-98; a block below `small`
# has elements below 2**-50, so lifted below 2**50. Dropped, the largest is 2**38. Every block's sum thus stays below
# 2**100, which leaves room for 2**27 blocks. An eps of 2**-120 or more (lifted: 2**80) drowns what squares lose to
# underflow (2**-149 a row, 2**-29 of eps). The inverse of a common row is between 2**-64, by the largest eps, and 2**70, of
# 2**40 elements: times a weight between 2**-56 and 2**56 it is a normal number. float64 likewise, with 2**1024 and 2**-1074.
RANGES = {
    "float32": _range(np.float32, small=-100, large=96, lift=100, drop=-90, faint_eps=80, heavy=56),
    "float64": _range(np.float64, small=-900, large=900, lift=600, drop=-600, faint_eps=180, heavy=500),
}


def functions_of(namespace):
    """The functions that a module defines, given its namespace: what backends compile of a module of formulas."""
    own = [value for value in namespace.values() if getattr(value, "__module__", None) == namespace["__name__"]]
    return tuple(value for value in own if not isinstance(value, type))


def finite_in(value, dtype):
    """A number of Python's own as one of a dtype: what is finite stays so."""
    largest = float(np.finfo(dtype).max)
    return np.dtype(dtype).type(min(max(value, -largest), largest) if math.isfinite(value) else value)


@functools.cache
def name_of(dtype):
    """The name of a dtype, which NumPy makes anew each time."""
    return dtype.name


# Numba's CPU target has no 16-bit floats: in kernels they go by the names of two 16-bit integers, and loads and stores tell
# them apart by that. Every dtype that a kernel can be made for, and what it computes in:
STORED = {"float16": "int16", "bfloat16": "uint16", "float32": "float32", "float64": "float64"}
COMPUTED = {"int16": "float32", "uint16": "float32", "float32": "float32", "float64": "float64"}
