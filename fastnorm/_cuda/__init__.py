"""The GPU backend: CuPy arrays, kernels that numba compiles to PTX and CuPy launches."""

from .attention import attention, merge_attention
from .norms import add_layer_norm, add_rms_norm, group_norm, layer_norm, rms_norm, unit_norm
from .rotary import rope
from .softmax import log_softmax, logsumexp, softmax

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "group_norm",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "merge_attention",
    "rms_norm",
    "rope",
    "softmax",
    "unit_norm",
]
DTYPES = ("float16", "bfloat16", "float32", "float64")
