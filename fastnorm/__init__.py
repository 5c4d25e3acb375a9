"""Transformer normalisation for NumPy and CuPy arrays, without PyTorch."""

from ._config import show_config
from ._cpu.threads import get_num_threads, set_num_threads
from .norms import rms_norm

__version__ = "0.1.0.dev0"
__all__ = ["get_num_threads", "rms_norm", "set_num_threads", "show_config"]
