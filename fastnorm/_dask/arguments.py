"""Is the call legal? As `fastnorm._arguments` for the norms, of shapes, dtypes and kinds of chunk alone."""

import math
import sys

import dask.array as da
import numpy as np

from .._checks import NO_OFFSET, as_array, finite_of, library_for, named, parameters_of
from .._dispatch import describe, is_lazy
from .._vocabulary import STORED
from .graph import cut_as, per_chunk


def checked(function, x, others, outs, first="x"):
    """The library of the chunks of `x`, numpy or cupy, which must be that of all others; and that x can be worked with."""
    for name, out in outs.items():
        if out is not None:
            raise TypeError(f"{function}: {name} must be None where {first} is a Dask array, whose result is a new one")
    metas = {name: value._meta if is_lazy(value) else value for name, value in others.items()}
    library = library_for(x._meta, function, metas, first)
    for name, value in {first: x, **others}.items():
        if is_lazy(value) and any(map(math.isnan, value.shape)):
            raise ValueError(
                f"{function}: {name} must have chunks of known sizes, got {value.chunks}: compute_chunk_sizes() finds them"
            )
    arrays = sys.modules[library]
    as_array(function, first, x._meta, arrays, tuple(STORED))
    return arrays


def lazy_too(function, name, value, first="x"):
    """Refuse an array that must be one of Dask, as x is, and is not."""
    if not is_lazy(value):
        raise TypeError(f"{function}: {name} must be a Dask array as {first} is, got {describe(value)}")


def lazy_parameters(function, parameters, axis, axes, x, dtype, weight_offset, arrays):
    """Weight and bias as Dask arrays with the chunks of `x` along `axes`, in the dtype of the computation; None stays."""
    chunks = tuple(x.chunks[a] for a in axes)
    shape = tuple(x.shape[a] for a in axes)
    offset = finite_of(function, "weight_offset", weight_offset)
    for name, parameter in named(parameters).items():
        if is_lazy(parameter):
            as_array(function, name, parameter._meta, arrays, STORED)
    stand_ins = [stand_in(p, arrays, dtype) for p in parameters]  # of a dtype that nothing is converted from
    added = NO_OFFSET if is_lazy(parameters[0]) else offset
    given, _ = parameters_of(function, stand_ins, axis, axes, x, dtype, added, arrays)
    for i, parameter in enumerate(parameters):
        if is_lazy(parameter):
            options = {"dtype": dtype, "kind": dtype, "offset": 0 if i else offset}
            given[i] = per_chunk(_converted, cut_as(parameter, chunks), token=f"{function}-parameter", **options)
        elif parameter is not None:
            given[i] = da.from_array(given[i].reshape(shape), chunks, asarray=False)
    return given


@np.errstate(all="ignore")
def _converted(parameter, kind, offset):
    """A chunk of a weight or bias in the dtype of the computation."""
    parameter = parameter.astype(kind)
    return parameter + kind.type(offset) if offset else parameter


def stand_in(value, arrays, dtype=None):
    """An array of the shape of a Dask array, in its dtype or another, of one element; anything else as it is."""
    return arrays.broadcast_to(arrays.empty((), dtype or value.dtype), value.shape) if is_lazy(value) else value


def is_cut(x, axes):
    """True if a chunk does not hold all of some axes."""
    return any(x.numblocks[a] > 1 for a in axes)


def whole_if_short(x, axes, length):
    """`x` in one chunk along `axes`, if these have at most so many elements together."""
    if math.prod(x.shape[a] for a in axes) > length:
        return x
    return cut_as(x, tuple((n,) if a in axes else sizes for a, (n, sizes) in enumerate(zip(x.shape, x.chunks, strict=True))))
