"""The public functions for arrays of Dask: a graph of calls on their chunks. `_dispatch` finds them.

Each checks what can be checked of shapes and dtypes, and returns arrays that are not computed yet. Where a chunk holds all that
a result depends on, the task is the public function itself; elsewhere a chunk gives its statistics, these are joined in a tree,
and applied.
"""

from .attention import attention
from .groups import group_norm
from .merge import merge_attention
from .norms import layer_norm, rms_norm, unit_norm
from .rotary import rope, rope_tables
from .softmax import log_softmax, logsumexp, softmax
from .sums import add_layer_norm, add_rms_norm

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
    "rope_tables",
    "softmax",
    "unit_norm",
]
