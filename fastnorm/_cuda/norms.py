"""Schedules: how a norm of prepared CuPy arrays becomes a launch. Free of numba, as is a process whose kernels are on disk."""

import functools

import cupy
import numpy as np

from .._vocabulary import RANGES
from . import launch

ALIGNMENT = 16  # bytes of a 128-bit load


def _normalise(norm, x, weight, eps, out):
    """Normalise the rows of `x`. What is not rows is copied first (`cupy.ascontiguousarray`); such a result is copied back."""
    if x.size == 0:
        return
    target = out
    if row_stride(x) is None:
        x = cupy.ascontiguousarray(x)
    if row_stride(out) is None:
        target = cupy.empty(out.shape, out.dtype)
    if weight is not None and row_stride(weight) is None:
        weight = cupy.ascontiguousarray(weight)
    _launch(norm, x, weight, eps, target)
    if target is not out:
        cupy.copyto(out, target)


def _launch(norm, x, weight, eps, out):
    """A block a row; more rows than a grid can have take several launches."""
    n, rows = x.shape[-1], x.size // x.shape[-1]
    x_at, x_stride, out_at, out_stride = x.data.ptr, row_stride(x), out.data.ptr, row_stride(out)
    weight_at = 0 if weight is None else weight.data.ptr
    threads = launch.block_size(n, x.itemsize)
    aligned = not (x_at | x_stride | out_at | out_stride | weight_at | n * x.itemsize) % ALIGNMENT
    whole = n * x.itemsize <= threads * launch.HELD
    run = launch.kernel("fastnorm._cuda.rows:rows", norm, x.dtype.name, aligned, whole)
    weighted = int(weight is not None)
    for first in range(0, rows, launch.MOST_BLOCKS):
        blocks = min(rows - first, launch.MOST_BLOCKS)
        at, to = x_at + first * x_stride, out_at + first * out_stride
        run((blocks,), (threads,), (at, x_stride, weight_at, weighted, *_eps(eps, x.dtype), to, out_stride, n))


def row_stride(array):
    """Bytes from each row to the next, in the order of a C array; None if the rows are not contiguous or not evenly spaced."""
    if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        return None
    stride, count = None, 1
    for length, step in zip(array.shape[-2::-1], array.strides[-2::-1], strict=True):
        if length == 1:
            continue
        if stride is None:
            stride = step
        elif step != count * stride:
            return None
        count *= length
    return array.shape[-1] * array.itemsize if stride is None else stride


@functools.lru_cache(maxsize=256)
def _eps(eps, dtype):
    """`eps` as it is, and as a lifted row sees it: lifted before underflow can take it."""
    exponent = 2 * int(np.log2(RANGES[dtype.name].lift))
    with np.errstate(all="ignore"):
        return dtype.type(eps), dtype.type(np.ldexp(np.float64(eps), exponent))


# x / sqrt(mean(x**2) + eps) * weight
rms_norm = functools.partial(_normalise, "rms_norm")
