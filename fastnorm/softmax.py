"""Softmax and its relatives."""

import numpy as np

from ._arguments import deliver
from ._dispatch import adapter_of
from ._softmax_arguments import ONE, logsumexp_arguments, small_softmax, softmax_arguments


def softmax(x, *, axis=-1, scale=ONE, out=None):
    """Turn each row of scores into probabilities.

    ``y = exp(scale * x) / sum(exp(scale * x))``, where a row is what lies along `axis`.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
    axis : int, default: -1
        The axis that becomes probabilities.
    scale : float, default: 1.0
        Factor of the scores: an inverse temperature.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself; any
        other overlap gives what it would if the input had been copied first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If `x` is not of the kinds and dtypes above; if `out` belongs to another library or is not an array; if `scale` is not a
        number, or `axis` not an integer.
    ValueError
        If `scale` is infinite or NaN; if `out` has another shape or dtype than the result, is read-only, or has a stride of 0
        along an axis longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    log_softmax : The logarithm of this, exact where this underflows.
    logsumexp : The logarithm of the denominator.

    Notes
    -----
    Scores are compared with the largest of their row, so that nothing overflows and an offset changes nothing. Everything is
    computed in float32, or in float64 for a result of float64, and rounded once. A row of minus infinities gives zeros; one
    with plus infinity or NaN gives NaN, and no other does. Bits do not depend on layout, threads or other rows.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> fastnorm.softmax(np.array([[0.0, 0.0], [1e30, -np.inf]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    y = small_softmax("softmax", x, axis, scale, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(softmax, locals())
    function, x, scale, target, out = softmax_arguments("softmax", x, axis, scale, out)
    function(x, scale, target)
    return out if out is target else deliver(out)


def log_softmax(x, *, axis=-1, scale=ONE, out=None):
    """Turn each row of scores into logarithms of probabilities.

    ``y = scale * x - log(sum(exp(scale * x)))``, where a row is what lies along `axis`.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
    axis : int, default: -1
        The axis that becomes probabilities.
    scale : float, default: 1.0
        Factor of the scores: an inverse temperature.
    out : array, optional
        Where to write the result, as for `softmax`. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`, of its dtype as for `softmax`.

    Raises
    ------
    TypeError
        If `x` is not of the kinds and dtypes above; if `out` belongs to another library or is not an array; if `scale` is not a
        number, or `axis` not an integer.
    ValueError
        If `scale` is infinite or NaN; if `out` has another shape or dtype than the result, is read-only, or has a stride of 0
        along an axis longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    softmax : The probabilities themselves.

    Notes
    -----
    As `softmax`; a row of minus infinities gives minus infinities.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> fastnorm.log_softmax(np.array([0.0, -1000.0]))
    array([    0., -1000.])
    """
    y = small_softmax("log_softmax", x, axis, scale, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(log_softmax, locals())
    function, x, scale, target, out = softmax_arguments("log_softmax", x, axis, scale, out)
    function(x, scale, target)
    return out if out is target else deliver(out)


def logsumexp(x, *, axis=-1, keepdims=False):
    """Give the logarithm of the sum of the exponentials of each row.

    ``y = log(sum(exp(x)))``, where a row is what lies along `axis`.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
    axis : int, default: -1
        The axis that is summed along.
    keepdims : bool, default: False
        Keep that axis, of length 1.

    Returns
    -------
    array
        Of the shape of `x` without `axis`, a 0-dimensional array for a single row, and its dtype as for `softmax`. Minus
        infinity for an empty row.

    Raises
    ------
    TypeError
        If `x` is not of the kinds and dtypes above, `axis` not an integer, or `keepdims` neither True nor False.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    softmax : What is left if this is taken off.

    Notes
    -----
    Computed as `softmax` is. A row of minus infinities gives minus infinity, one with plus infinity that.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> fastnorm.logsumexp(np.array([[1000.0, 1000.0], [-np.inf, 2.0]]))
    array([1000.69314718,    2.        ])
    """
    if adapter := adapter_of(x):
        return adapter(logsumexp, locals())
    function, x, target, axis = logsumexp_arguments("logsumexp", x, axis, keepdims)
    function(x, target)
    return np.expand_dims(target, axis) if keepdims else target
