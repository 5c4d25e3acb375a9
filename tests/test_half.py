"""16-bit floats: converted in registers, computed in float32, rounded once."""

import os

import ml_dtypes
import numpy as np
import pytest
from numba import njit

import fastnorm
from fastnorm._cpu import half
from fastnorm._cpu.memory import get, load, load_first, pointer_to, put, shifted, store, store_first

DTYPES = {"float16": (np.dtype(np.float16), np.int16), "bfloat16": (np.dtype(ml_dtypes.bfloat16), np.uint16)}


def same(a, b):
    """Equal bits, or both NaN."""
    nan = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    return a.shape == b.shape and a.dtype == b.dtype and bool((nan | (a.view(np.uint16) == b.view(np.uint16))).all())


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


@pytest.mark.parametrize("norm", [fastnorm.rms_norm, fastnorm.unit_norm])
@pytest.mark.parametrize("name", DTYPES)
def test_rounded_once(rng, norm, name):
    """The float32 result, rounded: for every schedule, axis and layout."""
    dtype = DTYPES[name][0]
    for shape in [(3, 1), (7, 33), (2, 3, 64), (5, 700), (300, 5000), (3, 300_001), (9, 40, 130)]:
        with np.errstate(all="ignore"):
            x = (rng.standard_normal(shape) * rng.choice([1, 1e4, 1e-6], (*shape[:-1], 1))).astype(np.float32).astype(dtype)
        for axis in range(-1, len(shape)):
            weight = rng.standard_normal(shape[axis]).astype(np.float32)
            with np.errstate(all="ignore"):
                wanted = norm(x.astype(np.float32), weight, axis=axis).astype(dtype)
            assert same(norm(x, weight, axis=axis), wanted)
            assert same(norm(np.asfortranarray(x), weight, axis=axis), wanted)
            out = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::-2]
            assert norm(x[::-1], weight, axis=axis, out=out) is out
            assert same(np.ascontiguousarray(out), norm(np.ascontiguousarray(x[::-1]), weight, axis=axis))
            y = x.copy()
            assert norm(y, weight, axis=axis, out=y) is y
            assert same(y, wanted)


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
