"""Attention."""

import math

import numpy as np
from onnx import TensorProto

from .._checks import computed
from ..attention import attention
from ..softmax import softmax
from ._operator import NOT_WANTED, Operator, rounded

_PRECISIONS = (None, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_RAW, _CAPPED, _MASKED, _PROBABILITIES = range(4)  # what `qk_matmul_output` is


class Attention(Operator):
    """`fastnorm.attention`. What it never stores, the output `qk_matmul_output`, comes from NumPy where it is asked for."""

    def _run(
        self,
        q,
        k,
        v,
        attn_mask=None,
        past_key=None,
        past_value=None,
        nonpad_kv_seqlen=None,
        is_causal=0,
        kv_num_heads=None,
        left_window_size=-1,
        q_num_heads=None,
        qk_matmul_output_mode=_RAW,
        right_window_size=-1,
        scale=None,
        softcap=0.0,
        softmax_precision=None,
    ):
        if softmax_precision not in _PRECISIONS:
            raise ValueError(f"Attention: softmax_precision must be one of {_PRECISIONS[1:]}, got {softmax_precision}")
        flat = q.ndim == 3
        if flat:
            q, k, v = _heads("Q", q, q_num_heads), _heads("K", k, kv_num_heads), _heads("V", v, kv_num_heads)
        if not q.ndim == k.ndim == v.ndim == 4:
            raise ValueError(f"Attention: Q, K and V must all have 3 or 4 axes, got {q.shape}, {k.shape} and {v.shape}")
        k, v = _with_past(k, v, past_key, past_value, nonpad_kv_seqlen)
        keys, values = k, v
        if k.dtype != v.dtype:
            wide = np.result_type(computed(k.dtype), computed(v.dtype))
            keys, values = k.astype(wide), v.astype(wide)
        queries = q.astype(np.float64) if softmax_precision == TensorProto.DOUBLE else q
        options = {
            "mask": _mask(attn_mask, k.shape[2], self.opset),
            "is_causal": bool(is_causal),
            "q_start": nonpad_kv_seqlen - q.shape[2] if nonpad_kv_seqlen is not None else _length(past_key),
            "kv_lengths": nonpad_kv_seqlen,
            "window": (left_window_size, right_window_size),
            "scale": 1 / math.sqrt(q.shape[3]) if scale is None else float(scale),
            "softcap": float(softcap) if softcap > 0 else None,
        }
        y = rounded(attention(queries, keys, values, **options), q.dtype)
        if flat:
            y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], y.shape[1] * y.shape[3])
        scores = NOT_WANTED
        if self.wants(3):
            scores = rounded(_scores(queries, keys, qk_matmul_output_mode, **options), q.dtype)
        return y, k, v, scores


def _heads(name, x, num_heads):
    """Heads as an axis of their own: a view."""
    if x.ndim != 3 or not num_heads or x.shape[2] % num_heads:
        which = "q_num_heads" if name == "Q" else "kv_num_heads"
        raise ValueError(
            f"Attention: {name} must have 3 axes as Q has, the last a multiple of {which}, "
            f"got shape {x.shape} and {which} {num_heads}"
        )
    return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(0, 2, 1, 3)


def _with_past(k, v, past_key, past_value, nonpad_kv_seqlen):
    if past_key is None and past_value is None:
        return k, v
    if past_key is None or past_value is None:
        raise ValueError("Attention: past_key and past_value must be given together, got one of them")
    if nonpad_kv_seqlen is not None:
        raise ValueError("Attention: nonpad_kv_seqlen must not be given together with past_key and past_value")
    return np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)


def _length(past):
    return 0 if past is None else past.shape[2]


def _mask(mask, n_keys, opset):
    """A mask for fastnorm: one that is too short forbids the keys it lacks. Of length 1 it broadcasts before opset 24."""
    if mask is None:
        return None
    if mask.dtype.kind in "iu":  # added to the scores, not a choice of keys
        mask = mask.astype(np.float64)
    missing = n_keys - mask.shape[-1] if mask.ndim else 0
    if missing <= 0 or (mask.shape[-1] == 1 and opset < 24):
        return mask
    forbidden = np.full((*mask.shape[:-1], missing), False if mask.dtype == bool else -np.inf, mask.dtype)
    return np.concatenate((mask, forbidden), axis=-1)


@np.errstate(all="ignore")
def _scores(q, k, mode, *, mask, is_causal, q_start, kv_lengths, window, scale, softcap):
    """Queries times keys, up to the step of attention that `mode` names, in the dtype of the computation."""
    if mode not in (_RAW, _CAPPED, _MASKED, _PROBABILITIES):
        raise ValueError(f"Attention: qk_matmul_output_mode must be one of 0, 1, 2 and 3, got {mode}")
    batch, n_heads, n_queries, head_size = q.shape
    dtype, n_kv, n_keys = computed(q.dtype), k.shape[1], k.shape[2]
    grouped = batch, n_kv, n_heads // max(n_kv, 1) * n_queries, head_size
    scores = (q.astype(dtype) * dtype.type(scale)).reshape(grouped) @ k.astype(dtype).swapaxes(2, 3)
    scores = scores.reshape(batch, n_heads, n_queries, n_keys)
    if mode >= _CAPPED and softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mode >= _MASKED:
        allowed = _allowed(batch, n_queries, n_keys, is_causal, q_start, kv_lengths, window)
        if mask is not None:
            allowed = allowed & (mask if mask.dtype == bool else mask != -np.inf)
            scores = scores if mask.dtype == bool else scores + mask
        scores = np.where(allowed, scores, -np.inf)
    return softmax(scores) if mode == _PROBABILITIES else scores


def _allowed(batch, n_queries, n_keys, is_causal, q_start, kv_lengths, window):
    """Which keys positions and lengths allow, of shape (batch, 1, queries, keys)."""
    starts, lengths = (
        np.broadcast_to(each, batch).reshape(batch, 1, 1, 1) for each in (q_start, n_keys if kv_lengths is None else kv_lengths)
    )
    ahead = np.arange(n_keys) - (starts + np.arange(n_queries)[:, None])  # from the query to the key
    left, right = window
    allowed = np.arange(n_keys) < lengths
    for bound in ([0] if is_causal else []) + ([right] if right >= 0 else []):
        allowed = allowed & (ahead <= bound)
    return allowed & (ahead >= -left) if left >= 0 else np.broadcast_to(allowed, ahead.shape)
