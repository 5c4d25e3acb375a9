"""Measures how far softmax, RoPE and attention are from exact ones, and prints the tables of the page on numerics.

In a clone of the repository: ``PYTHONPATH=. python docs/accuracy_attention.py``. It takes two minutes and 3 GB of memory; the
seed is fixed. Exact is what NumPy computes in float64, for float64 in longdouble, which must be wider (as on x86 Linux).
"""

import platform
import time
import warnings

import ml_dtypes
import numpy as np

import fastnorm
from fastnorm._bench import attention_oracles as oracles

DTYPES = [np.dtype(dtype) for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]

LENGTHS = {
    "1 to 8": range(1, 9),
    "9 to 64": [9, 15, 16, 17, 31, 32, 33, 63, 64],
    "65 to 512": [65, 100, 127, 128, 129, 257, 511, 512],
    "to 4099": [513, 1000, 1025, 2048, 4099],
    "to $2^{17}$": [8191, 8193, 32_769, 2**17],
    "to $2^{20}$": [300_000, 2**20],
    "to $2^{24}$": [2**22 + 1, 2**24],
}
SCORES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "equal": lambda rng, shape: rng.uniform(-9, 9, (shape[0], 1)) * np.ones(shape),
    "sharp": lambda rng, shape: 30 * rng.standard_normal(shape),
    "two values": lambda rng, shape: rng.choice([0.1, -0.7], shape),
    "far from 0": lambda rng, shape: 1000 + rng.standard_normal(shape),
    "falling": lambda rng, shape: -100 * np.arange(shape[-1]) / shape[-1] * np.ones(shape),
    "one large": lambda rng, shape: np.where(np.arange(shape[-1]) == shape[-1] // 2, 16, rng.standard_normal(shape)),
}
POSITIONS = {"to 100": 10**2, "to 1000": 10**3, "to 10 000": 10**4, "to 100 000": 10**5, "to 1 000 000": 10**6}
KEYS = {
    "1 to 8": [1, 2, 8],
    "9 to 64": [9, 33, 64],
    "65 to 512": [65, 200, 512],
    "to 4099": [1025, 4099],
    "to $2^{17}$": [2**15, 2**17],
}
QUERIES = {
    "normal": lambda rng, q, k: (q, k),
    "sharp": lambda rng, q, k: (8 * q, k),
    "alike": lambda rng, q, k: (q, k[:, :1] + k / 1000),  # keys that differ little
}
OPPOSED = {
    "opposed": lambda rng, q, k: (
        np.concatenate([q, q], -1),
        np.concatenate([50 * k, rng.standard_normal(k.shape) / 8 - 50 * k], -1),
    )
}


def quietly(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args, **options)


def spacing(size, y):
    """The unit in the last place of numbers of this size, in the dtype of y."""
    return np.spacing(size.astype(y.dtype)).astype(size.dtype)


def of_softmax(name, x, scale):
    """The largest error, in units of a probability and a quarter of the row's largest; of logarithms, of 1 plus the result."""
    if name == "softmax":
        y, wanted = quietly(fastnorm.softmax, x, scale=scale), oracles.softmax(x, scale=oracles.wide(x).dtype.type(scale))
        unit = spacing(wanted, y) + (spacing(wanted.max(-1, keepdims=True), y) / 4 if y.itemsize > 2 else 0)
    else:
        x = x if name == "logsumexp" else (x * x.dtype.type(scale)).astype(x.dtype)
        wanted = oracles.logsumexp(x)
        wanted = wanted if name == "logsumexp" else oracles.wide(x) - wanted[..., None]
        y = quietly(getattr(fastnorm, name), x)
        unit = spacing(1 + np.abs(wanted), y)
    return float((np.abs(y.astype(wanted.dtype) - wanted) / unit).max())


def softmax_cases(dtype, n, rng):
    rows = 40 if n <= 512 else 10 if n <= 4099 else 2 if n <= 2**17 else 1
    for data in SCORES if n <= 2**20 and dtype.itemsize > 2 else ["normal", "equal"]:
        for scale in (1.0, 0.125, 3.7) if n <= 4099 else (1.0,):
            yield data, SCORES[data](rng, (rows, n)).astype(dtype), scale


def of_rope(dtype, dim, positions, interleaved, rng):
    """The largest error in units in the last place of ``|a| + |b|`` of a pair (a, b), given the tables."""
    tables = fastnorm.rope_tables(positions, dim, dtype=np.float64 if dtype == np.float64 else np.float32)
    x = rng.standard_normal((len(positions), dim)).astype(dtype)
    y, wanted = quietly(fastnorm.rope, x, *tables, interleaved=interleaved), oracles.rope(x, *tables, interleaved=interleaved)
    pairs = np.abs(oracles.wide(x)).reshape(len(x), -1, 2) if interleaved else np.abs(oracles.wide(x)).reshape(len(x), 2, -1)
    size = pairs.sum(-1 if interleaved else 1)
    unit = spacing(np.repeat(size, 2, -1) if interleaved else np.tile(size, 2), y)
    return float((np.abs(y.astype(wanted.dtype) - wanted) / unit).max())


def of_tables(dtype, dim, positions):
    """The largest error of a table in units in the last place of 1."""
    angles = positions[:, None] * np.longdouble(10000) ** (-np.arange(0, dim, 2, dtype=np.longdouble) / dim)
    tables = fastnorm.rope_tables(positions, dim, dtype=dtype)
    wanted = np.cos(angles), np.sin(angles)
    unit = np.longdouble(ml_dtypes.finfo(dtype).eps)
    return max(float((np.abs(y.astype(np.longdouble) - exact) / unit).max()) for y, exact in zip(tables, wanted, strict=True))


def of_attention(dtype, n_keys, head_size, data, is_causal, rng):
    """The largest error in units of the largest value times 1 plus half the largest score; of 16 bits, in theirs.

    Where products cancel, the size of a score is the sum of theirs.
    """
    n_queries = 10 if n_keys <= 512 else 4 if n_keys <= 4099 else 1
    q, k = rng.standard_normal((2, n_queries, head_size)), rng.standard_normal((1, n_keys, head_size))
    q, k = (QUERIES | OPPOSED)[data](rng, q, k)
    v = rng.standard_normal((1, n_keys, min(head_size, 64)))
    q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    y = quietly(fastnorm.attention, q, k, v, is_causal=is_causal)
    wanted, _, (score, value) = oracles.attention(q, k, v, is_causal=is_causal)
    if data in OPPOSED:
        score = (np.abs(oracles.wide(q)) @ np.abs(oracles.wide(k)).swapaxes(-1, -2)).max(-1) / np.sqrt(q.shape[-1])
    unit = np.longdouble(ml_dtypes.finfo(dtype).eps) * np.maximum(value, 1e-30) * (1 + score / 2 if dtype.itemsize > 2 else 1)
    return float((np.abs(y.astype(wanted.dtype) - wanted) / unit[..., None]).max())


def table(head, columns, rows):
    """Print a table: each row has a name, a dtype, and a function of a column that gives (error, words for where it was)."""
    print(f"\n| {head} | dtype | {' | '.join(columns)} | worst |\n|---|---|{'---|' * len(columns)}---|")
    for name, dtype, measure in rows:
        rng = np.random.default_rng(20261130)
        found = [max(measure(column, rng)) for column in columns.values()]
        assert all(np.isfinite(error) for error, _ in found)
        entries = " | ".join(
            f"{error:.{2 if dtype.itemsize > 2 else 3}f}" if error < 100 else f"{error:.0f}" for error, _ in found
        )
        print(f"| {name} | {dtype.name} | {entries} | {max(found)[1]} |", flush=True)


def softmax_row(name, dtype):
    def measure(lengths, rng):
        for n in lengths:
            yield from ((of_softmax(name, x, scale), f"{data}, {n}") for data, x, scale in softmax_cases(dtype, n, rng))

    return f"`{name}`", dtype, measure


def rope_row(dtype):
    def measure(end, rng):
        for dim in (2, 6, 64, 128, 130, 256):
            for interleaved in (False, True):
                positions = rng.integers(0, end, 200)
                yield of_rope(dtype, dim, positions, interleaved, rng), f"{'interleaved' if interleaved else 'halves'}, {dim}"

    return "`rope`", dtype, measure


def tables_row(dtype):
    def measure(end, rng):
        for dim in (2, 64, 128, 256):
            yield of_tables(dtype, dim, rng.integers(0, end, 200)), f"{dim}"

    return "`rope_tables`", dtype, measure


def attention_row(dtype, kinds=tuple(QUERIES)):
    def measure(lengths, rng):
        for n_keys in lengths:
            for head_size in (1, 3, 16, 64, 80, 128, 256) if n_keys <= 4099 else (64,):
                for data in kinds:
                    for is_causal in (False, True) if n_keys <= 4099 else (False,):
                        error = of_attention(dtype, n_keys, head_size, data, is_causal, rng)
                        yield error, f"{data}, {n_keys} of {head_size}"

    return "`attention`" if kinds == tuple(QUERIES) else f"`attention`, {kinds[0]}", dtype, measure


def main():
    """Measure, and print the tables."""
    began = time.time()
    table("function", LENGTHS, [softmax_row(name, d) for name in ("softmax", "log_softmax", "logsumexp") for d in DTYPES])
    table("function", POSITIONS, [*map(tables_row, DTYPES), *map(rope_row, DTYPES)])
    table("function", KEYS, [*map(attention_row, DTYPES), *(attention_row(d, tuple(OPPOSED)) for d in DTYPES[:2])])
    print(f"\nnumpy {np.__version__}, {platform.machine()}, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
