"""Attention, softmax and RoPE beside torch, scipy and a copy of the same bytes, under pytest-benchmark: a group a case.

``pytest bench/bench_attention.py --benchmark-only``. Each result is held against plain NumPy in float64 before it is timed: of
attention some queries of the last head, of the others some rows.
"""

import functools

import numpy as np
import pytest

import fastnorm
from fastnorm._bench.measure import settle
from fastnorm._cpu.copy import copy

CASES = {  # (batch, heads, heads of keys, queries, keys, head size), options
    "prefill 8 heads x 1024 x 64": ((1, 8, 8, 1024, 1024, 64), {}),
    "prefill 8 heads x 1024 x 64, causal": ((1, 8, 8, 1024, 1024, 64), {"is_causal": True}),
    "prefill 32 heads x 2048 x 128": ((1, 32, 32, 2048, 2048, 128), {}),
    "prefill 32 heads x 2048 x 128, causal": ((1, 32, 32, 2048, 2048, 128), {"is_causal": True}),
    "decode 32/8 heads, 4096 keys x 128": ((1, 32, 8, 1, 4096, 128), {}),
    "causal 2 heads x 16384 x 64": ((1, 2, 2, 16384, 16384, 64), {"is_causal": True}),
    "window 512, 2 heads x 16384 x 64": ((1, 2, 2, 16384, 16384, 64), {"is_causal": True, "window": (511, 0)}),
}
OTHERS = {
    "softmax 16384 x 4096": ("softmax", (16384, 4096), -1),
    "softmax 4096 x 4096, axis 0": ("softmax", (4096, 4096), 0),
    "softmax 128 x 4096": ("softmax", (128, 4096), -1),
    "rope 32 heads x 4096 x 128": ("rope", (1, 32, 4096, 128), -1),
}


def _random(*shape):
    return np.random.default_rng(2024).standard_normal(shape, np.float32)


@functools.lru_cache(maxsize=1)
def _inputs(sizes, dtype):
    batch, heads, key_heads, n_queries, n_keys, head_size = sizes
    arrays = _random(batch, heads, n_queries, head_size), *_random(2, batch, key_heads, n_keys, head_size)
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    return [a.astype(dtype) for a in arrays]


def _expected(q, k, v, options):
    """Some queries of the last head, in float64."""
    q, k, v = (a[-1, -1].astype(np.float64) for a in (q, k, v))
    rows = np.arange(0, len(q), max(1, len(q) // 16))
    position = (rows + len(k) - len(q))[:, None]
    scores = q[rows] @ k.T / np.sqrt(q.shape[-1])
    j = np.arange(len(k))
    if options.get("is_causal"):
        scores[j > position] = -np.inf
    if "window" in options:
        scores[j < position - options["window"][0]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return rows, weights @ v / weights.sum(-1, keepdims=True)


def _torch_attention(q, k, v, options):
    torch = pytest.importorskip("torch")
    if "window" in options:
        pytest.skip("torch: would need a mask of 16384 x 16384")
    torch.set_num_threads(fastnorm.get_num_threads())
    tensors = [
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.itemsize == 2 else torch.from_numpy(a) for a in (q, k, v)
    ]
    same = q.shape[-2] == k.shape[-2]
    options = (
        {"is_causal": options.get("is_causal", False), "enable_gqa": q.shape[1] != k.shape[1]} if same else {"enable_gqa": True}
    )
    function = functools.partial(torch.nn.functional.scaled_dot_product_attention, *tensors, **options)
    return function, lambda y: y.float().numpy()


@pytest.mark.parametrize("who", ["fastnorm", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("work", CASES)
def bench_attention(benchmark, work, dtype, who):
    """One call. torch's bfloat16 is computed in 16 bits, and checked as such."""
    sizes, options = CASES[work]
    q, k, v = _inputs(sizes, dtype)
    if who == "fastnorm":
        run, read = functools.partial(fastnorm.attention, q, k, v, **options), lambda y: y.astype(np.float32)
    else:
        run, read = _torch_attention(q, k, v, options)
    rows, wanted = _expected(q, k, v, options)
    np.testing.assert_allclose(read(run())[-1, -1][rows], wanted, rtol=0, atol=1e-5 if dtype == "float32" else 2e-2)
    benchmark.group, benchmark.name = f"{work} {dtype}", who
    benchmark.extra_info.update(bytes=2 * k.nbytes, products=2 * sizes[1] * sizes[3] * sizes[4] * sizes[5])
    settle()
    benchmark(run)


@pytest.mark.parametrize("who", ["fastnorm", "copy", "torch", "scipy"])
@pytest.mark.parametrize("work", OTHERS)
def bench_rows(benchmark, work, who):
    """One call, with ``out=`` where there is one."""
    function, shape, axis = OTHERS[work]
    x = _random(*shape)
    out = np.empty_like(x)
    if who == "copy":
        run = functools.partial(copy, x, np.array([x.nbytes > 1 << 24]), out)
    elif who == "fastnorm" and function == "softmax":
        run = functools.partial(fastnorm.softmax, x, axis=axis, out=out)
    elif who == "fastnorm":
        run = functools.partial(fastnorm.rope, x, *fastnorm.rope_tables(np.arange(shape[-2]), shape[-1]), out=out)
    elif function != "softmax":
        pytest.skip(f"{who} has no {function}")
    elif who == "torch":
        torch = pytest.importorskip("torch")
        torch.set_num_threads(fastnorm.get_num_threads())
        run = functools.partial(torch.softmax, torch.from_numpy(x), axis)
    else:
        run = functools.partial(pytest.importorskip("scipy.special").softmax, x, axis)
    result = run()
    if who != "copy" and function == "softmax":
        result = np.moveaxis(np.asarray(result), axis, -1)[..., :16, :].astype(np.float64)
        wide = np.moveaxis(x, axis, -1)[..., :16, :].astype(np.float64)
        wanted = np.exp(wide - wide.max(-1, keepdims=True))
        np.testing.assert_allclose(result, wanted / wanted.sum(-1, keepdims=True), rtol=1e-5, atol=1e-9)
    benchmark.group, benchmark.name = work, who
    settle()
    benchmark(run)
