"""Attention on a device against the oracle: what tests of all its kernels need."""

import numpy as np

import fastnorm
from fastnorm._bench import attention_oracles as oracles

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23, "float64": 2.0**-52}


def arrays(rng, heads=(4, 2), n=5, keys=70, sizes=(33, 33), batch=1, dtype="float32", cached=None):
    q = rng.standard_normal((batch, heads[0], n, sizes[0])).astype(dtype)
    return q, *(rng.standard_normal((batch, heads[1], keys, size)).astype(cached or dtype) for size in sizes)


def checked(device, q, k, v, **options):
    """Attention on the device, held against the oracle as on the CPU."""
    device_options = {n: device.array(o) if n in ("mask", "sinks", "alibi_slopes") else o for n, o in options.items()}
    out, lse = fastnorm.attention(*map(device.array, (q, k, v)), return_lse=True, **device_options)
    out, lse = device.host(out), device.host(lse)
    wanted, wanted_lse, (score, value) = oracles.attention(q, k, v, **options)
    unit = UNIT["float64" if q.dtype == np.float64 else "float32"]
    allowed = ((16 + 8 * score) * unit * value)[..., None]
    if q.itemsize == 2:  # the result is rounded, and on tensor cores so is each weight
        narrow = UNIT[q.dtype.name]
        allowed = allowed + 2 * narrow * np.abs(wanted) + narrow * oracles.attention(q, k, np.abs(v), **options)[0] + 2.0**-25
    assert out.dtype == q.dtype
    assert (np.abs(out.astype(wanted.dtype) - wanted) <= allowed).all()
    np.testing.assert_allclose(lse, wanted_lse.astype(lse.dtype), rtol=1e-5, atol=2e-5)
    return out, lse


EACH_OPTION = {
    "none": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": (8, 0)},
    "scale and cap": {"scale": 0.3, "softcap": 2.0},
    "scale 0": {"scale": 0.0},
    "RMS": {"qk_norm": "rms"},
    "unit": {"qk_norm": "unit", "eps": 1e-3},
    "start": {"q_start": 3, "is_causal": True},
    "nothing to see": {"q_start": -9, "is_causal": True},
}
