"""What GPU kernels compute: their PTX interpreted, or on a real device with --backend cupy, against float64."""

import cuda_devices
import numpy as np
import pytest
from compare import assert_same_bits, ulps

import fastnorm
from fastnorm._bench import oracles
from fastnorm._cuda import norms

SIZES = [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 255, 511, 512, 513, 1024, 4096, 4099, 5000, 16384, 16385, 20000]
QUICK = 4, 513, 1024
WIDE = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def of_sizes(sizes, *others):
    """Parameters, of which the quick run takes those of few sizes."""
    return [pytest.param(n, *others, marks=[] if n in QUICK else pytest.mark.slow) for n in sizes]


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
@pytest.mark.parametrize("n", of_sizes(SIZES))
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


@pytest.mark.parametrize("n", of_sizes([4, 33, 1024, 20000]))
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
    x[3, 2:] *= np.finfo(dtype).max / 8  # whose products leave the range
    y = device.host(fastnorm.rms_norm(device.array(x), eps=0.0))
    assert (y[0] == 0).all()
    assert np.isnan(y[1]).all()
    for i in (2, 3):
        assert (np.isnan(y[i]) == np.isinf(x[i])).all()
        assert (y[i][np.isfinite(x[i])] == 0).all()
    assert ulps(y[4:], oracle(x[4:], eps=0.0)) <= 4


@pytest.mark.slow
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


# ------------------------------------------------------------------------------------------------- the other norms
def compute(device, norm, x, *parameters, eps=1e-5):
    """What a norm of the backend makes of host arrays, and leaves of its input."""
    on_device = device.array(x)
    out = device.array(np.full_like(x, 7))
    norm(on_device, [None if p is None else device.array(p) for p in parameters], eps, out)
    assert_same_bits(device.host(on_device), x)
    return device.host(out)


def centred_ulps(y, x, weight=None, bias=None, eps=1e-5):
    """The largest error of any row of `layer_norm`, in units in the last place of the row's largest ``|y - bias| + |bias|``."""
    scaled = oracles.layer_norm(x, weight, eps=eps)
    added = np.zeros(1) if bias is None else bias.astype(scaled.dtype)
    largest = (np.abs(scaled) + np.abs(added)).max(axis=-1, keepdims=True).astype(y.dtype)
    return float((np.abs(y.astype(scaled.dtype) - (scaled + added)) / np.spacing(largest)).max())


@pytest.mark.parametrize("n", of_sizes([1, 5, 65, 1024, 16384, 16385]))
def test_unit_norm(device, rng, n):
    x, weight = rng.standard_normal((3, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    assert ulps(compute(device, norms.unit_norm, x, None, eps=0.0), oracles.unit_norm(x)) <= 4
    assert ulps(compute(device, norms.unit_norm, x, weight, eps=0.5), oracles.unit_norm(x, weight, 0.5)) <= 4


@pytest.mark.parametrize(
    ("n", "dtype"),
    of_sizes([1, 2, 5, 33, 64, 65, 513, 1024, 4099, 16384, 16385], "float32")
    + [pytest.param(n, "float64", marks=pytest.mark.slow) for n in (1, 4, 65, 1024, 8192, 8193, 10000)],
)
def test_layer_norm(device, rng, n, dtype):
    x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in ((3, n), n, n))
    x[1] += 100 if dtype == "float64" else 1e4  # the oracle is wider by 11 bits alone
    x[2, :64] += 50  # the first elements are not like the rest
    for parameters in ((None, None), (weight, None), (None, bias), (weight, bias))[0 if n < 2000 else 2 :]:
        y = compute(device, norms.layer_norm, x, *parameters)
        assert centred_ulps(y, x, *parameters) <= 4

    on_device, given = device.array(x), [device.array(weight), device.array(bias)]
    elsewhere = fastnorm.layer_norm(unaligned(device, x), *[unaligned(device, p) for p in (weight, bias)])
    assert_same_bits(device.host(elsewhere), y)
    assert fastnorm.layer_norm(on_device, *given, out=on_device) is on_device
    assert_same_bits(device.host(on_device), y)


@pytest.mark.parametrize("n", of_sizes([4, 1024, 20000]))
@pytest.mark.parametrize("row", ROWS)
def test_layer_norm_of_rows_that_leave_the_range(device, rng, row, n):
    factor, eps = ROWS[row]
    x = (rng.uniform(-1, 1, (3, n)) * factor).astype(np.float32)
    x[1] = rng.standard_normal(n)
    x[2] += np.float32(factor)
    weight, bias = rng.standard_normal((2, n)).astype(np.float32)
    for b in (None, bias):
        assert centred_ulps(compute(device, norms.layer_norm, x, weight, b, eps=eps), x, weight, b, np.float64(eps)) <= 4


def test_layer_norm_far_from_zero(device):
    x = np.array([[40000, 40001, 40002, 40003], [3e38, -3e38, 3e38, 1e38], [1e30, 1, 2, 3]], np.float32)
    y = compute(device, norms.layer_norm, x, None, None, eps=0.0)
    assert centred_ulps(y, x, eps=0.0) <= 4


@pytest.mark.parametrize(
    ("n", "dtype"), [(1, "float32"), (5, "float32"), (1000, "float32"), (20000, "float32"), (1000, "float64")]
)
def test_equal_numbers_give_the_bias(device, rng, n, dtype):
    values = np.array([0, -0.1, 1e30, np.finfo(dtype).max, 1e-40, np.finfo(dtype).smallest_subnormal])
    x = np.repeat(values[:, None], n, axis=1).astype(dtype)
    weight, bias = (rng.standard_normal(n) * 1e30).astype(dtype), rng.standard_normal(n).astype(dtype)
    for eps in (0.0, 1e-5):
        assert (compute(device, norms.layer_norm, x, weight, bias, eps=eps) == bias).all()


@pytest.mark.parametrize("n", [5, 1024, 20000])
def test_layer_norm_of_nan_and_inf(device, rng, n):
    x = rng.standard_normal((5, n)).astype(np.float32)
    x[0, 2], x[1, -1], x[2, :2], x[3, -1] = np.nan, np.inf, (np.inf, -np.inf), np.nan
    y = compute(device, norms.layer_norm, x, None, None)
    assert np.isnan(y[:4]).all()
    assert centred_ulps(y[4:], x[4:]) <= 4


@pytest.mark.slow
def test_layer_norm_of_a_row_of_two_to_the_24(device, rng):
    """Of two values: every addition of a tile rounds alike."""
    x = rng.choice(np.array([100, 101], np.float32), (1, 1 << 24), p=(0.3, 0.7))
    assert centred_ulps(compute(device, norms.layer_norm, x, None, None), x) <= 4


# ---------------------------------------------------------------------------------------------------- groups, sums
SHAPES = {
    "image": (2, 3, 1, 4, 20),
    "odd": (2, 3, 1, 5, 7),
    "volume in front": (2, 2, 3, 4, 6),
    "channels last": (3, 2, 9, 4, 1),
    "vectors": (3, 2, 1, 8, 1),
    "one channel": (2, 3, 1, 1, 64),
    "long": (1, 2, 1, 8, 2500),
    "long and odd": (1, 2, 2, 7, 1501),
}


def grouped(device, x, weight, bias, out=None):
    out = cupy_like(device, x) if out is None else out
    norms.group_norm(x, [None if p is None else device.array(p) for p in (weight, bias)], 1e-5, out)
    return device.host(out)


def cupy_like(device, x):
    return device.array(np.full(x.shape, 7, x.dtype))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=[] if s in ("image", "channels last") else pytest.mark.slow) for s in SHAPES]
)
def test_group_norm_is_layer_norm_of_a_group(device, rng, shape, dtype):
    """With the weight of its channel for each element: the same bits."""
    batch, n_groups, before, channels, inner = SHAPES[shape]
    x = rng.standard_normal(SHAPES[shape]).astype(dtype)
    weight, bias = rng.standard_normal((2, n_groups * channels)).astype(dtype)
    for parameters in ((weight, bias), (None, bias)):
        y = grouped(device, device.array(x), *parameters)
        for g in range(n_groups):
            rows = x[:, g].reshape(batch, -1)
            own = [None if p is None else p.reshape(n_groups, 1, channels, 1)[g] for p in parameters]
            spread = [None if p is None else np.broadcast_to(p, (before, channels, inner)).ravel() for p in own]
            wanted = compute(device, norms.layer_norm, rows, *spread)
            assert centred_ulps(wanted, rows, *spread) <= 4
            assert_same_bits(y[:, g].reshape(batch, -1), wanted)


def test_group_norm_of_any_layout(device, rng):
    """Channels behind space, as `_arguments` shows them: a copy there and back; in place, too."""
    shape = (2, 6, 5, 12)  # batch, height, width, channels of 3 groups
    x = rng.standard_normal(shape).astype(np.float32)
    weight, bias = rng.standard_normal((2, 12)).astype(np.float32)
    view = lambda a: a.reshape(2, 30, 3, 4).transpose(0, 2, 1, 3)[..., None]  # noqa: E731
    wanted = grouped(device, device.array(np.ascontiguousarray(view(x))), weight, bias)
    on_device, out = device.array(x), device.array(np.zeros_like(x))
    assert_same_bits(grouped(device, view(on_device), weight, bias, view(out)), wanted)
    assert_same_bits(grouped(device, view(on_device), weight, bias, view(on_device)), wanted)
    assert_same_bits(device.host(on_device), device.host(out))


ADDED = {"add_rms_norm": ("rms_norm", 1), "add_layer_norm": ("layer_norm", 2)}


IN_PLACE = [("new", "more"), ("x", "new"), ("residual", "new"), ("new", "x"), ("x", "residual"), ("residual", "x")]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", of_sizes([1, 64, 513, 1024, 4099, 20000]))
@pytest.mark.parametrize("function", ADDED)
def test_add_norms(device, rng, function, n, dtype):
    """What is kept is the sum, and the result the norm of it, bit for bit; in place in every way."""
    norm, count = ADDED[function]
    x, residual = rng.standard_normal((2, 4, n)).astype(dtype)
    x[1] *= np.finfo(dtype).max / 8
    x[2] += 1e4
    x[3, :64] += 50
    parameters = list(rng.standard_normal((count, n)).astype(dtype))
    kept = x + residual
    wanted = compute(device, getattr(norms, norm), kept, *parameters)
    parameters = [device.array(p) for p in parameters]
    for keep, to in IN_PLACE if n in (513, 20000) else IN_PLACE[:1]:
        names = {"x": x, "residual": residual, "new": np.zeros_like(x), "more": np.zeros_like(x)}
        arrays = {name: device.array(a) for name, a in names.items()}
        getattr(norms, function)(arrays["x"], arrays["residual"], parameters, 1e-5, arrays[to], arrays[keep])
        assert_same_bits(device.host(arrays[keep]), kept)
        assert_same_bits(device.host(arrays[to]), wanted)


@pytest.mark.parametrize("place", ["new", "inputs"])
@pytest.mark.parametrize("view", strided(np.zeros((6, 20))))
def test_add_norms_of_any_layout(device, rng, view, place):
    x, residual = rng.standard_normal((2, 6, 520)).astype(np.float32)
    kept = strided(x + residual)[view]
    wanted = compute(device, norms.rms_norm, np.ascontiguousarray(kept), None)
    a, b = strided(device.array(x))[view], strided(device.array(residual))[view]
    to, keep = (a, b) if place == "inputs" else (strided(device.array(v))[view] for v in np.zeros((2, 6, 520), np.float32))
    norms.add_rms_norm(a, b, [None], 1e-5, to, keep)
    assert_same_bits(device.host(keep), kept)
    assert_same_bits(device.host(to), wanted)


def test_a_sum_with_itself(device, rng):
    x = rng.standard_normal((2, 100)).astype(np.float32)
    on_device, out = device.array(x), device.array(x)
    norms.add_rms_norm(on_device, on_device, [None], 1e-5, out, on_device)
    assert_same_bits(device.host(on_device), x + x)
    assert_same_bits(device.host(out), compute(device, norms.rms_norm, x + x, None))


@pytest.mark.gpu
def test_sums_of_two_dtypes(rng):
    with cuda_devices.real() as device:
        x, residual = rng.standard_normal((3, 100)).astype(np.float32), rng.standard_normal((3, 100))
        y, kept = fastnorm.add_rms_norm(device.array(x), device.array(residual))
        assert_same_bits(device.host(kept), x + residual)
        assert ulps(device.host(y), oracle(x + residual)) <= 4
