"""Softmax, its logarithm, and the logarithm of its sum."""

import ml_dtypes
import numpy as np
import pytest
from compare import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import guarded as guarded

import fastnorm
from fastnorm._bench import attention_oracles as oracles

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
LENGTHS = [1, 2, 15, 63, 64, 65, 127, 511, 512, 513, 1025, 8191, 8193]


def assert_right(x, axis=-1, scale=1.0):
    """4 units in the last place of each probability, and 1 of the row's largest; half a unit of 16 bits."""
    with np.errstate(all="raise"):
        y = fastnorm.softmax(x, axis=axis, scale=scale)
    wanted = oracles.softmax(x, axis, scale)
    computed = np.float64 if x.dtype == np.float64 else np.float32
    largest = wanted.max(axis, keepdims=True).astype(computed)
    allowed = 4 * np.spacing(wanted.astype(computed)) + np.spacing(largest)
    if x.itemsize == 2:
        allowed = allowed + np.abs(wanted) * (2.0**-8 if x.dtype != np.float16 else 2.0**-11) + 2.0**-25
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert (np.abs(y.astype(wanted.dtype) - wanted) <= allowed).all()
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(rng, dtype, n):
    assert_right((3 * rng.standard_normal((3, n))).astype(dtype))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [9, 512, 1025, 4099, 10_000, 300_000])
def test_one_score_that_outweighs_others(rng, dtype, n, axis):
    """It would take the last bits of each that it is added to, of a sum that is not much larger."""
    for distance in (3, 9, 13, 16, 17, 18, 36):
        for largest in (1, 1, 1, 2, 3):
            x = rng.standard_normal((max(2, 150_000 // n), n)).astype(dtype)
            x[:, rng.integers(0, n, largest)] = distance
            y = assert_right(x if axis else np.ascontiguousarray(x.T), axis)
            top, wanted = (z.max(axis) for z in (y, oracles.softmax(x if axis else x.T, axis)))
            assert (np.abs(top - wanted) <= 4 * np.spacing(wanted.astype(dtype))).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.lists(st.sampled_from([1, 2, 3, 17, 64, 70]), min_size=1, max_size=3),
    axis=st.integers(-1, 2),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    scale=st.sampled_from([1.0, 0.125, 3.7, -1.0, 0.0]),
    offset=st.sampled_from([0.0, 1000.0]),
)
def test_any_axis_and_scale(seed, shape, axis, size, scale, offset):
    x = (np.random.default_rng(seed).standard_normal(shape) * size + offset).astype(np.float32)
    axis = axis % len(shape)
    y = assert_right(x, axis, scale)
    rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    assert_same_bits(y, np.moveaxis(fastnorm.softmax(rows, scale=scale), -1, axis))


@pytest.mark.parametrize("shape", [(600, 2500), (70, 9000), (3, 700_001), (3, 196_808), (1 << 20, 1), (2, 300, 40, 60)])
@pytest.mark.parametrize("function", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("peaks", [0, 2])
def test_schedules_give_the_same_bits(rng, threads, shape, function, peaks):
    """Rows, columns, pieces, a short last one too, streamed or not, on any number of threads; rows that a peak outweighs."""
    x = rng.standard_normal(shape, np.float32)
    x[::2, ..., :peaks] = np.float32(3 + np.log(shape[-1]))
    function = getattr(fastnorm, function)
    threads(2)
    whole = function(x)
    threads(1)
    assert_same_bits(whole, function(x))
    for i in (0, shape[0] - 1):
        assert_same_bits(whole[i], function(x[i]))
    apart = np.ascontiguousarray(np.moveaxis(x, -1, 0))
    result = function(apart, axis=0)
    assert_same_bits(whole, np.moveaxis(result, 0, -1) if result.ndim == x.ndim else result)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logarithms(rng, dtype):
    x = (5 * rng.standard_normal((4, 300))).astype(dtype)
    wide = x.astype(np.float64)
    total = oracles.logsumexp(wide).astype(np.float64)
    rough = {2: 8e-3, 4: 1e-6, 8: 1e-14}[x.itemsize]
    np.testing.assert_allclose(fastnorm.logsumexp(x).astype(np.float64), total, rtol=rough)
    np.testing.assert_allclose(fastnorm.log_softmax(x).astype(np.float64), wide - total[:, None], rtol=rough, atol=rough)
    assert fastnorm.logsumexp(x, axis=0, keepdims=True).shape == (1, 300)


@pytest.mark.parametrize("n", [3, 70, 20000])
def test_special_values(n):
    x = np.zeros((6, n), np.float32)
    x[0] = -np.inf
    x[1, 0] = np.inf
    x[2, 1] = np.nan
    x[3, 1:] = -np.inf
    x[4, 0] = 3e38
    x[5, 1] = -3e38
    with np.errstate(all="raise"):
        y, logs, total = fastnorm.softmax(x), fastnorm.log_softmax(x), fastnorm.logsumexp(x)
    assert (y[0] == 0).all()
    assert (logs[0] == -np.inf).all()
    assert total[0] == -np.inf
    assert np.isnan(y[1]).all()
    assert total[1] == np.inf
    assert np.isnan(y[2]).all()
    assert np.isnan(total[2])
    for row in (3, 4):
        assert y[row, 0] == 1
        assert (y[row, 1:] == 0).all()
    assert y[5, 1] == 0
    np.testing.assert_allclose(y[5, 2:], 1 / (n - 1), rtol=1e-6)


def test_a_range_that_overflows():
    x = np.array([3e38, -3e38, 0], np.float32)
    np.testing.assert_allclose(
        fastnorm.log_softmax(x, scale=2e-38), np.log(oracles.softmax(x, scale=2e-38)), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(fastnorm.softmax(x, scale=-2e-38), oracles.softmax(x, scale=-2e-38), rtol=1e-6)


def test_an_offset_changes_nothing():
    x = np.float32([0, 1, 2])
    assert_same_bits(fastnorm.softmax(x + 4096), fastnorm.softmax(x))


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_out(rng, function):
    x = rng.standard_normal((5, 70), np.float32)
    function = getattr(fastnorm, function)
    wanted = function(x)
    same = x.copy()
    assert function(same, out=same) is same
    assert_same_bits(same, wanted)
    room = np.zeros((5, 140), np.float32)[:, ::2]
    function(x, out=room)
    assert_same_bits(np.ascontiguousarray(room), wanted)
    turned = x.copy()
    function(turned, out=turned[::-1])
    assert_same_bits(turned[::-1], wanted)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty(shape):
    x = np.zeros(shape, np.float32)
    assert fastnorm.softmax(x).shape == shape
    assert fastnorm.logsumexp(x).shape == shape[:-1]
    assert (fastnorm.logsumexp(x) == -np.inf).all()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_memory(rng, guarded, at_end, dtype):
    for shape in [(1, 1), (2, 15), (3, 64), (2, 65), (1, 513), (64, 3), (65, 2)]:
        x = rng.standard_normal(shape).astype(dtype)
        placed, out = guarded.array(x, at_end), guarded.array(np.zeros_like(x), at_end)
        for axis in (0, 1):
            assert_same_bits(fastnorm.softmax(placed, axis=axis, out=out), fastnorm.softmax(x, axis=axis))
            assert_same_bits(fastnorm.logsumexp(placed, axis=axis), fastnorm.logsumexp(x, axis=axis))
        guarded.close()


@pytest.mark.parametrize("function", ["softmax", "log_softmax", "logsumexp"])
def test_wrong_calls(function):
    x, function, name = np.ones((2, 4), np.float32), getattr(fastnorm, function), function
    for bad in (np.ones(3, bool), np.ones(3, complex), np.ma.masked_array([1.0]), "a", None):
        with pytest.raises(TypeError, match=f"^{name}: x must"):
            function(bad)
    for error, match, options in [
        (np.exceptions.AxisError, "axis", {"axis": 2}),
        (TypeError, "axis", {"axis": 1.5}),
    ]:
        with pytest.raises(error, match=f"^{name}: {match} must"):
            function(x, **options)
    with pytest.raises(np.exceptions.AxisError, match=f"^{name}: x must"):
        function(np.float32(3))
    if name != "logsumexp":
        with pytest.raises(ValueError, match=f"^{name}: out must"):
            function(x, out=np.zeros((2, 4)))
        with pytest.raises(TypeError, match=f"^{name}: scale must"):
            function(x, scale="a")
        for scale in (np.inf, -np.inf, np.nan, np.float16(np.inf)):
            with pytest.raises(ValueError, match=rf"^{name}: scale must be finite, got .*{scale}"):
                function(x, scale=scale)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_scale_beyond_the_dtype(dtype):
    x = np.array([[0, 1, 1]], dtype)
    for scale in (1e39, 1e300):
        np.testing.assert_array_equal(fastnorm.softmax(x, scale=scale), [[0, 0.5, 0.5]])
        np.testing.assert_allclose(fastnorm.log_softmax(x[:, 1:], scale=scale), np.full((1, 2), -np.log(2)), rtol=1e-3)


@pytest.mark.parametrize("function", [fastnorm.softmax, fastnorm.log_softmax])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", "i4"])
def test_the_shortcut_of_small_calls(rng, function, dtype):
    """The second call of a kind goes past the checks: the same bits, for any layout."""
    base = (rng.standard_normal((6, 4, 10)) * 3).astype(dtype)
    for x in (base, base[::-1, ::2, ::-1], base.T, base[0], base[0, 0], base[:0], base[..., :1]):
        first = function(x, axis=np.int64(-1))
        for again in (function(x), function(x), function(x, out=np.empty_like(first))):
            assert_same_bits(again, first)
            assert again.dtype.isnative
    with pytest.raises(np.exceptions.AxisError):
        function(base[0, 0, 0])
