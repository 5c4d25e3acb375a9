"""Bits of all public functions: whatever the threads, the batch, the layout, the alignment, the cache, the processor."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from compare import assert_same_bits
from every_function import DTYPES, FUNCTIONS, WITHOUT_OUT, inputs, results

from fastnorm._compile import IS_X86


def assert_same(found, wanted):
    for y, one in zip(found, wanted, strict=True):
        assert_same_bits(y, one)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads(rng, threads, name):
    """Enough work for several, of each number from one to eight."""
    arrays = inputs(name, rng, 8, 2100 if name in ("rope_tables", "attention", "merge_attention") else 70_000)
    threads(1)
    wanted = results(name, arrays)
    for n in range(2, 9):
        threads(n)
        assert_same(results(name, arrays), wanted)


@pytest.mark.parametrize("n", [1, 33, 130])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_company(rng, name, n):
    """The first of a thousand, in batches of any size; and each alone."""
    arrays = inputs(name, rng, 1000, n)
    wanted = results(name, arrays)
    for batch in (1, 2, 3, 5, 8, 9, 16, 17, 63, 64, 65, 100, 333, 512, 999):
        assert_same(results(name, [a[:batch] for a in arrays]), [y[:batch] for y in wanted])
    for i in range(0, 1000, 37):
        assert_same(results(name, [a[i : i + 1] for a in arrays]), [y[i : i + 1] for y in wanted])


def stepped(a):
    room = np.zeros([2 * n for n in a.shape], a.dtype)
    view = room[(slice(None, None, 2),) * a.ndim]
    view[...] = a
    return view


LAYOUTS = {
    "fortran": np.asfortranarray,
    "stepped": stepped,
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "padded": lambda a: np.pad(a, [(1, 2)] * a.ndim)[(slice(1, -2),) * a.ndim],
    "last axis first": lambda a: np.moveaxis(np.moveaxis(a, -1, 0).copy(), 0, -1),
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [7, 64, 1100])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(rng, name, n, dtype):
    arrays = inputs(name, rng, 9, n, DTYPES[dtype])
    wanted = results(name, arrays)
    for layout in LAYOUTS.values():
        odd = [layout(a) for a in arrays]
        assert_same(results(name, odd), wanted)
        for i in range(len(arrays)):  # one that differs from the others
            assert_same(results(name, [*arrays[:i], odd[i], *arrays[i + 1 :]]), wanted)
        if name not in WITHOUT_OUT:
            outs = [layout(np.zeros_like(y)) for y in (wanted[:1] if name == "attention" else wanted)]
            found = results(name, odd, outs)
            assert all(y is out for y, out in zip(found, outs, strict=False))
            assert_same(found, wanted)
    repeated = [np.broadcast_to(a[:1], a.shape) for a in arrays]
    assert_same(results(name, repeated), results(name, [a.copy() for a in repeated]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_alignment(rng, name, dtype):
    """Arrays, and results, that begin at any byte of a cache line."""

    def placed(a, start):
        room = np.zeros(a.nbytes + 128, np.uint8)
        start += -room.ctypes.data % 64
        view = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        view[...] = a
        return view

    arrays = inputs(name, rng, 3, 133, DTYPES[dtype])
    wanted = results(name, arrays)
    for start in range(64):
        odd = [placed(a, start) for a in arrays]
        assert_same(results(name, odd), wanted)
        if name not in WITHOUT_OUT:
            outs = [placed(np.zeros_like(y), 63 - start) for y in (wanted[:1] if name == "attention" else wanted)]
            assert_same(results(name, odd, outs), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_caches_and_processors(tmp_path, dtype):
    """The code of this processor, code just compiled for one with narrower registers, and fewer, and that from the cache."""
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"} if IS_X86 else {}
    fresh = {"FASTNORM_CACHE_DIR": str(tmp_path), **narrow}
    (_, *wanted), *others = [
        subprocess.run(
            [sys.executable, str(pathlib.Path(__file__).with_name("every_function.py")), dtype],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for environment in ({}, fresh, fresh)
    ]
    assert len(wanted) == len(FUNCTIONS)
    for width, *lines in others:
        assert width == "64 bytes" or not IS_X86, "tiles are as narrow as the registers"
        assert lines == wanted
