"""What exactly was asked? The arguments of a call, prepared; `_checks` says what each of them must be.

Backends get prepared arrays: of a dtype they have kernels for, native and aligned, with the normalised axis last, and an
array to write to that overlaps nothing it must not. Nothing after this file validates anything.
"""

import functools
import math
import sys

import numpy as np

from ._checks import (
    NO_OFFSET,
    as_array,
    axes_of,
    check_out,
    check_residual,
    computed,
    eps_of,
    groups_of,
    library_for,
    named,
    native,
    parameters_of,
    result_dtype,
)
from ._cpu.layout import SMALL
from ._dispatch import backend_with

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_ndarray, _empty_like, _may_share = np.ndarray, np.empty_like, np.may_share_memory
_HUGE = 1e38  # an eps beyond which float32 must be asked whether it has such numbers
_LAST = -1  # one object in CPython, so that `is` tells the default; another -1 takes the long way
_plans: dict[tuple, tuple] = {}
_cpu = None  # the backend of the shortcut, once it was needed


def small_norm(function, x, weight, bias, eps, axis, weight_offset, out):
    """The result of the commonest call, which must cost no more than its kernel (0.5 us here, 2 to 10 us the long way).

    That is: small rows along the last axis, no weight or one of their dtype, a new result or an `out` like `x`, and an `eps`
    that came by before. None if anything is different; the lengths are left to the ufunc to compare, and to the long way to
    complain of.
    """
    if type(x) is _ndarray and axis is _LAST and weight_offset is NO_OFFSET and (type(eps) is float or type(eps) is int):
        dtype = x.dtype
        plan = _plans.get((function, dtype, eps))
        if plan is not None:
            ufunc, both_eps, no_weight, no_bias = plan
            ndim = x.ndim
            if weight is None and ndim:
                weight = no_weight(x.shape[-1], dtype)
            if no_bias is not None:
                return _small_biased(plan, x, weight, bias, out)
            if x.size <= SMALL and ndim and type(weight) is _ndarray and weight.ndim == 1 and weight.dtype is dtype:
                if out is None:
                    out = _empty_like(x)
                elif not _plain_out(x, weight, out, dtype):
                    return None
                try:
                    if ndim == 1:
                        ufunc(x[None], weight, both_eps, out[None])
                    else:
                        ufunc(x, weight, both_eps, out)
                    return out
                except ValueError:  # a weight of another length
                    pass
    return None


def _small_biased(plan, x, weight, bias, out):
    """`small_norm` of a norm that has a bias."""
    ufunc, both_eps, _, no_bias = plan
    dtype, ndim = x.dtype, x.ndim
    if bias is None and ndim:
        bias = no_bias(x.shape[-1], dtype)
    for parameter in (weight, bias):
        if type(parameter) is not _ndarray or parameter.ndim != 1 or parameter.dtype is not dtype:
            return None
    if x.size > SMALL or not ndim:
        return None
    if out is None:
        out = _empty_like(x)
    elif not _plain_out(x, weight, out, dtype) or _may_share(bias, out):
        return None
    try:
        if ndim == 1:
            ufunc(x[None], weight, bias, both_eps, out[None])
        else:
            ufunc(x, weight, bias, both_eps, out)
    except ValueError:  # a weight or bias of another length
        return None
    return out


def small_add(function, x, residual, weight, bias, eps, axis, weight_offset, out, residual_out):
    """`small_norm` for the norm of a sum: x and residual alike, each result new, or x or residual, or apart from all else."""
    plan = _plans.get((function, x.dtype, eps)) if type(x) is type(residual) is _ndarray and type(eps) in (float, int) else None
    if plan is None or axis is not _LAST or weight_offset is not NO_OFFSET:
        return None
    ufunc, both_eps, no_weight, no_bias = plan
    dtype, ndim = x.dtype, x.ndim
    if residual.dtype is not dtype or residual.shape != x.shape or x.size > SMALL or not ndim:
        return None
    n = x.shape[-1]
    parameters = (no_weight(n, dtype) if weight is None else weight,)
    if no_bias is not None:
        parameters += (no_bias(n, dtype) if bias is None else bias,)
    for parameter in parameters:
        if type(parameter) is not _ndarray or parameter.shape != (n,) or parameter.dtype is not dtype:
            return None
    results = out, residual_out
    for result in results:
        if result is not None and not (
            _plain_out(x if result is x else residual, None, result, dtype)
            and (result is x or result is residual or not _may_share(x, result))
            and not any(_may_share(parameter, result) for parameter in parameters)
        ):
            return None
    if _may_share(x, residual) or (out is not None and residual_out is not None and _may_share(out, residual_out)):
        return None
    y, h = (_empty_like(x) if result is None else result for result in results)
    if ndim == 1:
        ufunc(x[None], residual[None], *parameters, both_eps, h[None], y[None])
    else:
        ufunc(x, residual, *parameters, both_eps, h, y)
    return y, h


def norm_arguments(function, x, parameters, eps, axis, weight_offset, out):
    """Arguments of a norm, prepared. `parameters` are the caller's weight, and bias where the norm has one.

    Returns
    -------
    backend : module
    x : array
        With the normalised axis last.
    parameters : list of (array or None)
        Of the length of that axis, in the dtype of the computation.
    eps : float
    target : array
        To write to, of the shape of the returned `x`.
    out : array or Detour
        For `deliver`.
    """
    # Another shortcut, for large arrays; small ones go the long way once, which makes the plan for `small_norm`. To compare
    # dtypes by `is` holds for native ones alone; whatever is odd in any way takes the long way.
    if (
        type(x) is _ndarray
        and ((dtype := x.dtype) is _FLOAT32 or dtype is _FLOAT64)
        and axis is _LAST
        and x.ndim
        and type(eps) is float
        and 0 <= eps < _HUGE
        and all(p is None or _plain_parameter(p, x, dtype) for p in parameters)
        and type(weight_offset) is float
        and weight_offset == 0
        and x.size > SMALL
        and x.flags.aligned
        and _cpu is not None
        and (out is None or all(_plain_out(x, p, out, dtype) for p in parameters))
    ):
        out = _empty_like(x) if out is None else out
        return _cpu, x, parameters, eps, out, out
    return _norm_arguments(function, x, parameters, eps, axis, weight_offset, out)


def _plain_parameter(weight, x, dtype):
    """True if there is nothing to convert."""
    return type(weight) is _ndarray and weight.dtype is dtype and weight.shape == x.shape[-1:] and weight.flags.aligned


def _plain_out(x, weight, out, dtype):
    """True if `out` needs no further look: it is x, or an array like it that shares memory with nothing."""
    return (
        type(out) is _ndarray
        and out.dtype is dtype
        and (flags := out.flags).writeable
        and flags.aligned
        and (out is x or (out.shape == x.shape and not _may_share(x, out)))
        and (weight is None or not _may_share(weight, out))
        and (flags.c_contiguous or flags.f_contiguous)
    )


def _norm_arguments(function, x, parameters, eps, axis, weight_offset, out):
    global _cpu
    library = library_for(x, function, {**named(parameters), "out": out})
    arrays = sys.modules[library]  # numpy or cupy: what is used of them here has the same names in both
    backend = backend_with(function, library)
    if library == "numpy":
        _cpu = backend

    x = as_array(function, "x", x, arrays, backend.DTYPES)
    dtype = result_dtype(x.dtype)
    axes = axes_of(function, axis, x, tuples=function != "unit_norm")
    eps = eps_of(function, eps, computed(dtype))
    given, offset = parameters_of(function, parameters, axis, axes, x, computed(dtype), weight_offset, arrays)
    x = native(x, dtype)
    x, given, out = result_array(function, x, given, out, x, arrays)
    if library == "numpy" and offset == 0 and x.itemsize > 2:
        _plan(function, x, eps, backend)
    view = functools.partial(as_rows, axes=axes)
    target, out = landing(out, view, arrays)
    return backend, view(x), given, eps, target, out


def add_arguments(function, x, residual, parameters, eps, axis, weight_offset, out, residual_out):
    """Arguments of the norm of a sum, prepared: as `norm_arguments`, with residual, target and out for what is kept, too."""
    outs = {"out": out, "residual_out": residual_out}
    library = library_for(x, function, {"residual": residual, **named(parameters), **outs})
    arrays, backend = sys.modules[library], backend_with(function, library)
    x = as_array(function, "x", x, arrays, backend.DTYPES)
    residual = as_array(function, "residual", residual, arrays, backend.DTYPES)
    axes = axes_of(function, axis, x, tuples=False)
    check_residual(function, x, residual)
    inputs = [native(a, result_dtype(a.dtype)) for a in (x, residual)]
    accumulated = _FLOAT64 if _FLOAT64 in (inputs[0].dtype, inputs[1].dtype) else _FLOAT32
    eps = eps_of(function, eps, accumulated)
    given, _ = parameters_of(function, parameters, axis, axes, x, accumulated, weight_offset, arrays)
    if library == "numpy" and inputs[0].dtype == inputs[1].dtype == accumulated:
        _plan(function, inputs[0], eps, backend)
    for i, (name, value) in enumerate(outs.items()):
        inputs[0], given, outs[name] = result_array(function, inputs[0], given, value, inputs[i], arrays, name)
        inputs[1] = unless_overwritten(inputs[1], outs[name], arrays)
    if _overlap(*outs.values(), arrays):
        raise ValueError(f"{function}: residual_out must not overlap out, got arrays that share memory")
    view = functools.partial(as_rows, axes=axes)
    (target, out), (kept, residual_out) = (landing(one, view, arrays) for one in outs.values())
    return backend, *map(view, inputs), given, eps, target, kept, out, residual_out


def _plan(function, x, eps, backend):
    """Be prepared for the next small call of this kind."""
    name = function, x.dtype, eps
    if x.size <= SMALL and name not in _plans and len(_plans) < 256:
        _plans[name] = backend.small_plan(*name)


class _Place:
    """Where an array of a GPU lies, as NumPy takes it: it is not to be read."""

    def __init__(self, array):
        strides, at = array.strides, (array.data.ptr, True)
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "strides": strides, "data": at}
        if array.itemsize > 1:  # bytes, of any dtype
            self.__array_interface__ |= {"shape": (*array.shape, array.itemsize), "strides": (*strides, 1)}


def _overlap(a, b, arrays):
    """True if two arrays share memory, or if to find out takes too long."""
    if not arrays.may_share_memory(a, b):
        return False
    if arrays is not np:
        a, b = map(_Place, (a, b))
    try:
        return np.shares_memory(np.asarray(a), np.asarray(b), max_work=100_000)
    except np.exceptions.TooHardError:
        return True


def group_arguments(function, x, num_groups, parameters, eps, axis, out):
    """Arguments of a norm of groups, prepared: as `norm_arguments`, but `x` and the target are of five axes.

    They are (batch, groups, before, channels, after): the axes of x before the channels and after them are one each.
    """
    library = library_for(x, function, {**named(parameters), "out": out})
    arrays, backend = sys.modules[library], backend_with(function, library)
    x = as_array(function, "x", x, arrays, backend.DTYPES)
    dtype = result_dtype(x.dtype)
    (axis,) = axes_of(function, axis, x, tuples=False)
    channels = x.shape[axis]
    groups = groups_of(function, num_groups, channels)
    eps = eps_of(function, eps, computed(dtype))
    given, _ = parameters_of(function, parameters, axis, (axis,), x, computed(dtype), NO_OFFSET, arrays)
    x = native(x, dtype)
    x, given, out = result_array(function, x, given, out, x, arrays)
    view = functools.partial(as_grouped, axis=axis, groups=groups)
    target, out = landing(out, view, arrays)
    return backend, view(x), given, eps, target, out


def as_grouped(x, axis, groups):
    """`x` as (batch, groups, before, channels, after): a view where there is one."""
    batch = x.shape[0] if axis else 1
    before, after = math.prod(x.shape[1:axis]), math.prod(x.shape[axis + 1 :])
    return x.reshape(batch, before, groups, x.shape[axis] // groups, after).swapaxes(1, 2)


# ------------------------------------------------------------------------------------------------ what to write to
def result_array(function, x, given, out, like, arrays, name="out"):
    """Where to write: an array of the shape and dtype of `like`, or the caller's; and inputs that it will not overwrite."""
    if out is None:
        return x, given, arrays.empty_like(like, subok=False) if arrays is np else arrays.empty_like(like)
    check_out(function, name, out, like.shape, like.dtype)
    given = [p.copy() if p is not None and arrays.may_share_memory(p, out) else p for p in given]
    return unless_overwritten(x, out, arrays), given, out


def unless_overwritten(x, out, arrays):
    """`x`, or a copy if writing `out` would change elements of it before they are read."""
    return x if _same_memory(x, out) or not arrays.may_share_memory(x, out) else x.copy()


class Detour:
    """An `out` that no kernel can write to: unaligned, or not to be seen as its rows. The result goes to `room` first."""

    def __init__(self, out, room):
        self.out, self.room = out, room

    def land(self):
        """Copy the result to where it belongs."""
        self.out[...] = self.room
        return self.out


def deliver(out):
    """What the caller gets: `out`, with the result in it."""
    return out.land() if type(out) is Detour else out


def landing(out, view, arrays):
    """The array for a kernel to write to, `view` of something, and what `deliver` makes the caller's `out` of."""
    target = view(out)
    if out.size == 0 or (getattr(out.flags, "aligned", True) and arrays.may_share_memory(target, out)):
        return target, out
    room = arrays.empty(out.shape, out.dtype)
    return view(room), Detour(out, room)


def as_rows(x, axes):
    """`x` with the normalised axes as its last one: a view where there is one (always, for a single axis)."""
    if len(axes) > 1:
        return x.reshape(*x.shape[: -len(axes)], math.prod(x.shape[-len(axes) :]))
    if axes[0] == x.ndim - 1:
        return x
    order = [a for a in range(x.ndim) if a != axes[0]]
    return x.transpose(*order, axes[0])


def _same_memory(a, b):
    """True if every element of `a` lies where that of `b` does."""
    return a is b or (a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype and _pointer(a) == _pointer(b))


def _pointer(array):
    interface = getattr(array, "__array_interface__", None)
    return interface["data"][0] if interface else array.data.ptr  # CuPy's own interface asks the device for more
