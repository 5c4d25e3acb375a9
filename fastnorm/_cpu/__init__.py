"""The CPU backend: NumPy arrays, kernels that are NumPy ufuncs."""

from .norms import rms_norm, small_plan

__all__ = ["rms_norm", "small_plan"]
