"""The claims of the theory page, each shown on random data."""

import numpy as np
import pytest
from compare import ulps

import fastnorm
from fastnorm._bench import oracles

DIMENSIONS = [2, 8, 64, 128, 1000]


def rotate(x, angles):
    """Rotate pairs of features as RoPE does: feature i with i + d/2."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=-1)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_sizes(rng, d):
    x = rng.standard_normal((50, d)) * 10.0 ** rng.integers(-9, 9, (50, 1))
    y = fastnorm.rms_norm(x, eps=0.0)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.sqrt(d), rtol=1e-13)
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-13)
    unit = fastnorm.unit_norm(x)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-13)
    np.testing.assert_allclose((unit**2).mean(-1), 1 / d, rtol=1e-13)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rms_is_a_multiple_of_unit(rng, d, dtype):
    x, weight = rng.standard_normal((50, d)).astype(dtype), rng.standard_normal(d).astype(dtype)
    wanted = oracles.unit_norm(x, weight) * np.sqrt(np.longdouble(d))
    assert ulps(fastnorm.rms_norm(x, weight, eps=0.0), wanted) <= 4


def test_layer_norm_in_two_steps(rng):
    """Less the mean, over the deviation: mean 0 and variance 1 before weight and bias."""
    x, weight, bias = rng.standard_normal((50, 300)) * 7 + 3, rng.standard_normal(300), rng.standard_normal(300)
    y = fastnorm.layer_norm(x, eps=0.0)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-14)
    np.testing.assert_allclose(y.std(-1), 1, rtol=1e-13)
    np.testing.assert_allclose(fastnorm.layer_norm(x, weight, bias, eps=0.0), y * weight + bias, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(fastnorm.layer_norm(5 * x + 100, eps=0.0), y, atol=1e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_rms_norm_is_layer_norm_of_rows_with_mean_zero(rng, d):
    x, weight = rng.standard_normal((20, d)), rng.standard_normal(d)
    x -= x.mean(-1, keepdims=True)
    for eps in (0.0, 1e-5, 0.5):
        wanted = fastnorm.layer_norm(x, weight, eps=eps)
        np.testing.assert_allclose(fastnorm.rms_norm(x, weight, eps=eps), wanted, atol=1e-12)
    x += 0.5  # and of others it is not
    if d > 2:
        assert np.abs(fastnorm.rms_norm(x, eps=0.0) - fastnorm.layer_norm(x, eps=0.0)).max() > 0.01


@pytest.mark.parametrize("d", DIMENSIONS)
def test_layer_norm_is_rms_norm_after_the_mean_is_gone(rng, d):
    x = rng.standard_normal((20, d)) + 3
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(fastnorm.layer_norm(x, eps=0.1), fastnorm.rms_norm(centred, eps=0.1), atol=1e-12)


@pytest.mark.parametrize("norm", [fastnorm.rms_norm, fastnorm.unit_norm])
def test_rotations(rng, norm):
    x, angles, weight = rng.standard_normal((50, 64)), rng.uniform(0, 7, 32), rng.standard_normal(64)
    np.testing.assert_allclose(norm(rotate(x, angles)), rotate(norm(x), angles), atol=1e-13)
    whole, _ = np.linalg.qr(rng.standard_normal((64, 64)))
    np.testing.assert_allclose(norm(x @ whole), norm(x) @ whole, atol=1e-13)
    pairs = np.tile(weight[:32], 2)  # one factor for both features of a pair
    np.testing.assert_allclose(norm(rotate(x, angles), pairs), rotate(norm(x, pairs), angles), atol=1e-12)
    assert np.abs(norm(rotate(x, angles), weight) - rotate(norm(x, weight), angles)).max() > 0.01


def test_layer_norm_does_not_commute(rng):
    x, angles = rng.standard_normal((50, 64)), rng.uniform(0, 7, 32)
    norm = fastnorm.layer_norm
    assert np.abs(norm(rotate(x, angles)) - rotate(norm(x), angles)).max() > 0.01
    # It does with rotations that leave the mean alone: here of all directions but that of (1, 1, ... 1).
    basis, _ = np.linalg.qr(np.c_[np.ones(64), rng.standard_normal((64, 63))])
    turn, _ = np.linalg.qr(rng.standard_normal((63, 63)))
    whole = basis @ np.block([[np.ones((1, 1)), np.zeros((1, 63))], [np.zeros((63, 1)), turn]]) @ basis.T
    np.testing.assert_allclose(norm(x @ whole), norm(x) @ whole, atol=1e-12)


@pytest.mark.parametrize("d", [16, 64, 256])
def test_scores_of_unit_variance(rng, d):
    q, k = rng.standard_normal((2, 20000, d))
    rms = (fastnorm.rms_norm(q) * fastnorm.rms_norm(k)).sum(-1) * fastnorm.attention_scale(d)
    unit = (fastnorm.unit_norm(q) * fastnorm.unit_norm(k)).sum(-1) * fastnorm.attention_scale(d, qk_norm="unit")
    np.testing.assert_allclose(rms, unit, atol=1e-4)
    assert abs(rms.std() - 1) < 0.03
    assert abs(unit.std() - 1) < 0.03


@pytest.mark.parametrize("d", [64, 1024])
@pytest.mark.parametrize("norm", ["rms", "unit"])
def test_outputs_of_order_one(rng, d, norm):
    gamma = rng.standard_normal(d)
    gamma /= np.sqrt((gamma**2).mean())
    x = rng.standard_normal((400, d)) * rng.uniform(1e-3, 1e3, (400, 1))
    x = {"rms": fastnorm.rms_norm, "unit": fastnorm.unit_norm}[norm](x, gamma, eps=0.0)
    y = x @ (rng.standard_normal((d, 300)) * fastnorm.init_std(d, norm=norm))
    assert 0.9 < np.sqrt((y**2).mean()) < 1.1


def test_wrong_constants():
    with pytest.raises(ValueError, match="attention_scale: qk_norm must be one of 'rms', 'unit', got 'layer'"):
        fastnorm.attention_scale(64, qk_norm="layer")
    with pytest.raises(ValueError, match="init_std: norm must be one of"):
        fastnorm.init_std(64, norm=None)
    for bad, error in ((0, ValueError), (-3, ValueError), (1.5, TypeError), ("8", TypeError)):
        with pytest.raises(error, match="attention_scale: head_dim must be"):
            fastnorm.attention_scale(bad)
        with pytest.raises(error, match="init_std: fan_in must be"):
            fastnorm.init_std(bad)
