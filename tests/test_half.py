"""16-bit floats: converted in registers, computed in float32, rounded once."""

import itertools
import os

import ml_dtypes
import numpy as np
import pytest
from calls import call, parameters
from numba import njit

import fastnorm
from fastnorm._bench import oracles
from fastnorm._cpu import half
from fastnorm._cpu.memory import get, load, load_first, pointer_to, put, shifted, store, store_first

DTYPES = {"float16": (np.dtype(np.float16), np.int16), "bfloat16": (np.dtype(ml_dtypes.bfloat16), np.uint16)}


def same(a, b):
    """Equal bits, or both NaN."""
    nan = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    bits = f"u{a.itemsize}"
    return a.shape == b.shape and a.dtype == b.dtype and bool((nan | (a.view(bits) == b.view(bits))).all())


def converters():
    """Widen and narrow whole arrays: in lanes, in the first lanes, and one by one."""

    @njit
    def widen(x, y):
        xp, yp, n = pointer_to(x), pointer_to(y), len(x)
        for i in range(0, n - 64, 64):
            store(yp, i, load(xp, i))
        store_first(yp, n - 64, 63, load_first(xp, n - 64, 63))
        put(shifted(yp, 4 * (n - 1)), get(shifted(xp, 2 * (n - 1))))

    @njit
    def narrow(x, y):
        xp, yp, n = pointer_to(x), pointer_to(y), len(x)
        for i in range(0, n - 64, 64):
            store(yp, i, load(xp, i))
        store_first(yp, n - 64, 63, load_first(xp, n - 64, 63))
        put(shifted(yp, 2 * (n - 1)), get(shifted(xp, 4 * (n - 1))))

    return widen, narrow


@pytest.mark.parametrize("instructions", [True, False])
@pytest.mark.parametrize("name", DTYPES)
def test_conversions(monkeypatch, name, instructions):
    """All 65536 numbers there, and back from every float32 near a rounding boundary."""
    if instructions and not half.has_instructions():
        instructions = False
    monkeypatch.setattr(half, "has_instructions", lambda: instructions)
    dtype, stored = DTYPES[name]
    widen, narrow = converters()
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    wide = np.zeros(65536, np.float32)
    widen(every.view(stored), wide)
    wanted = every.astype(np.float32)
    assert ((wide == wanted) | (np.isnan(wide) & np.isnan(wanted))).all()
    assert (np.signbit(wide) == np.signbit(wanted))[~np.isnan(wanted)].all()

    with np.errstate(all="ignore"):
        middle = (wanted[:-1].astype(float) + wanted[1:]) / 2
        near = [np.nextafter(middle.astype(np.float32), np.float32(to)) for to in (-np.inf, np.inf)]
        random = np.random.default_rng(1).integers(0, 2**32, 400_000, dtype=np.uint32).view(np.float32)
        floats = np.concatenate([wanted, middle.astype(np.float32), *near, random, np.zeros(1, np.float32)])
        floats = floats[: len(floats) // 64 * 64]
        wanted = floats.astype(dtype)
    back = np.zeros(len(floats), stored)
    narrow(floats, back)
    assert same(back.view(dtype), wanted)


def rows(rng, shape, dtype):
    """Rows near one, large and small."""
    with np.errstate(all="ignore"):
        return (rng.standard_normal(shape) * rng.choice([1, 1e4, 1e-6], (*shape[:-1], 1))).astype(np.float32).astype(dtype)


def rounded(results, dtypes):
    """Results of float32, rounded once."""
    with np.errstate(all="ignore"):
        return [y.astype(dtype) for y, dtype in zip(results, dtypes, strict=True)]


def all_same(results, wanted):
    return all(same(np.ascontiguousarray(y), one) for y, one in zip(results, wanted, strict=True))


@pytest.mark.parametrize(
    "norm", ["rms_norm", "unit_norm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("layer_norm", "group_norm"))]
)
@pytest.mark.parametrize("name", DTYPES)
def test_rounded_once(rng, norm, name):
    """The float32 result, rounded: for every schedule, axis and layout."""
    dtype = DTYPES[name][0]
    for shape in [(7, 33), (2, 3, 64), (5, 700), (160, 900), (2, 200_001), (9, 40, 130), (3, 12, 5, 9), (1, 1)]:
        x = rows(rng, shape, dtype)
        for axis in range(-1, len(shape)):
            wanted = rounded(call(norm, [x.astype(np.float32)], axis), [dtype])
            assert all_same(call(norm, [x], axis), wanted)
            assert all_same(call(norm, [np.asfortranarray(x)], axis), wanted)
            out = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::-2]
            mirrored = [x[::-1]] if norm != "group_norm" else [x]
            assert call(norm, mirrored, axis, [out])[0] is out
            assert all_same([out], call(norm, [np.ascontiguousarray(mirrored[0])], axis))
            y = x.copy()
            assert call(norm, [y], axis, [y])[0] is y
            assert all_same([y], wanted)


QUICK = [("float16", "float16"), ("float16", "float32"), ("float32", "bfloat16")]  # each pair has kernels of its own to compile
OTHERS = [p for p in itertools.product([*DTYPES, "float32"], repeat=2) if p not in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("x_name", "residual_name"), [*QUICK, *(pytest.param(*p, marks=pytest.mark.slow) for p in OTHERS)])
def test_sums_are_rounded_before_they_are_normalised(rng, norm, x_name, residual_name):
    """Sums of any two dtypes: h is what is kept of the sum, y is the float32 norm of that, rounded."""
    dtypes = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in (x_name, residual_name)]
    for shape, axes in [((7, 33), (-1, 0)), ((5, 700), (-1,)), ((300, 500), (-1, 0))]:
        arrays = [rows(rng, shape, dtype) for dtype in dtypes]
        (h,) = rounded([arrays[0].astype(np.float32) + arrays[1].astype(np.float32)], dtypes[1:])
        for axis in axes:
            wanted = [*rounded(call(norm, [h.astype(np.float32)], axis), dtypes[:1]), h]
            assert all_same(call("add_" + norm, arrays, axis), wanted)
            assert all_same(call("add_" + norm, [np.asfortranarray(a) for a in arrays], axis), wanted)
            overwritten = [a.copy() for a in arrays]
            assert all_same(call("add_" + norm, overwritten, axis, overwritten), wanted)


@pytest.mark.parametrize("name", [*DTYPES, "float32"])
def test_sums_with_float64(rng, name):
    """Computed in float64 if one of the two is."""
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    for shape in [(6, 40), (200, 300)]:
        x, residual = rows(rng, shape, dtype), rng.standard_normal(shape)
        for norm in ("rms_norm", "layer_norm"):
            weights = parameters(norm, shape[-1], np.float64)
            y, h = call("add_" + norm, [x, residual], weights=weights)
            assert h.dtype == np.float64
            assert (h == x.astype(np.float64) + residual).all()
            assert all_same([y], [oracles.rounded_once(call(norm, [h], weights=weights)[0], dtype)])
            assert y.dtype == dtype
            y, h = call("add_" + norm, [residual, x], weights=weights)
            assert same(h, oracles.rounded_once(x.astype(np.float64) + residual, dtype))
            np.testing.assert_array_equal(y, call(norm, [h.astype(np.float64)], weights=weights)[0])


@pytest.mark.parametrize("name", DTYPES)
def test_range(name):
    dtype = DTYPES[name][0]
    x = np.full((2, 64), 300, dtype)
    assert (fastnorm.rms_norm(x) == 1).all(), "the squares overflow float16"
    assert (fastnorm.unit_norm(x) == 0.125).all()
    tiny = np.full(8, 2.0**-20, dtype)
    np.testing.assert_allclose(
        fastnorm.rms_norm(tiny, eps=1e-12).astype(float), 2.0**-20 / np.sqrt(2.0**-40 + 1e-12), rtol=2.0**-8
    )
    odd = np.array([[np.nan, 1, 2], [np.inf, 1, 0], [0, 0, 0], [3, 3, 3]], dtype)
    y = fastnorm.rms_norm(odd, eps=0.0).astype(float)
    np.testing.assert_array_equal(y, [[np.nan] * 3, [np.nan, 0, 0], [0] * 3, [1] * 3])


@pytest.mark.parametrize("name", DTYPES)
def test_weights_of_any_dtype(rng, name):
    dtype = DTYPES[name][0]
    x = rng.standard_normal((4, 16)).astype(dtype)
    wanted = fastnorm.rms_norm(x, np.arange(16, dtype=np.float32))
    for kind in (np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint64):
        assert same(fastnorm.rms_norm(x, np.arange(16).astype(kind)), wanted)
    assert fastnorm.rms_norm(np.ones((2, 4), np.float32), np.ones(4, ml_dtypes.bfloat16)).dtype == np.float32


def test_threads_and_alignment_of_halves(rng, threads):
    x = rng.standard_normal((3000, 1111)).astype(np.float16)
    threads(1)
    wanted = fastnorm.rms_norm(x)
    room = np.empty(x.size + 64, np.float16)
    for n in (1, 2, 5):
        threads(n)
        for start in (0, 1, 7, 31):
            out = room[start : start + x.size].reshape(x.shape)
            assert same(fastnorm.rms_norm(x, out=out), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("features", ["", "-f16c"])
def test_without_instructions(tmp_path, features):
    """LLVM's own conversion would end this process."""
    import subprocess
    import sys

    program = (
        "import numpy as np, fastnorm; x = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float16)\n"
        "y = fastnorm.rms_norm(x); print((y == fastnorm.rms_norm(x.astype(np.float32)).astype(np.float16)).all())"
    )
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
        "FASTNORM_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


def test_sums_in_float64_are_rounded_once():
    """ml_dtypes casts float64 by way of float32: just above a halfway case that would go down instead of up."""
    bfloat16 = DTYPES["bfloat16"][0]
    above, nothing = np.full((1, 2), 1 + 2**-8 + 2**-40), np.zeros((1, 2), bfloat16)
    assert (fastnorm.add_rms_norm(above, nothing)[1] == 1.0078125).all()
    assert (fastnorm.add_rms_norm(nothing, np.ones((1, 2)), above[0], eps=0.0)[0] == 1.0078125).all()
