"""CuPy arrays as rows that kernels can go through."""

import math
from typing import NamedTuple

import cupy

FEWEST_COLUMNS = 8  # side by side: 32 bytes of float32, the least that a GPU reads at once


def over_rows(run, inputs, outputs, axes=1):
    """Call ``run(sources, targets)`` with arrays of rows, which are the last axes of arrays of one shape.

    What is not rows is copied first (`cupy.ascontiguousarray`); such a result is copied back.
    """
    sources = [a if row_stride(a, axes) is not None else cupy.ascontiguousarray(a) for a in inputs]
    copies = [copy for copy, array in zip(sources, inputs, strict=True) if copy is not array]  # to be overwritten
    targets = [a if row_stride(a, axes) is not None else _room(a, copies) for a in outputs]
    run(sources, targets)
    for out, target in zip(outputs, targets, strict=True):
        if target is not out:
            cupy.copyto(out, target)


def _room(out, copies):
    """A contiguous array to write to in place of `out`."""
    return copies.pop() if copies else cupy.empty(out.shape, out.dtype)


def row_stride(array, axes=1):
    """Bytes from each row to the next, in the order of a C array; None if rows are not contiguous or not evenly spaced.

    A row is what the last `axes` take together.
    """
    shape, strides, size = array.shape, array.strides, array.itemsize
    if array.flags.c_contiguous:
        return math.prod(shape[-axes:]) * size
    for length, step in zip(shape[: -axes - 1 : -1], strides[: -axes - 1 : -1], strict=True):
        if length > 1 and step != size:
            return None
        size *= length
    stride, count = None, 1
    for length, step in zip(shape[-axes - 1 :: -1], strides[-axes - 1 :: -1], strict=True):
        if length == 1:
            continue
        if stride is None:
            stride = step
        elif step != count * stride:
            return None
        count *= length
    return size if stride is None else stride


class Columns(NamedTuple):
    """Rows side by side, in bytes: from an element to the next, and from a set of columns to the next."""

    inner: int  # columns side by side, one element apart
    step: int
    outer: int


def columns(array):
    """How rows lie that are columns of memory; None if they are not, or too few to be read together."""
    *shape, _ = array.shape
    *strides, step = array.strides
    inner = 1
    while shape and (shape[-1] == 1 or strides[-1] == inner * array.itemsize):
        inner *= shape.pop()
        strides.pop()
    outer, count = 0, 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length == 1:
            continue
        if count == 1:
            outer = stride
        elif stride != count * outer:
            return None
        count *= length
    return Columns(inner, step, outer) if inner >= FEWEST_COLUMNS else None
