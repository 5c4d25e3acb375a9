"""The CPU backend: NumPy arrays, kernels that are NumPy ufuncs."""

from .norms import layer_norm, rms_norm, small_plan, unit_norm  # noqa: F401 - small_plan is a shortcut of this backend alone

__all__ = ["layer_norm", "rms_norm", "unit_norm"]
DTYPES = ("float16", "bfloat16", "float32", "float64")
