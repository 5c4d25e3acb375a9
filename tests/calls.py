"""The six norms behind one signature, for tests that go through all of them."""

import numpy as np
from compare import BIASED, NORMS

import fastnorm

__all__ = ["BIASED", "NORMS", "call", "inputs", "parameters"]


def inputs(norm, rng, shape, dtype=np.float32):
    """The arrays that a norm reads: x, or x and residual."""
    return [rng.standard_normal(shape).astype(dtype) for _ in range(1 + norm.startswith("add_"))]


def parameters(norm, n, dtype=np.float32):
    """The same weight of length n in each call, and a bias where there is one."""
    rng = np.random.default_rng(n)
    return [rng.standard_normal(n).astype(dtype) for _ in range(1 + (norm in BIASED))]


def groups_of(channels):
    """A number of groups that divides that of channels, more than one if it can."""
    return next(groups for groups in (4, 3, 2, 1) if channels % groups == 0)


def call(norm, arrays, axis=-1, outs=(), weights=None, **kwargs):
    """The results of a norm: y, or y and h. `outs` likewise; `weights` are those of `parameters` if not given."""
    n = arrays[0].shape[axis]
    count = [groups_of(n)] if norm == "group_norm" else []
    kwargs |= dict(zip(("out", "residual_out"), outs, strict=False))
    weights = parameters(norm, n) if weights is None else weights
    results = getattr(fastnorm, norm)(*arrays, *count, *weights, axis=axis, **kwargs)
    return list(results) if isinstance(results, tuple) else [results]
