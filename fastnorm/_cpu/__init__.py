"""The CPU backend: NumPy arrays, kernels that are NumPy ufuncs."""

from .add_norm import add_layer_norm, add_rms_norm
from .attention import attention, small_attention  # noqa: F401 - a shortcut of this backend alone, as those below
from .group_norm import group_norm
from .merge import merge_attention
from .norms import layer_norm, rms_norm, small_plan, unit_norm  # noqa: F401
from .rotary import rope, small_rope  # noqa: F401
from .softmax import log_softmax, logsumexp, small_softmax, softmax  # noqa: F401

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
