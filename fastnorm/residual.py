"""The norms of a sum, which is kept: what stands between the layers of a transformer."""

from ._arguments import NO_OFFSET, add_arguments, deliver, small_add
from ._dispatch import adapter_of


def add_rms_norm(x, residual, weight=None, *, eps=1e-6, weight_offset=NO_OFFSET, axis=-1, out=None, residual_out=None):
    """Add `residual` to `x`, keep the sum, and divide each row of it by its root mean square.

    ``h = x + residual``, then ``y = rms_norm(h, weight, eps=eps, axis=axis, weight_offset=weight_offset)``, in one pass over
    memory: a step of every transformer with residual connections.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    residual : array_like
        What is added, of the shape of `x`, of any of these dtypes.
    weight : array_like, optional
        Factors along `axis`, of shape ``(x.shape[axis],)``. Of any of these dtypes, converted once to that of the
        computation; they never widen the result. None, the default, means a factor of 1, whatever `weight_offset` is.
    eps : float, default: 1e-6
        Added to the mean of the squares, so it is in units of ``h**2``. At least 0.
    weight_offset : float, default: 0.0
        Added to every element of `weight`, in the dtype of the computation. 1.0 is the form that Gemma stores.
    axis : int, default: -1
        The axis to normalise along.
    out : array, optional
        Where to write `y`: writeable, of the shape of `x` and the dtype of `y`. By default a new array.
    residual_out : array, optional
        Where to write `h`: writeable, of the shape of `x` and the dtype of `h`. By default a new array.

        `out` and `residual_out` must not overlap. Each may be `x` or `residual` itself, which then is overwritten without a
        copy; any other overlap gives what it would if the inputs had been copied first.

    Returns
    -------
    y : array
        `out` if it was given, else a new array. Its dtype is that of `x` in native byte order; integers become
        ``numpy.result_type(x.dtype, numpy.float32)``.
    h : array
        `residual_out` if it was given, else a new array. Its dtype is that of `residual`, in the same way.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x`,
        `residual` or `weight` is none of those above; if one of the other arrays belongs to another library than `x`, or `out`
        or `residual_out` is not an array; if `eps` or `weight_offset` is not a number, or `axis` not an integer.
    ValueError
        If `residual` has another shape than `x`, or `weight` than `axis` asks for; if `eps` is negative, NaN or beyond the
        dtype of the computation; if `weight_offset` is not finite; if `out` or `residual_out` has another shape or dtype
        than its result, is read-only, or has a stride of 0 along an axis longer than 1; if they overlap.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    rms_norm : The norm alone.
    add_layer_norm : The same with the other norm.

    Notes
    -----
    Everything is computed in float32, or in float64 if one of the results is float64. `h` is rounded to its dtype, and `y` is
    the norm of that rounded `h`: the very bits of ``rms_norm(h)`` where both are of one dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> x, residual = np.array([[1.0, 3.0]]), np.array([[2.0, 1.0]])
    >>> y, h = fastnorm.add_rms_norm(x, residual, eps=0.0)
    >>> y, h
    (array([[0.84852814, 1.13137085]]), array([[3., 4.]]))

    Without a new array, as a model's residual stream wants it:

    >>> y, h = fastnorm.add_rms_norm(x, residual, eps=0.0, out=x, residual_out=residual)
    >>> y is x, h is residual
    (True, True)
    """
    both = small_add("add_rms_norm", x, residual, weight, None, eps, axis, weight_offset, out, residual_out)
    if both is not None:
        return both
    if adapter := adapter_of(x):
        return adapter(add_rms_norm, locals())
    parameters, offset = (weight,), weight_offset
    arguments = add_arguments("add_rms_norm", x, residual, parameters, eps, axis, offset, out, residual_out)
    backend, x, residual, parameters, eps, target, kept, out, residual_out = arguments
    backend.add_rms_norm(x, residual, parameters, eps, target, kept)
    return deliver(out), deliver(residual_out)


def add_layer_norm(x, residual, weight=None, bias=None, *, eps=1e-5, axis=-1, out=None, residual_out=None):
    """Add `residual` to `x`, keep the sum, and normalise each row of it as `layer_norm` does.

    ``h = x + residual``, then ``y = layer_norm(h, weight, bias, eps=eps, axis=axis)``, in one pass over memory.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    residual : array_like
        What is added, of the shape of `x`, of any of these dtypes.
    weight : array_like, optional
        Factors along `axis`, of shape ``(x.shape[axis],)``. Of any of these dtypes, converted once to that of the
        computation; they never widen the result. None, the default, means a factor of 1.
    bias : array_like, optional
        What is added along `axis`, of the shape and dtypes of a weight. None, the default, means 0.
    eps : float, default: 1e-5
        Added to the variance, so it is in units of ``h**2``. At least 0.
    axis : int, default: -1
        The axis to normalise along.
    out : array, optional
        Where to write `y`: writeable, of the shape of `x` and the dtype of `y`. By default a new array.
    residual_out : array, optional
        Where to write `h`: writeable, of the shape of `x` and the dtype of `h`. By default a new array.

        `out` and `residual_out` must not overlap. Each may be `x` or `residual` itself, which then is overwritten without a
        copy; any other overlap gives what it would if the inputs had been copied first.

    Returns
    -------
    y : array
        `out` if it was given, else a new array. Its dtype is that of `x` in native byte order; integers become
        ``numpy.result_type(x.dtype, numpy.float32)``.
    h : array
        `residual_out` if it was given, else a new array. Its dtype is that of `residual`, in the same way.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x`,
        `residual`, `weight` or `bias` is none of those above; if one of the other arrays belongs to another library than `x`,
        or `out` or `residual_out` is not an array; if `eps` is not a number, or `axis` not an integer.
    ValueError
        If `residual` has another shape than `x`, or `weight` or `bias` than `axis` asks for; if `eps` is negative, NaN or
        beyond the dtype of the computation; if `out` or `residual_out` has another shape or dtype than its result, is
        read-only, or has a stride of 0 along an axis longer than 1; if they overlap.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    layer_norm : The norm alone.
    add_rms_norm : The same with the other norm.

    Notes
    -----
    Everything is computed in float32, or in float64 if one of the results is float64. `h` is rounded to its dtype, and `y` is
    the norm of that rounded `h`: the very bits of ``layer_norm(h)`` where both are of one dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> y, h = fastnorm.add_layer_norm(np.array([[1.0, 3.0]]), np.array([[2.0, 4.0]]), eps=0.0)
    >>> y, h
    (array([[-1.,  1.]]), array([[3., 7.]]))
    """
    both = small_add("add_layer_norm", x, residual, weight, bias, eps, axis, NO_OFFSET, out, residual_out)
    if both is not None:
        return both
    if adapter := adapter_of(x):
        return adapter(add_layer_norm, locals())
    parameters = weight, bias
    arguments = add_arguments("add_layer_norm", x, residual, parameters, eps, axis, NO_OFFSET, out, residual_out)
    backend, x, residual, parameters, eps, target, kept, out, residual_out = arguments
    backend.add_layer_norm(x, residual, parameters, eps, target, kept)
    return deliver(out), deliver(residual_out)
