"""Transformer normalisation and attention for NumPy and CuPy arrays, without PyTorch."""

from . import _interpreter as _interpreter  # isort: skip - first, as nothing else imports where this refuses
from ._config import show_config
from ._cpu.threads import get_num_threads, set_num_threads
from .attention import attention, merge_attention
from .consistency import attention_scale, init_std
from .norms import group_norm, layer_norm, rms_norm, unit_norm
from .residual import add_layer_norm, add_rms_norm
from .rotary import rope, rope_tables
from .softmax import log_softmax, logsumexp, softmax
from .warming import warm_up

__version__ = "0.1.0.dev0"
__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "attention_scale",
    "get_num_threads",
    "group_norm",
    "init_std",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "merge_attention",
    "rms_norm",
    "rope",
    "rope_tables",
    "set_num_threads",
    "show_config",
    "softmax",
    "unit_norm",
    "warm_up",
]
