"""Softmax, RoPE and attention in plain NumPy, wider than their input, one query at a time. Imports nothing but NumPy."""

import numpy as np


def wide(array):
    return array.astype(np.longdouble if array.itemsize >= 8 else np.float64)


@np.errstate(all="ignore")
def softmax(x, axis=-1, scale=1.0):
    """Zeros for a row of minus infinities."""
    x = np.moveaxis(wide(x) * scale, axis, -1)
    largest = x.max(-1, keepdims=True)
    weights = np.ascontiguousarray(np.exp(x - np.where(np.isneginf(largest), 0, largest)))  # rows NumPy adds up pairwise
    total = weights.sum(-1, keepdims=True)
    return np.moveaxis(np.where(total == 0, 0, weights / total), -1, axis)


@np.errstate(all="ignore")
def logsumexp(x, axis=-1):
    x = wide(x)
    largest = x.max(axis, keepdims=True)
    against = np.where(np.isfinite(largest), largest, 0)
    return np.squeeze(np.log(np.exp(x - against).sum(axis, keepdims=True)) + against, axis)


def rope(x, cos, sin, interleaved=False):
    x, cos, sin = map(wide, (x, cos, sin))
    n = cos.shape[-1]
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


@np.errstate(all="ignore")
def attention(
    q, k, v, mask=None, is_causal=False, q_start=None, window=None, kv_lengths=None, scale=None, softcap=None,
    alibi_slopes=None, sinks=None, qk_norm=None, eps=None,
):  # fmt: skip
    """The result, its logarithms, and for each query how large scores and values are, which decides what error is allowed."""
    kind = np.longdouble if q.dtype == np.float64 else np.float64
    q, k, v = (a.astype(kind) for a in (q, k, v))
    if qk_norm:
        q, k = (_normalised(a, qk_norm, eps) for a in (q, k))
    batch = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    n_heads, n_queries, head_size = q.shape[-3:]
    n_keys, group = k.shape[-2], n_heads // k.shape[-3]
    q, k, v = (np.broadcast_to(a, batch + a.shape[-3:]) for a in (q, k, v))
    scale = scale if scale is not None else head_size ** (0.5 if qk_norm == "unit" else -0.5)
    mask = None if mask is None else np.broadcast_to(mask, (*batch, n_heads, n_queries, n_keys))
    lengths = np.broadcast_to(n_keys if kv_lengths is None else kv_lengths, batch)
    starts = np.broadcast_to(lengths - n_queries if q_start is None else q_start, batch)
    out = np.zeros((*batch, n_heads, n_queries, v.shape[-1]), kind)
    lse, size = np.full(out.shape[:-1], -np.inf, kind), np.zeros((2, *out.shape[:-1]))
    j = np.arange(n_keys)
    for index in np.ndindex(*out.shape[:-1]):
        *b, h, i = index
        b = tuple(b)
        position = starts[b] + i
        allowed = j < lengths[b]
        if is_causal:
            allowed &= j <= position
        if window is not None:
            left, right = window
            allowed &= ((j >= position - left) | (left < 0)) & ((j <= position + right) | (right < 0))
        own = None if mask is None else mask[index]
        if own is not None:
            allowed &= own if own.dtype == bool else own.astype(kind) != -np.inf
        keys, values = k[b][h // group][allowed], v[b][h // group][allowed]
        scores = keys @ q[index] * kind(scale)
        size[0][index] = np.abs(scores).max(initial=0)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores - kind(alibi_slopes[h]) * np.abs(position - j[allowed])
        if own is not None and own.dtype != bool:
            scores = scores + own.astype(kind)[allowed]
        every = scores if sinks is None else np.append(scores, kind(sinks[h]))
        near = every[every > every.max(initial=-np.inf) - 110]
        size[0][index] = max(size[0][index], np.abs(near[np.abs(near) < 1e30]).max(initial=0))
        size[1][index] = np.abs(values).max(initial=0)
        if len(every):
            lse[index] = logsumexp(every)
            out[index] = np.exp(scores - lse[index]) @ values if len(scores) else 0
    return out, lse, size


def _normalised(x, kind, eps):
    if kind == "rms":
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + (1e-6 if eps is None else eps))
    return x / np.maximum(np.sqrt(np.sum(x * x, -1, keepdims=True)), eps or 1e-300)
