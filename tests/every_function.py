"""All public functions of arrays behind one signature, for sweeps over all of them; as a program, digests of results."""

import hashlib
import sys

import ml_dtypes
import numpy as np

import fastnorm
from fastnorm._cpu.tile import tile_bytes

FUNCTIONS = [
    "rms_norm", "layer_norm", "unit_norm", "group_norm", "add_rms_norm", "add_layer_norm",
    "softmax", "log_softmax", "logsumexp", "rope_tables", "rope", "attention", "merge_attention",
]  # fmt: skip
WITHOUT_OUT = ["logsumexp", "rope_tables", "merge_attention"]
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def inputs(name, rng, batch, n, dtype=np.float32):
    """The arrays that a function reads, whose first axis is a batch of parts that know nothing of each other."""
    normal = lambda *shape: rng.standard_normal((batch, *shape)).astype(dtype)  # noqa: E731
    n_even = n + n % 2
    return {
        "group_norm": lambda: [normal(6, n)],
        "add_rms_norm": lambda: [normal(n), normal(n)],
        "add_layer_norm": lambda: [normal(n), normal(n)],
        "rope_tables": lambda: [rng.integers(0, 10**6, (batch, n))],
        "rope": lambda: [normal(3, n_even), normal(1, n_even // 2), normal(1, n_even // 2)],
        "attention": lambda: [normal(4, 5, 16), normal(2, n, 16), normal(2, n, 16)],
        "merge_attention": lambda: [normal(n, 8), normal(n, 8), normal(n).astype(np.float32), normal(n).astype(np.float32)],
    }.get(name, lambda: [normal(n)])()


def results(name, arrays, outs=(), **options):
    """The results of a function, as a list; `outs` is where they go."""
    function, given = getattr(fastnorm, name), arrays
    if name.endswith("_norm"):
        n = arrays[0].shape[1]
        rng = np.random.default_rng(n)
        given = [*arrays, *([2] if name == "group_norm" else []), rng.standard_normal(n).astype(np.float32)]
        if name in ("layer_norm", "group_norm", "add_layer_norm"):
            given.append(rng.standard_normal(n).astype(np.float32))
    elif name == "merge_attention":
        given = [arrays[:2], arrays[2:]]
    elif name == "rope_tables":
        given = [*arrays, 10]
    options |= dict(zip(("out", "residual_out"), outs, strict=False))
    found = function(*given, return_lse=True, **options) if name == "attention" else function(*given, **options)
    return list(found) if isinstance(found, tuple) else [found]


def more_options(name, arrays):
    """Calls with options that lead to other code: (options, arrays)."""
    if name in ("softmax", "log_softmax"):
        return [{"scale": 0.37}]
    if name == "rope":
        return [{"interleaved": True}]
    if name == "attention":
        slopes, mask = np.float32([0.5, 0.25, 1, 2]), np.random.default_rng(1).standard_normal((5, arrays[1].shape[-2]))
        return [
            {"is_causal": True, "alibi_slopes": slopes},
            {"softcap": 2.0, "mask": mask.astype(np.float32)},
            {"qk_norm": "rms"},
        ]
    return []


def main():
    """The width of attention's tiles; for each function and dtype, a digest of its results for many lengths and sizes."""
    print(tile_bytes(), "bytes")
    for name in FUNCTIONS:
        for dtype in sys.argv[1:] or DTYPES:
            digest, rng = hashlib.sha256(), np.random.default_rng(20261130)
            for batch, n in [(3, 1), (2, 7), (40, 65), (5, 1100), (2, 20_000)]:
                arrays = inputs(name, rng, batch, n, DTYPES[dtype])
                some = [arrays, [np.asfortranarray(a) for a in arrays]]
                if name.endswith("norm") and dtype not in ("float16", "bfloat16"):  # rows whose squares leave the range
                    some.append([a * a.dtype.type(1e-30 if dtype == "float32" else 1e-200) for a in arrays])
                for these in some:
                    for options in [{}, *more_options(name, these)]:
                        for y in results(name, these, **options):
                            digest.update(np.ascontiguousarray(y).tobytes())
            print(name, dtype, digest.hexdigest())


if __name__ == "__main__":
    main()
