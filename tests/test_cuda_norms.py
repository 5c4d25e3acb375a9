"""What GPU kernels compute: their PTX interpreted, or on a real device with --gpu, against float64."""

import cuda_devices
import numpy as np
import pytest
from compare import assert_same_bits, ulps

import fastnorm

SIZES = [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 255, 511, 512, 513, 1024, 4096, 4099, 5000, 16384, 16385, 20000]
WIDE = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


@pytest.fixture(params=["interpreted", pytest.param("real", marks=pytest.mark.gpu)])
def device(request):
    with getattr(cuda_devices, request.param)() as found:
        yield found


def oracle(x, weight=None, eps=1e-6):
    """The definition, in a wider dtype."""
    wide = x.astype(WIDE[x.dtype])
    with np.errstate(all="ignore"):
        root = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
        return np.where(root == 0, 0, wide / root) * (1 if weight is None else weight)


def unaligned(device, x):
    """A CuPy array of the values of x whose rows begin anywhere."""
    padded = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    padded[..., 1:-2] = x
    return device.array(padded)[..., 1:-2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(device, rng, n, dtype):
    x, weight = rng.standard_normal((3, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
    on_device, weight_on_device = device.array(x), device.array(weight)
    plain = device.host(fastnorm.rms_norm(on_device))
    weighted = device.host(fastnorm.rms_norm(on_device, weight_on_device, eps=0.25))
    assert ulps(plain, oracle(x)) <= 4
    assert ulps(weighted, oracle(x, weight, 0.25)) <= 4
    assert_same_bits(device.host(on_device), x)
    assert_same_bits(device.host(weight_on_device), weight)

    elsewhere = fastnorm.rms_norm(unaligned(device, x), unaligned(device, weight), eps=0.25)
    assert_same_bits(device.host(elsewhere), weighted)
    assert fastnorm.rms_norm(on_device, weight_on_device, eps=0.25, out=on_device) is on_device
    assert_same_bits(device.host(on_device), weighted)


@pytest.mark.parametrize("n", [7, 1024, 20000])
def test_in_place_unaligned(device, rng, n):
    x = rng.standard_normal((3, n)).astype(np.float32)
    on_device = unaligned(device, x)
    fastnorm.rms_norm(on_device, out=on_device)
    assert ulps(device.host(on_device), oracle(x)) <= 4


ROWS = {
    "huge": (1e30, 1e-6),
    "largest": (3e37, 0.0),
    "tiny": (1e-30, 0.0),
    "subnormal": (1e-40, 0.0),
    "tiny beside eps": (1e-30, 1e-6),
    "tiny beside tiny eps": (1e-20, 1e-38),
    "tiny beside subnormal eps": (1e-22, 1e-43),
}


@pytest.mark.parametrize("n", [4, 33, 1024, 20000])
@pytest.mark.parametrize("row", ROWS)
def test_rows_that_leave_the_range(device, rng, row, n):
    factor, eps = ROWS[row]
    x = (rng.uniform(-1, 1, (2, n)) * factor).astype(np.float32)
    x[1] = rng.standard_normal(n)  # its neighbour is a usual one
    weight = rng.standard_normal(n).astype(np.float32)
    y = device.host(fastnorm.rms_norm(device.array(x), device.array(weight), eps=eps))
    wanted = oracle(x, weight, np.float64(eps))
    tolerance = 4 * np.spacing(np.abs(wanted).max(axis=-1, keepdims=True).astype(np.float32))
    assert (np.abs(y - wanted) <= tolerance).all()


@pytest.mark.parametrize(("value", "eps"), [(1e-22, 1e36), (1e-38, 1e10), (1e-40, 1e-6), (1.0, 1e37)])
def test_weights_that_lift_what_would_underflow(device, value, eps):
    x, weight = np.full((1, 8), value, np.float32), np.geomspace(1, 1e30, 8, dtype=np.float32)
    y = device.host(fastnorm.rms_norm(device.array(x), device.array(weight), eps=eps))
    assert ulps(y, oracle(x, weight, eps)) <= 4


def test_huge_and_tiny_in_one_row(device):
    x = np.array([[1e30, 1e-30, 0, -3e38]], np.float32)
    assert ulps(device.host(fastnorm.rms_norm(device.array(x))), oracle(x)) <= 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 1024, 20000])
def test_zeros_nan_and_inf_stay_in_their_rows(device, rng, n, dtype):
    x = rng.standard_normal((5, n)).astype(dtype)
    x[0], x[1, 2], x[2, 3], x[3, :2] = 0, np.nan, np.inf, (np.inf, -np.inf)
    y = device.host(fastnorm.rms_norm(device.array(x), eps=0.0))
    assert (y[0] == 0).all()
    assert np.isnan(y[1]).all()
    for i in (2, 3):
        assert (np.isnan(y[i]) == np.isinf(x[i])).all()
        assert (y[i][np.isfinite(x[i])] == 0).all()
    assert ulps(y[4:], oracle(x[4:], eps=0.0)) <= 4


def test_equal_numbers(device):
    """Every addition of a row of equal numbers rounds the same way: what a long chain would show first."""
    for n in (1024, 16384, 1_000_000):
        x = np.full((1, n), 1.1, np.float32)
        assert ulps(device.host(fastnorm.rms_norm(device.array(x))), oracle(x)) <= 4


@pytest.mark.slow
def test_a_row_of_two_to_the_24(device, rng):
    x = rng.uniform(0.9, 1.1, (1, 1 << 24)).astype(np.float32)
    assert ulps(device.host(fastnorm.rms_norm(device.array(x))), oracle(x)) <= 4


def strided(a):
    return {
        "reversed rows": a[::-1],
        "every other row": a[::2],
        "part of a row": a[:, 4:-8],
        "an axis between": a.reshape(2, 3, -1)[:, 1],
        "batches": a.reshape(2, 3, -1)[:, :2],
        "columns": a.T,
        "reversed": a[:, ::-1],
        "stepped": a[:, ::2],
    }


@pytest.mark.parametrize("view", strided(np.zeros((6, 20))))
def test_any_layout_gives_the_bits_of_a_copy(device, rng, view):
    x = rng.standard_normal((6, 520)).astype(np.float32)
    copy = np.ascontiguousarray(strided(x)[view])
    wanted = device.host(fastnorm.rms_norm(device.array(copy)))
    assert_same_bits(device.host(fastnorm.rms_norm(strided(device.array(x))[view])), wanted)

    out = device.array(x)
    into = strided(out)[view]
    assert fastnorm.rms_norm(into, out=into) is into
    expected = x.copy()
    strided(expected)[view][...] = wanted
    assert_same_bits(device.host(out), expected)


def test_axes(device, rng):
    x = rng.standard_normal((4, 6, 8)).astype(np.float32)
    for axis in (0, 1, 2):
        wanted = np.moveaxis(oracle(np.moveaxis(x, axis, -1)), -1, axis)
        assert ulps(device.host(fastnorm.rms_norm(device.array(x), axis=axis)), wanted, axis=axis) <= 4
    y = device.host(fastnorm.rms_norm(device.array(x), axis=(1, 2)))
    assert ulps(y.reshape(4, 48), oracle(x.reshape(4, 48))) <= 4
