"""Right numbers: against a float64 (for float64: wider) oracle, for every length, on data that breaks other libraries."""

import warnings

import numpy as np
import pytest
from compare import ulps

import fastnorm
from fastnorm._bench import oracles

LIMIT = 4.0  # units in the last place of a row's largest value
SIZES = [1, 2, 3, 31, 32, 33, 64, 127, 513, 1000, 4099, 70001]


def error(x, weight=None, norm="rms_norm", **kwargs):
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        y = getattr(fastnorm, norm)(x, weight, **kwargs)
    return ulps(y, getattr(oracles, norm)(x, weight, **kwargs), axis=kwargs.get("axis", -1))


HARD = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "equal": lambda rng, shape: np.full(shape, rng.uniform(0.5, 2)),
    "equal magnitudes": lambda rng, shape: rng.choice([-1, 1], shape) * rng.uniform(0.5, 2),
    "two values": lambda rng, shape: rng.choice([0.1, 0.3], shape),
    "integers": lambda rng, shape: rng.integers(-3, 4, shape) + 0.0,
    "one large": lambda rng, shape: np.where(np.arange(shape[-1]) == shape[-1] // 2, 1e4, rng.standard_normal(shape)),
    "falling": lambda rng, shape: 1 / (1 + np.arange(shape[-1])) * np.ones(shape),
    "far from 0": lambda rng, shape: 1e6 + rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-30, 30, shape),
    "huge": lambda rng, shape: rng.uniform(-3e38, 3e38, shape),
    "tiny": lambda rng, shape: rng.uniform(-3e-38, 3e-38, shape),
    "subnormal": lambda rng, shape: rng.integers(-5, 6, shape) * 1e-45 + 1e-45,
}


@pytest.mark.parametrize("data", HARD)
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_accuracy(rng, data, eps, dtype):
    for n in SIZES:
        x = HARD[data](rng, (3, n)).astype(dtype)
        assert error(x, eps=eps) <= LIMIT, n
        weight = rng.standard_normal(n).astype(dtype)
        assert error(x, weight, eps=eps, weight_offset=1.0) <= LIMIT, n
        assert error(x.T.copy(), weight, eps=eps, axis=0) <= LIMIT, n


@pytest.mark.parametrize("data", HARD)
@pytest.mark.parametrize("eps", [0.0, 1e-30, 1e-3, 1e25])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_accuracy_of_unit_norm(rng, data, eps, dtype):
    for n in SIZES:
        x, weight = HARD[data](rng, (3, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
        assert error(x, norm="unit_norm", eps=eps) <= LIMIT, n
        assert error(x, weight, norm="unit_norm", eps=eps) <= LIMIT, n
        assert error(x.T.copy(), weight, norm="unit_norm", eps=eps, axis=0) <= LIMIT, n


@pytest.mark.slow
@pytest.mark.parametrize("data", ["normal", "equal", "two values", "wide"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_accuracy_of_long_rows(rng, data, dtype):
    for n in (2**20 + 1, 2**22, 2**24):
        assert error(HARD[data](rng, (1, n)).astype(dtype), eps=0.0) <= LIMIT, n


@pytest.mark.parametrize("tenth", np.linspace(1, 2, 60))
def test_equal_numbers(tenth):
    """Every link of a chain of equal numbers errs the same way: the case for which chains are short."""
    for n in (8, 64, 512, 4096, 100_000):
        assert error(np.full((1, n), tenth, np.float32), eps=0.0) <= LIMIT, n


@pytest.mark.parametrize(
    ("dtype", "scales"), [(np.float32, [1e30, 1e-30, 3e38, 1e-44]), (np.float64, [1e300, 1e-300, 1e308, 5e-324])]
)
def test_range(dtype, scales):
    for scale in scales:
        x = np.array([scale, -scale], dtype)
        np.testing.assert_allclose(fastnorm.rms_norm(x, eps=0.0), [1, -1], rtol=1e-6)
    np.testing.assert_allclose(fastnorm.rms_norm(np.array([1e30, -1e30], np.float32)), [1, -1])


def test_weights_that_undo_what_eps_did(rng):
    """A row far below eps is tiny after it; a huge weight brings it back, bits and all."""
    x = (rng.standard_normal((3, 200)) * 1e-42).astype(np.float32)
    weight = (rng.standard_normal(200) * 1e37).astype(np.float32)
    for eps in (1e-6, 1e-3, 1.0):
        assert error(x, weight, eps=eps) <= LIMIT
        assert error(x.T.copy(), weight, eps=eps, axis=0) <= LIMIT


def test_weights_that_undo_what_the_row_did():
    x, weight = np.array([[1, 1e-40, 3]], np.float32), np.array([1e-30, 1e38, 0], np.float32)
    assert error(x, weight, eps=0.0) <= LIMIT
    assert error(x.T.copy(), weight, eps=0.0, axis=0) <= LIMIT


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ([-7.05e-18, -5.8e19], [3.4e38, 1]),
        ([1e-30, 1e30], [1e38, 1e-30]),
        ([2.7e-155, -1.7e140], [1.7e308, 0.013]),
        ([1e-300, 1e150, 1], [1e300, 1e-300, 0]),
    ],
)
def test_small_elements_of_huge_rows(x, weight, axis):
    """A row is scaled down for its largest element; a weight may make its smallest the largest."""
    dtype = np.float32 if max(weight) < 1e39 else np.float64
    x, weight = np.array([x], dtype), np.array(weight, dtype)
    for eps in (0.0, 1e-6):
        assert error(x if axis else x.T.copy(), weight, eps=eps, axis=axis) <= LIMIT


def test_wild_rows(rng):
    """Elements and weights over the whole range, in short rows."""
    for dtype, most in ((np.float32, 37), (np.float64, 305)):
        for n in (2, 3, 5):
            sign = rng.choice([-1, 1], (2000, n))
            x = (sign * 10.0 ** rng.uniform(-most, most, (2000, n))).astype(dtype)
            for norm in ("rms_norm", "unit_norm"):
                weight = (10.0 ** rng.uniform(-most, most, n)).astype(dtype)
                wanted = getattr(oracles, norm)(x, weight, eps=0.0)
                fine = np.abs(wanted).max(-1) < np.finfo(dtype).max / 2
                y = getattr(fastnorm, norm)(x, weight, eps=0.0)
                assert ulps(y[fine], wanted[fine]) <= LIMIT


@pytest.mark.parametrize("n", [1, 4096, 100_000])
def test_huge_eps(n):
    x = np.full((1, n), 1e10, np.float32)
    for eps in (1e20, 1e30, 1e36, 3e38):
        assert error(x, eps=eps) <= LIMIT


def test_eps_below_the_range_of_float32():
    x = np.full(8, 1e-30, np.float32)
    np.testing.assert_allclose(fastnorm.rms_norm(x, eps=1e-60), np.sqrt(0.5), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_zero_rows(axis):
    x = np.zeros((5, 5), np.float32)
    assert (fastnorm.unit_norm(x, axis=axis) == 0).all()
    for weight in (None, np.ones(5, np.float32)):
        for eps in (0.0, 1e-6, 1e-100, 1e-103, 1e-45, 1e30):
            y = fastnorm.rms_norm(x, weight, eps=eps, axis=axis)
            assert (y == 0).all()


@pytest.mark.parametrize("n", [4, 64, 700])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_inf(rng, n, axis):
    """NaN spoils its own row; inf follows the formula: finite / inf is 0, inf / inf is NaN."""
    x = rng.standard_normal((6, n)).astype(np.float32)
    clean = fastnorm.rms_norm(x)
    x[1, n // 2], x[3, 0], x[4, n - 1] = np.nan, np.inf, -np.inf
    y = fastnorm.rms_norm(x if axis else x.T.copy(), axis=axis)
    y = y if axis else y.T
    assert np.isnan(y[1]).all()
    for row, place in ((3, 0), (4, n - 1)):
        assert np.isnan(y[row, place])
        assert (np.delete(y[row], place) == 0).all()
    np.testing.assert_array_equal(y[[0, 2, 5]], clean[[0, 2, 5]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_warning_whatever_comes(dtype):
    odd = [np.nan, np.inf, -np.inf, 0, 3e38, -3e38, 1e-45, 1e30, 1e-30, 7]
    with np.errstate(all="ignore"):
        x = np.array([np.roll(odd, i) for i in range(10)]).astype(dtype)
        odd_weight = np.array([1e-40, 3e38, 0, 1, np.inf, np.nan, -1, 1e-45, 5, 6]).astype(dtype)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for weight in (None, odd_weight):
            for eps in (0.0, 1e-6, 1e30):
                for axis in (0, 1):
                    fastnorm.rms_norm(x, weight, eps=eps, axis=axis)
        fastnorm.rms_norm(x, np.full(10, 1e300), weight_offset=1e300)


def test_the_mode_of_the_processor_is_left_alone(rng):
    fastnorm.rms_norm(rng.standard_normal((300, 300)).astype(np.float32))
    assert (np.float32(1e-40) * np.float32(0.5)) != 0, "subnormals are flushed after a call"


def test_first_of_its_kind(rng):
    """The definition, word for word."""
    x, weight = rng.standard_normal((20, 300)), rng.standard_normal(300)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.5 + weight)
    np.testing.assert_allclose(fastnorm.rms_norm(x, weight, weight_offset=1.5), wanted, rtol=1e-14)
