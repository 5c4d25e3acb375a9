"""CuPy arrays as rows that kernels can go through."""

import math

import cupy


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
