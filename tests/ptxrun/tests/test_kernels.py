"""Kernels compiled by numba-cuda: the PTX that would ship, run and compared with NumPy."""

import math

import numpy as np
import pytest

pytest.importorskip("numba.cuda")
pytest.importorskip("numba_cuda")
from numba.core import types

from ptxrun import ArrayArg, MemoryFault, RaceError, compile_ptx, launch

from . import kernels as K
from .kernels import PH, PI, P, f4, i4

rng = np.random.default_rng(3)
_cache = {}


def ptx(f, *sig, **options):
    key = (f, sig, tuple(options.items()))
    if key not in _cache:
        _cache[key] = compile_ptx(f, sig, **options)[0]
    return _cache[key]


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def bf16(x):
    b = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(u):
    return (u.astype(np.uint32) << 16).view(np.float32)


# ---------------------------------------------------------------- norms and softmax
@pytest.mark.parametrize("kernel,bits", [(K.rms_scalar, 32), (K.rms_vector, 128)])
@pytest.mark.parametrize("fastmath", [False, True])
def test_rms_norm(kernel, bits, fastmath):
    rows, n = 8, 1024
    x, w, y = normal(rows, n), normal(n), np.zeros((rows, n), np.float32)
    s = launch(
        ptx(kernel, P, P, P, i4, f4, fastmath=fastmath),
        None,
        rows,
        256,
        [x, w, y, np.int32(n), np.float32(1e-6)],
        check_races=True,
    )
    x64 = x.astype(np.float64)
    np.testing.assert_allclose(y, x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-6) * w, rtol=3e-6, atol=1e-6)
    assert set(s.global_loads) == {bits} and set(s.global_stores) == {bits}
    assert s.f64 == 0 and s.barriers == rows
    assert s.buffers["arg2"].bytes_written == y.nbytes and s.buffers["arg0"].bytes_read == 2 * x.nbytes


def test_rms_norm_on_a_misaligned_row_is_caught():
    x, w, y = normal(2 * 1024 + 1), normal(1024), np.zeros(2048, np.float32)
    args = [w, y, np.int32(1024), np.float32(1e-6)]
    launch(ptx(K.rms_scalar, P, P, P, i4, f4), None, 2, 256, [x[1:], *args])
    with pytest.raises(MemoryFault, match="misaligned 16-byte"):
        launch(ptx(K.rms_vector, P, P, P, i4, f4), None, 2, 256, [x[1:], *args])


def test_rms_norm_out_of_bounds_is_caught():
    x, w, y = normal(2, 1024), normal(1000), np.zeros((2, 1024), np.float32)
    for k in (K.rms_scalar, K.rms_vector):
        with pytest.raises(MemoryFault, match="past the end of arg1"):
            launch(ptx(k, P, P, P, i4, f4), None, 2, 256, [x, w, y, np.int32(1024), np.float32(1e-6)])


@pytest.mark.parametrize("fastmath", [False, True])
def test_softmax(fastmath):
    x = normal(12, 200) * 5
    y = np.zeros_like(x)
    launch(ptx(K.softmax, P, P, i4, fastmath=fastmath), None, 3, 128, [x, y, np.int32(200)])
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-9)


def test_array_arguments():
    A = types.Array(f4, 2, "A")
    big = normal(50, 60)
    x, y = big[::2, 1::3], np.zeros((25, 20), np.float32, order="F")
    launch(ptx(K.array_softplus, A, A), None, 1, 32, [ArrayArg(x), ArrayArg(y)])
    np.testing.assert_allclose(y, np.log1p(np.exp(x.astype(np.float64))), rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------- scalar operations
def test_scalar_bank():
    n = 500
    x = normal(n)
    x[:6] = [3, -3, 0.25, -7.5, 1e-3, 12]
    y = np.zeros((12, n), np.float32)
    launch(ptx(K.bank, P, P, i4), None, 4, 128, [x, y, np.int32(n)])
    v = x.astype(np.float64)
    k = (x * np.float32(100)).astype(np.int32)
    want = [
        np.exp(v),
        np.log(np.abs(x) + np.float32(1), dtype=np.float64),
        np.sin((x * np.float32(50)).astype(np.float64)),
        np.tanh(v),
        np.sqrt(np.abs(v)),
        np.array([math.erf(a) for a in v]),
        np.abs(v) ** np.float64(np.float32(0.3)),
        np.floor(v) + np.ceil(v),
        1 / v,
        (k // 7 + k % -3).astype(np.float64),
        np.where(v < 0, np.abs(v), -v),
        np.cos((x * np.float32(1e5)).astype(np.float64)),
    ]
    for row, (a, b) in enumerate(zip(y, want)):
        np.testing.assert_allclose(a, b, rtol=5e-7, atol=3e-7, err_msg=f"row {row}")


def test_fastmath_bank():
    n = 500
    x, y = normal(n), np.zeros((12, n), np.float32)
    launch(ptx(K.bank, P, P, i4, fastmath=True), None, 4, 128, [x, y, np.int32(n)])
    np.testing.assert_allclose(y[0], np.exp(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(y[3], np.tanh(x.astype(np.float64)), rtol=1e-5, atol=1e-7)


def test_double_precision_bank():
    D = types.CPointer(types.float64)
    x = rng.standard_normal(400)
    x[0] = 50.0  # large argument: the .func with Payne-Hanek reduction
    y = np.zeros_like(x)
    s = launch(ptx(K.bank64, D, D, i4), None, 4, 128, [x, y, np.int32(400)])
    want = np.exp(x) + np.sin(x * 1e7) + np.abs(x) ** 1.7 + np.tanh(x) / np.sqrt(x * x + 1)
    np.testing.assert_allclose(y, want, rtol=1e-14, atol=1e-14)
    assert s.f64 > 0


def test_half_conversions():
    n = 2000
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 5, n)).astype(np.float32)
    y, h = np.zeros((3, n), np.float32), np.zeros((3, n), np.uint16)
    launch(ptx(K.halves, P, P, PH, i4), None, 8, 256, [x, y, h, np.int32(n)])
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    assert (h[0] == half.view(np.uint16)).all() and (y[0] == half.astype(np.float32)).all()
    assert (h[1] == bf16(x)).all() and (h[2] == bf16(x)).all()
    assert (y[1] == from_bf16(bf16(x))).all() and (y[2] == y[1]).all()
    try:
        import ml_dtypes
    except ImportError:
        return
    assert (h[1] == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all()


# ---------------------------------------------------------------- control flow, shared and local memory
def test_divergence():
    x = np.arange(1, 301, dtype=np.int32)
    y = np.zeros(300, np.int32)

    def steps(v):
        k = 0
        while v != 1:
            v, k = (3 * v + 1 if v & 1 else v // 2), k + 1
        return k

    launch(ptx(K.collatz, PI, PI, i4), None, 3, 128, [x, y, np.int32(300)])
    assert list(y) == [steps(int(v)) for v in x]


def test_local_arrays():
    x, y = normal(70, 8), np.zeros((70, 8), np.float32)
    s = launch(ptx(K.local_sort, P, P, i4), None, 2, 64, [x, y, np.int32(70)])
    assert (y == np.sort(x, axis=1)).all()
    assert s.local_accesses > 0


def test_transposed_tile():
    x, y = normal(64, 64), np.zeros((64, 64), np.float32)
    s = launch(ptx(K.transpose, P, P, i4), None, (2, 2), (32, 8), [x, y, np.int32(64)], check_races=True, profile=True)
    assert (y == x.T).all() and s.bank_conflicts == 0


def test_missing_barrier_is_detected():
    x, y = normal(64, 64), np.zeros((64, 64), np.float32)
    with pytest.raises(RaceError):
        launch(ptx(K.transpose_no_barrier, P, P, i4), None, (2, 2), (32, 8), [x, y, np.int32(64)], check_races=True)


def test_atomics():
    x = rng.integers(0, 40, 1000).astype(np.int32)
    h, top = np.zeros(40, np.int32), np.zeros(1, np.int32)
    launch(
        ptx(K.histogram, PI, types.Array(i4, 1, "C"), types.Array(i4, 1, "C"), i4, i4),
        None,
        8,
        128,
        [x, ArrayArg(h), ArrayArg(top), np.int32(1000), np.int32(40)],
        check_races=True,
    )
    assert (h == np.bincount(x, minlength=40)).all()
    assert top[0] == max(np.bincount(x[i : i + 128]).max() for i in range(0, 1000, 128))


def test_scan():
    x, y = normal(256), np.zeros(256, np.float32)
    launch(ptx(K.scan, P, P), None, 1, 256, [x, y], check_races=True)
    np.testing.assert_allclose(y, np.cumsum(x.astype(np.float64)) + 1, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- tensor cores
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("double", [False, True])
def test_tensor_core_matmul(kind, double):
    k, blocks = 80, 3
    A, B = normal(blocks, 16, k), normal(blocks, 8, k)
    mma = K.mma_bf16 if kind == "bf16" else K.mma_f16
    a, b = (
        (bf16(A), bf16(B)) if kind == "bf16" else (A.astype(np.float16).view(np.uint16), B.astype(np.float16).view(np.uint16))
    )
    value = from_bf16 if kind == "bf16" else lambda u: u.view(np.float16)
    c = np.zeros((blocks, 16, 8), np.float32)
    s = launch(
        ptx(K.make_matmul(mma, double=double), PH, PH, P, i4), None, blocks, 32, [a, b, c, np.int32(k)], check_races=True
    )
    np.testing.assert_allclose(
        c, np.einsum("bik,bjk->bij", value(a).astype(np.float64), value(b).astype(np.float64)), rtol=1e-5, atol=1e-5
    )
    assert s.mma_flops == 2 * 16 * 8 * k * blocks


def test_matmul_without_wait_is_caught():
    a, b, c = np.zeros((16, 32), np.uint16), np.zeros((8, 32), np.uint16), np.zeros((16, 8), np.float32)
    f = ptx(K.make_matmul(K.mma_bf16, wait=False), PH, PH, P, i4)
    with pytest.raises(MemoryFault, match="in flight"):
        launch(f, None, 1, 32, [a, b, c, np.int32(32)])
    launch(f, None, 1, 32, [a, b, c, np.int32(32)], uninit_shared="poison")
    assert np.isnan(c).all()


def test_attention():
    n, d = 64, K.D
    q, k, v = (bf16(normal(n, d)) for _ in range(3))
    o = np.zeros((n, d), np.float32)
    scale = np.float32(d**-0.5)
    s = launch(ptx(K.attention, PH, PH, PH, P, i4, f4), None, n // 16, 32, [q, k, v, o, np.int32(n), scale], check_races=True)
    Q, W, V = (from_bf16(x).astype(np.float64) for x in (q, k, v))
    p = np.exp(Q @ W.T * scale)
    np.testing.assert_allclose(o, p / p.sum(1, keepdims=True) @ V, atol=8e-3)
    assert s.f64 == 0
