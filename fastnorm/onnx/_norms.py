"""The norms, and those of a sum."""

import math

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from .._checks import computed
from ..norms import group_norm, layer_norm, rms_norm, unit_norm
from ..residual import add_layer_norm, add_rms_norm
from ._operator import NOT_WANTED, Operator, rounded

_SKIP_EPSILON = np.float32(1e-12)  # onnxruntime's default


class RMSNormalization(Operator):
    """`fastnorm.rms_norm` of all axes from `axis` on. The result has the dtype of `scale`."""

    def _run(self, x, scale, axis=None, epsilon=None, stash_type=None):
        wide = x if x.dtype == scale.dtype else x.astype(np.result_type(computed(x.dtype), computed(scale.dtype)))
        return (rounded(_norm(self.op_type, rms_norm, wide, (scale,), epsilon, axis), scale.dtype),)


class LayerNormalization(Operator):
    """`fastnorm.layer_norm` of all axes from `axis` on; mean and inverse standard deviation from NumPy, in float64."""

    def _run(self, x, scale, bias=None, axis=None, epsilon=None, stash_type=None):
        y = _norm(self.op_type, layer_norm, x, (scale,) if bias is None else (scale, bias), epsilon, axis)
        if not (self.wants(1) or self.wants(2)):
            return (y,)
        dtype = tensor_dtype_to_np_dtype(stash_type)
        return y, *(rounded(one, dtype) for one in _statistics(x, _axes_from(self.op_type, axis, x), epsilon))


class GroupNormalization(Operator):
    """`fastnorm.group_norm`; before opset 21 with a scale and a bias for each group, since then for each channel."""

    def _run(self, x, scale, bias, epsilon=None, num_groups=None, stash_type=None):
        if self.opset < 21:
            for name, parameter in (("scale", scale), ("bias", bias)):
                if parameter.shape != (num_groups,):
                    raise ValueError(
                        f"GroupNormalization: {name} must have shape ({num_groups},), one for each group as before opset 21, "
                        f"got {parameter.shape}"
                    )
            scale, bias = (np.repeat(parameter, x.shape[1] // max(num_groups, 1)) for parameter in (scale, bias))
        return (group_norm(x, num_groups, scale, bias, eps=epsilon),)


class InstanceNormalization(Operator):
    """`fastnorm.group_norm` of each channel."""

    def _run(self, x, scale, bias, epsilon=None, consumed_inputs=None):  # the last was a hint, in opsets below 6
        return (group_norm(x, x.shape[1], scale, bias, eps=epsilon),)


class LpNormalization(Operator):
    """`fastnorm.unit_norm` for p = 2; for p = 1 NumPy, in float64."""

    def _run(self, x, axis=None, p=None):
        if p == 2:
            return (unit_norm(x, axis=axis),)
        if p != 1:
            raise ValueError(f"LpNormalization: p must be 1 or 2, got {p}")
        wide, _ = _scaled(x, axis)
        with np.errstate(all="ignore"):
            length = np.abs(wide).sum(axis, keepdims=True)
            return (rounded(wide / np.where(length == 0, 1, length), x.dtype),)


class SkipLayerNormalization(Operator):
    """`fastnorm.add_layer_norm` of an input, a residual and the bias of the layer before."""

    op_domain = "com.microsoft"

    def _run(self, x, skip, gamma, beta=None, bias=None, epsilon=_SKIP_EPSILON):
        return self._norm_of_sum(add_layer_norm, x, skip, bias, (gamma, beta), epsilon)

    def _norm_of_sum(self, norm, x, skip, bias, parameters, epsilon):
        """A sum of 16-bit floats is kept in 16 bits, but its norm is that of the sum before it was rounded."""
        dtype = computed(x.dtype)
        skip = _broadcast(self.op_type, "skip", skip.astype(dtype, copy=False), x.shape)
        wide = x.astype(dtype, copy=False)
        if bias is not None:
            with np.errstate(all="ignore"):
                wide = wide + _broadcast(self.op_type, "bias", bias.astype(dtype), x.shape)
        y, h = norm(wide, skip, *parameters, eps=epsilon)
        statistics = (NOT_WANTED, NOT_WANTED)
        if self.wants(1) or self.wants(2):
            statistics = (rounded(one, np.float32) for one in _statistics(h, -1, epsilon, norm is add_layer_norm))
        return rounded(y, x.dtype), *statistics, rounded(h, x.dtype)


class SkipSimplifiedLayerNormalization(SkipLayerNormalization):
    """`fastnorm.add_rms_norm`, likewise. Its mean is 0, as onnxruntime gives it."""

    def _run(self, x, skip, gamma, bias=None, epsilon=_SKIP_EPSILON):
        return self._norm_of_sum(add_rms_norm, x, skip, bias, (gamma,), epsilon)


def _axes_from(name, axis, x):
    if not -x.ndim <= axis < x.ndim:
        raise np.exceptions.AxisError(f"{name}: axis must be within the {x.ndim} axes of X, got {axis}")
    return tuple(range(axis % x.ndim, x.ndim))


def _norm(name, norm, x, parameters, epsilon, axis):
    """A norm of all axes from `axis` on, with parameters that broadcast to `x`."""
    axes, row = _axes_from(name, axis, x), x.shape[axis:]
    trimmed = [_without_leading_ones(parameter, len(row)) for parameter in parameters]
    if all(parameter.ndim <= len(row) for parameter in trimmed):
        return norm(x, *(_broadcast(name, "scale or bias", p, row) for p in trimmed), eps=epsilon, axis=axes)
    y = norm(x.astype(computed(x.dtype), copy=False), eps=epsilon, axis=axes)
    weight, *bias = (_broadcast(name, "scale or bias", parameter, x.shape) for parameter in parameters)
    with np.errstate(all="ignore"):
        np.multiply(y, weight, out=y, casting="same_kind")
        for one in bias:
            np.add(y, one, out=y, casting="same_kind")
    return rounded(y, x.dtype)


def _without_leading_ones(parameter, ndim):
    while parameter.ndim > ndim and parameter.shape[0] == 1:
        parameter = parameter[0]
    return parameter


def _broadcast(name, what, array, shape):
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name}: {what} must broadcast to {shape}, got {array.shape}") from None


def _statistics(x, axes, epsilon, centred=True):
    """Mean and inverse standard deviation of each row, or 0 and the inverse root mean square."""
    wide, down = _scaled(x, axes)
    with np.errstate(all="ignore"):
        count = np.ones_like(wide).sum(axes, keepdims=True)  # 0 of an empty row, of which `mean` would warn
        mean = wide.sum(axes, keepdims=True) / count if centred else np.zeros(count.shape)
        deviation = np.sqrt(np.square(wide - mean).sum(axes, keepdims=True) / count)
        return np.ldexp(mean, -down), 1 / np.hypot(np.ldexp(deviation, -down), math.sqrt(epsilon))


def _scaled(x, axes):
    """`x` in float64, rows beyond 2 ** 480 by a power of two, so that 2 ** 43 squares can be summed; and its exponent."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        down = np.minimum(0, 480 - np.frexp(np.abs(wide).max(axes, keepdims=True, initial=0))[1])
        return np.ldexp(wide, down), down
