"""Rotary position embedding."""

import numpy as np

from ..rotary import rope
from ._operator import Operator


class RotaryEmbedding(Operator):
    """`fastnorm.rope`, with heads as an axis of their own or within that of the features."""

    def _run(self, x, cos, sin, position_ids=None, interleaved=0, num_heads=None, rotary_embedding_dim=0):
        if x.ndim == 4:
            heads, axis = x, 1
        elif x.ndim == 3 and num_heads and not x.shape[2] % num_heads:
            heads, axis = x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads), 2
        else:
            raise ValueError(
                "RotaryEmbedding: X must have 4 axes, or 3 of which the last is a multiple of num_heads, "
                f"got shape {x.shape} and num_heads {num_heads}"
            )
        if position_ids is not None:
            cos, sin = (self._chosen(name, cache, position_ids) for name, cache in (("cos_cache", cos), ("sin_cache", sin)))
        turned = rotary_embedding_dim or heads.shape[-1]
        if cos.ndim != 3 or 2 * cos.shape[-1] != turned:
            raise ValueError(
                f"RotaryEmbedding: cos_cache must be, once positions are chosen, of shape (batch_size, sequence_length, "
                f"{turned // 2}), to turn {turned} features, got {cos.shape}"
            )
        y = rope(heads, np.expand_dims(cos, axis), np.expand_dims(sin, axis), interleaved=bool(interleaved))
        return (y.reshape(x.shape),)

    @staticmethod
    def _chosen(name, cache, position_ids):
        if position_ids.size and not 0 <= position_ids.min() <= position_ids.max() < len(cache):
            raise ValueError(
                f"RotaryEmbedding: position_ids must be within the {len(cache)} positions of {name}, "
                f"got {position_ids.min()} to {position_ids.max()}"
            )
        return cache[position_ids]
