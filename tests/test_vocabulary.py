"""One text, several kinds of value: the words mean the same for lanes, for CPU numbers and for NumPy arrays."""

import operator

import numpy as np
import pytest
from numba import njit

from fastnorm import _math
from fastnorm import _vocabulary as words
from fastnorm._cpu.memory import load, pointer_to, store
from fastnorm._cpu.simd import inlined

WORDS = {
    "fma": lambda a, b, c: words.fma(a, b, c),
    "sqrt": lambda a, b, c: words.sqrt(words.magnitude(a)),
    "magnitude": lambda a, b, c: words.magnitude(a),
    "minimum": lambda a, b, c: words.minimum(a, b),
    "maximum": lambda a, b, c: words.maximum(a, b),
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "truediv": lambda a, b, c: a / c,
    "lt": lambda a, b, c: words.select(a < b, a, c),
    "le": lambda a, b, c: words.select(a <= b, a, c),
    "gt": lambda a, b, c: words.select(a > b, a, c),
    "ge": lambda a, b, c: words.select(a >= b, a, c),
    "eq": lambda a, b, c: words.select(a == b, a, c),
    "ne": lambda a, b, c: words.select(a != b, a, c),
    "and": lambda a, b, c: words.select((a < b) & (b < c), a, c),
    "or": lambda a, b, c: words.select((a < b) | (b < c), a, c),
}


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("word", WORDS)
def test_words(rng, word, dtype):
    formula = WORDS[word]
    values = rng.integers(-4, 5, (3, 64)).astype(dtype)  # small integers: products are exact, so fma has no second reading
    values[2][values[2] == 0] = 3
    body = inlined(formula)

    @njit(error_model="numpy")
    def on_lanes(a, b, c, out):
        store(pointer_to(out), 0, body(load(pointer_to(a), 0), load(pointer_to(b), 0), load(pointer_to(c), 0)))

    @njit(error_model="numpy")
    def on_numbers(a, b, c, out):
        for i in range(64):
            out[i] = body(a[i], b[i], c[i])

    wanted = formula(*values)
    for run in (on_lanes, on_numbers):
        out = np.full(64, np.nan, dtype)
        run(*values, out)
        np.testing.assert_array_equal(out, wanted)


def test_every_word_is_tested():
    functions = [name for name, value in vars(words).items() if callable(value) and value.__doc__ and not name.startswith("_")]
    functions = [name for name in functions if name not in {"Range", "Exponential", "NamedTuple", "select"}]
    assert set(functions) <= set(WORDS) | {"polynomial", "two_to", "logarithm", "name_of", "functions_of", "finite_in"}
    assert all(hasattr(operator, name) or name in functions or name in {"and", "or"} for name in WORDS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("formula", ["exponential", "hyperbolic_tangent"])
def test_exponentials(rng, formula, dtype):
    """`polynomial` and `two_to` in what they are for, for lanes, numbers and arrays: near 0 within two units of the true value.

    Farther down the error grows, in float64 and for arrays, which multiply and add in two steps, but not beside ``exp(0)``.
    """
    numbers, wide = words.EXPONENTIALS[np.dtype(dtype).name], np.float64 if dtype is np.float32 else np.longdouble
    body = getattr(_math, formula)

    @njit(error_model="numpy")
    def on_lanes(x, out):
        store(pointer_to(out), 0, body(load(pointer_to(x), 0), numbers))

    @njit(error_model="numpy")
    def on_numbers(x, out):
        for i in range(64):
            out[i] = body(x[i], numbers)

    true, units = (np.exp, 2.0) if formula == "exponential" else (np.tanh, 3.5)
    for scale in (1e-4, 0.1, 1.0, 10.0, 80.0):
        x = (-scale * rng.random(64)).astype(dtype)
        x[:3] = 0, -np.inf, np.nan
        wanted = true(x.astype(wide))
        for run in (on_lanes, on_numbers, lambda x, out: out.__setitem__(slice(None), body(x, numbers))):
            out = np.full(64, 7, dtype)
            with np.errstate(all="ignore"):
                run(x, out)
            assert np.isnan(out[2])
            assert (out[:2] == wanted[:2]).all()
            allowed = units * np.spacing(np.abs(wanted[3:]).astype(dtype))
            if formula == "exponential":
                allowed = np.maximum(allowed, 0.1 * np.spacing(dtype(1)))
            assert (np.abs(out - wanted)[3:] <= allowed).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithm(rng, dtype):
    @njit(error_model="numpy")
    def on_numbers(x, out):
        for i in range(64):
            out[i] = words.logarithm(x[i])

    x, out = np.exp(10 * rng.standard_normal(64)).astype(dtype), np.empty(64, dtype)
    on_numbers(x, out)
    np.testing.assert_allclose(out, words.logarithm(x), rtol=4 * np.finfo(dtype).eps)


def test_fma_rounds_once():
    """Chains must not depend on what a compiler contracts: (1 + e)(1 - e) - 1 is -e**2, or 0 when rounded twice."""
    e = np.float32(2.0**-12)

    @njit
    def number(a, b, c):
        return words.fma(a, b, c)

    assert number(1 + e, 1 - e, np.float32(-1)) == -e * e
