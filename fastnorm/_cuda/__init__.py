"""The GPU backend: CuPy arrays, kernels that numba compiles to PTX and CuPy launches."""

from .norms import rms_norm, unit_norm

__all__ = ["rms_norm", "unit_norm"]
DTYPES = ("float32", "float64")
