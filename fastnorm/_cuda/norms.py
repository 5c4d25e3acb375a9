"""Schedules: how a norm of prepared CuPy arrays becomes a launch. Free of numba, as is a process whose kernels are on disk."""

import functools

import cupy
import numpy as np

from .._math import NORMS
from .._vocabulary import RANGES
from . import launch

ALIGNMENT = 16  # bytes of a 128-bit load


def _normalise(norm, x, weight, eps, out):
    """Normalise the rows of `x`. What is not rows is copied first (`cupy.ascontiguousarray`); such a result is copied back."""
    if x.size == 0:
        return
    source, source_stride = x, row_stride(x)
    target, target_stride = out, row_stride(out)
    if source_stride is None:
        source = cupy.ascontiguousarray(x)
        source_stride = row_stride(source)
    if target_stride is None:
        target = source if source is not x else cupy.empty(out.shape, out.dtype)
        target_stride = row_stride(target)
    if weight is not None and not weight.flags.c_contiguous:
        weight = cupy.ascontiguousarray(weight)
    _launch(norm, source, source_stride, weight, eps, target, target_stride)
    if target is not out:
        cupy.copyto(out, target)


def _launch(norm, x, x_stride, weight, eps, out, out_stride):
    """A block a row; more rows than a grid can have take several launches."""
    n, itemsize = x.shape[-1], x.itemsize
    dtype, eps, lifted_eps = _constants(norm, eps, x.dtype)
    x_at, out_at, weight_at = x.data.ptr, out.data.ptr, 0 if weight is None else weight.data.ptr
    threads = launch.block_size(n, itemsize)
    aligned = not (x_at | x_stride | out_at | out_stride | weight_at | n * itemsize) % ALIGNMENT
    whole = n * itemsize <= threads * launch.HELD
    run = launch.kernel("fastnorm._cuda.rows:rows", norm, dtype, aligned, whole)
    weighted = int(weight is not None)
    rows = x.size // n
    for first in range(0, rows, launch.MOST_BLOCKS):
        blocks = min(rows - first, launch.MOST_BLOCKS)
        at, to = x_at + first * x_stride, out_at + first * out_stride
        run((blocks,), (threads,), (at, x_stride, weight_at, weighted, eps, lifted_eps, to, out_stride, n))


def row_stride(array):
    """Bytes from each row to the next, in the order of a C array; None if the rows are not contiguous or not evenly spaced."""
    shape, strides, itemsize = array.shape, array.strides, array.itemsize
    if array.flags.c_contiguous:
        return shape[-1] * itemsize
    if shape[-1] > 1 and strides[-1] != itemsize:
        return None
    stride, count = None, 1
    for length, step in zip(shape[-2::-1], strides[-2::-1], strict=True):
        if length == 1:
            continue
        if stride is None:
            stride = step
        elif step != count * stride:
            return None
        count *= length
    return shape[-1] * itemsize if stride is None else stride


@functools.lru_cache(maxsize=256)
def _constants(norm, eps, dtype):
    """The dtype's name; `eps` as it is, and as a lifted row sees it: lifted before underflow can take it."""
    with np.errstate(all="ignore"):
        return dtype.name, dtype.type(eps), dtype.type(NORMS[norm].lift_eps(np.float64(eps), RANGES[dtype.name]))


rms_norm = functools.partial(_normalise, "rms_norm")
unit_norm = functools.partial(_normalise, "unit_norm")
