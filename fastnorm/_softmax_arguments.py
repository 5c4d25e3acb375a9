"""The arguments of softmax and its relatives, prepared; as `_arguments` for the norms."""

import functools
import sys

import numpy as np

from ._arguments import as_rows, landing, result_array
from ._checks import as_array, axes_of, library_for, native, number_of, result_dtype
from ._dispatch import function_of
from ._vocabulary import STORED


def softmax_arguments(name, x, axis, scale, out):
    """Arguments of `softmax` and `log_softmax`: the backend's function, x and target with the axis last, scale, and out."""
    x, axis, arrays, function = _prepared(name, x, axis, out)
    scale = number_of(name, "scale", scale)
    x, _, out = result_array(name, x, [], out, x, arrays)
    view = functools.partial(as_rows, axes=(axis,))
    target, out = landing(out, view, arrays)
    return function, view(x), scale, target, out


def logsumexp_arguments(name, x, axis, keepdims):
    """Arguments of `logsumexp`: the backend's function, x with the axis last, the target without it, and that axis."""
    if not isinstance(keepdims, (bool, np.bool_)):
        raise TypeError(f"{name}: keepdims must be True or False, got {keepdims!r}")
    x, axis, arrays, function = _prepared(name, x, axis, None)
    x = as_rows(x, (axis,))
    return function, x, arrays.empty(x.shape[:-1], x.dtype), axis


def _prepared(name, x, axis, out):
    library = library_for(x, name, {"out": out})
    arrays, function = sys.modules[library], function_of(name, library)
    x = as_array(name, "x", x, arrays, tuple(STORED))
    (axis,) = axes_of(name, axis, x, tuples=False)
    return native(x, result_dtype(x.dtype)), axis, arrays, function
