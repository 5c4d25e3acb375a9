"""Dask arrays of CuPy arrays: whole rows, and attention of pairs of chunks, on the interpreted device."""

import cuda_devices  # first: it skips where there is no CuPy
import cupy
import dask
import dask.array as da
import numpy as np
import pytest

import fastnorm


@pytest.fixture
def device():
    with cuda_devices.interpreted() as found:
        yield found


def lazy(device, x, n):
    """A Dask array of CuPy arrays, cut along its first axis."""
    layer = {("x", i, *(0,) * (x.ndim - 1)): device.array(x[i * n : (i + 1) * n]) for i in range(len(x) // n)}
    meta = cupy.ndarray((0,) * x.ndim, x.dtype, device.allocate(0))
    return da.Array(layer, "x", ((n,) * (len(x) // n), *((m,) for m in x.shape[1:])), meta=meta)


@pytest.mark.parametrize("function", ["rms_norm", "layer_norm", "unit_norm", "softmax", "log_softmax", "logsumexp"])
def test_whole_rows(device, rng, function):
    x = rng.standard_normal((6, 70)).astype(np.float32)
    y = getattr(fastnorm, function)(lazy(device, x, 2))
    assert type(y._meta) is cupy.ndarray
    blocks = dask.compute(*y.to_delayed().ravel(), scheduler="sync")
    assert {type(block) for block in blocks} == {cupy.ndarray}
    result = np.concatenate([device.host(block) for block in blocks])
    np.testing.assert_allclose(result, getattr(fastnorm, function)(x), rtol=1e-5, atol=1e-6)


def test_one_library_for_all(device, rng):
    x = lazy(device, rng.standard_normal((6, 70)).astype(np.float32), 2)
    with pytest.raises(TypeError, match="weight must be a cupy array as x is, got numpy"):
        fastnorm.rms_norm(x, np.ones(70, np.float32))
    with pytest.raises(TypeError, match="residual must be a cupy array as x is, got numpy"):
        fastnorm.add_rms_norm(x, da.ones((6, 70), dtype=np.float32))


@pytest.mark.parametrize("shape", [(4, 8, 16), pytest.param((8, 16), marks=pytest.mark.slow)])
def test_attention(device, rng, shape):
    """Cut by heads, or along queries and keys, whose pairs are merged on the device."""
    q = rng.standard_normal(shape).astype(np.float32)
    given = lazy(device, q, 2)
    y = fastnorm.attention(given, given, given, is_causal=True)
    assert type(y._meta) is cupy.ndarray
    result = np.concatenate([device.host(block) for block in dask.compute(*y.to_delayed().ravel(), scheduler="sync")])
    np.testing.assert_allclose(result, fastnorm.attention(q, q, q, is_causal=True), rtol=1e-5, atol=1e-6)
