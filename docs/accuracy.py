"""Measures how far results are from exact ones, and prints the table of the page on numerics.

In a clone of the repository: ``PYTHONPATH=. python docs/accuracy.py``. It takes up to ten minutes and 3 GB of memory; the seed
is fixed. Exact is what NumPy computes in float64, for float64 in longdouble, which must be wider (as on x86 Linux).
"""

import platform
import time
import warnings

import ml_dtypes
import numpy as np

import fastnorm
from fastnorm._bench import oracles

NORMS = ["rms_norm", "unit_norm", "layer_norm", "group_norm", "add_rms_norm", "add_layer_norm"]
BIASED = ["layer_norm", "group_norm", "add_layer_norm"]
DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]
HALF = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]

# Lengths by column of the table.
LENGTHS = {
    "1 to 8": range(1, 9),
    "9 to 64": [*range(9, 18), 24, 31, 32, 33, 48, 63, 64],
    "65 to 512": [65, 100, 127, 128, 129, 257, 384, 511, 512],
    "to 4099": [513, 768, 1000, 1025, 2048, 3000, 4099],
    "to $2^{17}$": [8192, 32_769, 2**17],
    "to $2^{20}$": [300_000, 2**20],
    "to $2^{24}$": [2**22 + 1, 2**24],
}

# Numbers that are hard in one way or another, in units that suit the dtype; `info` is its `finfo`.
DATA = {
    "normal": lambda rng, shape, info: rng.standard_normal(shape),
    "equal": lambda rng, shape, info: rng.uniform(1, 2, (shape[0], 1)) * np.ones(shape),
    "two values": lambda rng, shape, info: rng.choice([0.1, 0.3], shape),
    "far from 0": lambda rng, shape, info: 1 / (8 * float(info.eps)) + rng.standard_normal(shape),
    "neighbours": lambda rng, shape, info: 1 + rng.integers(0, 2, shape) * float(info.eps),
    "signs": lambda rng, shape, info: rng.choice([-1, 1], shape) * rng.uniform(1, 2, (shape[0], 1)),
    "ramp": lambda rng, shape, info: np.arange(shape[-1]) / 64 * np.ones(shape),
    "step": lambda rng, shape, info: (np.arange(shape[-1]) >= 64) * 100 + rng.standard_normal(shape),
    "one large": lambda rng, shape, info: np.where(np.arange(shape[-1]) == shape[-1] // 2, 1e4, rng.standard_normal(shape)),
    "falling": lambda rng, shape, info: 1 / (1 + np.arange(shape[-1])) * np.ones(shape),
    "wide": lambda rng, shape, info: rng.standard_normal(shape) * float(info.max) ** rng.uniform(-0.8, 0.8, shape),
    "huge": lambda rng, shape, info: rng.uniform(-1, 1, shape) * float(info.max),
    "tiny": lambda rng, shape, info: rng.uniform(-3, 3, shape) * float(info.smallest_normal),
    "subnormal": lambda rng, shape, info: rng.integers(-4, 7, shape) * float(info.smallest_subnormal),
}
LONG = ["normal", "two values", "far from 0"]  # those for rows of more than 2**17; of 16 bits, the first


def finfo(dtype):
    return ml_dtypes.finfo(dtype) if dtype.itemsize == 2 else np.finfo(dtype)


def error(norm, x, residual, weights, eps):
    """The largest error, in units in the last place of a row's largest ``|x_hat * weight| + |bias|`` in the result's dtype."""
    bias = weights[1] if len(weights) > 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if norm == "group_norm":  # each row a group of up to four channels, with a weight each
            rows, n = x.shape
            y = fastnorm.group_norm(as_groups(x), rows, *weights, eps=eps).reshape(x.shape)
            wanted = oracles.group_norm(as_groups(x), rows, *weights, eps=eps).reshape(x.shape)
            bias = None if bias is None else np.repeat(bias, x.size // len(bias)).reshape(rows, n)
        elif residual is not None:
            y, h = getattr(fastnorm, norm)(x, residual, *weights, eps=eps)
            wanted, wanted_h = getattr(oracles, norm)(x, residual, *weights, eps=eps)
            assert h.dtype == residual.dtype
            assert (h == wanted_h).all(), "the sum is rounded once"
        else:
            y, wanted = getattr(fastnorm, norm)(x, *weights, eps=eps), getattr(oracles, norm)(x, *weights, eps=eps)
    size = np.abs(wanted) if bias is None else np.abs(wanted - bias) + np.abs(bias)
    unit = np.spacing(size.max(-1, keepdims=True).astype(y.dtype)).astype(wanted.dtype)
    return float((np.abs(y.astype(wanted.dtype) - wanted) / unit).max())


def as_groups(x):
    channels = next(c for c in (4, 3, 2, 1) if x.shape[1] % c == 0)
    return x.reshape(1, len(x) * channels, x.shape[1] // channels)


def cases(norm, dtype, n, rng):
    """(name, x, residual, weights, eps) for a norm, a dtype and a length."""
    rows = 40 if n <= 512 else 10 if n <= 4099 else 2 if n <= 2**17 else 1
    for data in DATA if n <= 2**17 else LONG[:1] if dtype.itemsize == 2 else LONG:
        arrays = [DATA[data](rng, (rows, n), finfo(dtype)) for _ in range(1 + norm.startswith("add_"))]
        with np.errstate(all="ignore"):
            x, residual = [*[(a / len(arrays)).astype(dtype) for a in arrays], None][:2]
        n_weights = as_groups(x).shape[1] if norm == "group_norm" else n
        computed = np.float64 if dtype == np.float64 else np.float32
        weights = [rng.standard_normal(n_weights).astype(computed) for _ in range(1 + (norm in BIASED))]
        yield data, x, residual, weights, 0.0
        if n <= 2**17:
            yield data, x, residual, [], 0.0
            yield data, x, residual, weights, 1e-5


def worst_of(norms, dtype, lengths):
    """The largest error, the length and the data where it occurs."""
    rng, found = np.random.default_rng(20261130), []
    for norm in norms:
        for n in lengths:
            found += [(error(norm, *case), n, data) for data, *case in cases(norm, dtype, n, rng)]
    assert all(np.isfinite(ulps) for ulps, _, _ in found)
    return max(found)


def search(norm, dtype, calls=2000):
    """The worst rows found among those in which one element outweighs all others, and has a weight of any size or of 0."""
    rng, worst = np.random.default_rng(20261130), 0.0
    computed = np.float64 if dtype == np.float64 else np.float32
    for call in range(calls):
        n = int(rng.choice([9, 12, 16, 24, 33, 64, 100, 257, 384, 512]))
        x, place = rng.standard_normal((100, n)), rng.integers(n)
        x[:, place] = 10 ** rng.uniform(0, 4, 100)
        weight = rng.standard_normal(n).astype(computed)
        weight[place] *= 10 ** rng.uniform(-6, 0) if call % 4 else 0
        worst = max(worst, error(norm, x.astype(dtype), None, [weight], 0.0))
    return worst


def main():
    """Measure, and print the table."""
    began = time.time()
    print(f"| norm | dtype | {' | '.join(LENGTHS)} | worst |")
    print(f"|---|---|{'---|' * len(LENGTHS)}---|")
    for norms, dtype in [*[([norm], dtype) for norm in NORMS for dtype in DTYPES], *[(NORMS, dtype) for dtype in HALF]]:
        worst = [worst_of(norms, dtype, lengths) for lengths in LENGTHS.values()]
        _, n, data = max(worst)
        name = f"`{norms[0]}`" if len(norms) == 1 else "all"
        entries = " | ".join(f"{ulps:.{2 if dtype in DTYPES else 3}f}" for ulps, _, _ in worst)
        print(f"| {name} | {dtype.name} | {entries} | {data}, {n} |", flush=True)
    found = [f"{norm} {dtype.name} {search(norm, dtype):.2f}" for norm in ("rms_norm", "layer_norm") for dtype in DTYPES]
    print(f"\none element that outweighs all others: {', '.join(found)}")
    print(f"\nnumpy {np.__version__}, {platform.machine()}, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
