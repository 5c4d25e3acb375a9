"""The arguments of softmax and its relatives, prepared; as `_arguments` for the norms."""

import functools
import sys

import numpy as np

from ._arguments import as_rows, landing, result_array
from ._checks import as_array, axes_of, check_flag, finite_of, library_for, native, result_dtype
from ._cpu.layout import KEPT, SMALL
from ._dispatch import backend_with

ONE = 1.0  # the default scale; one object, so that `is` tells it from a caller's
_LAST = -1
_plans: dict[tuple, tuple] = {}


def small_softmax(name, x, axis, scale, out):
    """The result of the commonest call, as `_arguments.small_norm`: small rows along the last axis, a new result.

    None if anything is different, or nothing like it came by before.
    """
    if type(x) is not np.ndarray or axis is not _LAST or scale is not ONE or out is not None:
        return None
    plan = _plans.get((name, x.dtype))
    if plan is None or not 0 < x.size <= SMALL or not (x.ndim == 2 or (x.ndim and x.flags.c_contiguous and x.flags.aligned)):
        return None
    ufunc, given, flags, stored = plan
    n = x.shape[-1]
    out = np.empty_like(x)
    rows, target = (x, out) if x.ndim == 2 else (x.reshape(-1, n), out.reshape(-1, n))
    if x.dtype is not stored:
        rows, target = rows.view(stored), target.view(stored)
    ufunc(rows, given, flags, np.empty(n if n <= KEPT else 1, given.dtype), target)
    return out


def _remember(name, x, backend):
    """Be prepared for the next small call of this kind."""
    if x.size <= SMALL and (name, x.dtype) not in _plans:
        _plans[name, x.dtype] = backend.small_softmax(name, x.dtype)


def softmax_arguments(name, x, axis, scale, out):
    """Arguments of `softmax` and `log_softmax`: the backend's function, x and target with the axis last, scale, and out."""
    x, axis, arrays, backend = _prepared(name, x, axis, out)
    scale = finite_of(name, "scale", scale)
    if arrays is np:
        _remember(name, x, backend)
    x, _, out = result_array(name, x, [], out, x, arrays)
    view = functools.partial(as_rows, axes=(axis,))
    target, out = landing(out, view, arrays)
    return getattr(backend, name), view(x), scale, target, out


def logsumexp_arguments(name, x, axis, keepdims):
    """Arguments of `logsumexp`: the backend's function, x with the axis last, the target without it, and that axis."""
    check_flag(name, "keepdims", keepdims)
    x, axis, arrays, backend = _prepared(name, x, axis, None)
    x = as_rows(x, (axis,))
    return getattr(backend, name), x, arrays.empty(x.shape[:-1], x.dtype), axis


def _prepared(name, x, axis, out):
    library = library_for(x, name, {"out": out})
    arrays, backend = sys.modules[library], backend_with(name, library)
    x = as_array(name, "x", x, arrays, backend.DTYPES)
    (axis,) = axes_of(name, axis, x, tuples=False)
    return native(x, result_dtype(x.dtype)), axis, arrays, backend
