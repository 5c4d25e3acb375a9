"""The norms."""

from ._arguments import NO_OFFSET, deliver, group_arguments, norm_arguments, small_norm
from ._dispatch import adapter_of


def rms_norm(x, weight=None, *, eps=1e-6, axis=-1, weight_offset=NO_OFFSET, out=None):
    """Divide each row of `x` by its root mean square.

    ``y = x / sqrt(mean(x**2) + eps) * (weight_offset + weight)``, where a row is what lies along `axis` and the mean is
    taken over it.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    weight : array_like, optional
        Factors along `axis`, of shape ``(x.shape[axis],)``; of shape ``tuple(x.shape[a] for a in axis)`` if `axis` is a
        tuple. Of any of these dtypes, converted once to that of the computation; they never widen the result.
        None, the default, means a factor of 1, whatever `weight_offset` is.
    eps : float, default: 1e-6
        Added to the mean of the squares, so it is in units of ``x**2``. At least 0. With 0 the result does not depend on
        the scale of `x`, and a row of zeros gives zeros.
    axis : int or tuple of int, default: -1
        The axis to normalise along, or the last few axes of `x`, in order, taken together as one row.
    weight_offset : float, default: 0.0
        Added to every element of `weight`, in the dtype of the computation. 1.0 is the form that Gemma stores.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself, which
        then is normalised in place without a copy; any other overlap gives what it would if the inputs had been copied
        first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x` or
        `weight` is none of those above; if `weight` or `out` belongs to another library than `x`, or `out` is not an array; if
        `eps` or `weight_offset` is not a number, or `axis` neither an integer nor a tuple of integers.
    ValueError
        If `weight` has another shape than `axis` asks for; if `eps` is negative, NaN or beyond the dtype of the computation;
        if `weight_offset` is not finite; if `axis` is a tuple and does not name the last axes of `x` in order, or is empty;
        if `out` has another shape or dtype than the result, is read-only, or has a stride of 0 along an axis longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    layer_norm : The same about the mean of a row, with a bias.
    unit_norm : The same divided by ``sqrt(n)``, for rows of n elements and ``eps=0``.
    add_rms_norm : The same of a sum, which is kept.

    Notes
    -----
    This is RMSNorm [1]_. Everything is computed in float32, or in float64 for a result of float64, and the weight multiplies
    before the result is rounded, once. An integer `x` is converted first.

    No finite input overflows or underflows on the way: where the sum of squares of 512 neighbours leaves a safe range, those
    neighbours are scaled by a power of two and summed again. NaN makes its own row NaN and no other. In a row with an
    infinity, infinities become NaN and everything else 0. No floating-point warning is given.

    Squares are added in one fixed order, whatever the layout, the number of threads or the other rows: a row always
    gives the same bits on one processor. The order on a GPU is another, also fixed.

    References
    ----------
    .. [1] Biao Zhang and Rico Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, arXiv:1910.07467.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> x = np.array([[3.0, 4.0], [-0.6, 0.8]])
    >>> fastnorm.rms_norm(x, eps=0.0)
    array([[ 0.84852814,  1.13137085],
           [-0.84852814,  1.13137085]])

    A weight for each element of a row; here as Gemma stores it, less 1:

    >>> fastnorm.rms_norm(x, np.array([0.0, 1.0]), eps=0.0, weight_offset=1.0)
    array([[ 0.84852814,  2.2627417 ],
           [-0.84852814,  2.2627417 ]])

    Squares far outside the range of float32, in place:

    >>> huge = np.array([1e30, -1e30], np.float32)
    >>> fastnorm.rms_norm(huge, out=huge)
    array([ 1., -1.], dtype=float32)
    """
    y = small_norm("rms_norm", x, weight, None, eps, axis, weight_offset, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(rms_norm, locals())
    backend, x, parameters, eps, target, out = norm_arguments("rms_norm", x, (weight,), eps, axis, weight_offset, out)
    backend.rms_norm(x, parameters, eps, target)
    return out if out is target else deliver(out)


def layer_norm(x, weight=None, bias=None, *, eps=1e-5, axis=-1, out=None):
    """Move each row of `x` to mean 0 and divide it by its standard deviation.

    ``y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``, where a row is what lies along `axis`, mean and variance
    are taken over it, and the variance is that of the population: the mean of ``(x - mean(x))**2``.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    weight : array_like, optional
        Factors along `axis`, of shape ``(x.shape[axis],)``; of shape ``tuple(x.shape[a] for a in axis)`` if `axis` is a
        tuple. Of any of these dtypes, converted once to that of the computation; they never widen the result.
        None, the default, means a factor of 1.
    bias : array_like, optional
        What is added along `axis`, of the shape and dtypes of a weight. None, the default, means 0.
    eps : float, default: 1e-5
        Added to the variance, so it is in units of ``x**2``. At least 0. With 0 the result does not depend on the scale
        of `x`.
    axis : int or tuple of int, default: -1
        The axis to normalise along, or the last few axes of `x`, in order, taken together as one row.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself, which
        then is normalised in place without a copy; any other overlap gives what it would if the inputs had been copied
        first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x`, `weight`
        or `bias` is none of those above; if `weight`, `bias` or `out` belongs to another library than `x`, or `out` is not an
        array; if `eps` is not a number, or `axis` neither an integer nor a tuple of integers.
    ValueError
        If `weight` or `bias` has another shape than `axis` asks for; if `eps` is negative, NaN or beyond the dtype of the
        computation; if `axis` is a tuple and does not name the last axes of `x` in order, or is empty; if `out` has another
        shape or dtype than the result, is read-only, or has a stride of 0 along an axis longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    rms_norm : The same for rows whose mean is 0, without a bias.
    group_norm : The same for groups of channels, with a weight for each channel.
    add_layer_norm : The same of a sum, which is kept.

    Notes
    -----
    This is LayerNorm [1]_. Everything is computed in float32, or in float64 for a result of float64; weight and bias are
    applied before the result is rounded, once. An integer `x` is converted first.

    A row far from zero loses nothing: the mean of its first 64 elements is subtracted from each before anything is summed,
    and the row is summed again if that was a bad guess of its mean. Equal numbers give exactly `bias`, for any finite weight.
    Range and order of summation are those of `rms_norm`. NaN or an infinity makes its own row NaN and no other.

    References
    ----------
    .. [1] Jimmy Lei Ba, Jamie Ryan Kiros and Geoffrey E. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> x = np.array([[1.0, 3.0], [5.0, 5.0]])
    >>> fastnorm.layer_norm(x, eps=0.0)
    array([[-1.,  1.],
           [ 0.,  0.]])
    >>> fastnorm.layer_norm(x, np.array([1.0, 2.0]), np.array([0.5, -0.5]), eps=0.0)
    array([[-0.5,  1.5],
           [ 0.5, -0.5]])

    Numbers whose squares differ only in digits that float32 does not have:

    >>> fastnorm.layer_norm(np.array([40000, 40001, 40002, 40003], np.float32), eps=0.0)
    array([-1.3416407, -0.4472136,  0.4472136,  1.3416407], dtype=float32)
    """
    y = small_norm("layer_norm", x, weight, bias, eps, axis, NO_OFFSET, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(layer_norm, locals())
    backend, x, parameters, eps, target, out = norm_arguments("layer_norm", x, (weight, bias), eps, axis, NO_OFFSET, out)
    backend.layer_norm(x, parameters, eps, target)
    return out if out is target else deliver(out)


def unit_norm(x, weight=None, *, eps=0.0, axis=-1, out=None):
    """Divide each row of `x` by its length.

    ``y = x / max(sqrt(sum(x**2)), eps) * weight``, where a row is what lies along `axis` and the sum is taken over it.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    weight : array_like, optional
        Factors along `axis`, of shape ``(x.shape[axis],)``. Of any of these dtypes, converted once to that of the
        computation; they never widen the result. None, the default, means a factor of 1.
    eps : float, default: 0.0
        The least length to divide by, so it is in units of `x`. At least 0. With 0 every finite row but one of zeros comes
        out with length 1, and a row of zeros gives zeros.
    axis : int, default: -1
        The axis to normalise along.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself, which
        then is normalised in place without a copy; any other overlap gives what it would if the inputs had been copied
        first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x` or
        `weight` is none of those above; if `weight` or `out` belongs to another library than `x`, or `out` is not an array; if
        `eps` is not a number, or `axis` not an integer.
    ValueError
        If `weight` has another shape than `axis` asks for; if `eps` is negative, NaN or beyond the dtype of the
        computation; if `out` has another shape or dtype than the result, is read-only, or has a stride of 0 along an axis
        longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    rms_norm : ``sqrt(n)`` times this, for rows of n elements and ``eps=0``.

    Notes
    -----
    Everything is computed in float32, or in float64 for a result of float64. Range, special values and the order of summation
    are those of `rms_norm`. A rotation of the row rotates the result, as long as there is no weight.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> fastnorm.unit_norm(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    >>> fastnorm.unit_norm(np.array([1e-40, 1e-40], np.float32))
    array([0.7071068, 0.7071068], dtype=float32)
    """
    y = small_norm("unit_norm", x, weight, None, eps, axis, NO_OFFSET, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(unit_norm, locals())
    backend, x, parameters, eps, target, out = norm_arguments("unit_norm", x, (weight,), eps, axis, NO_OFFSET, out)
    backend.unit_norm(x, parameters, eps, target)
    return out if out is target else deliver(out)


def group_norm(x, num_groups, weight=None, bias=None, *, eps=1e-5, axis=1, out=None):
    """Normalise groups of channels, each over all of space, as `layer_norm` does rows.

    ``y = (x - mean) / sqrt(variance + eps) * weight + bias``: mean and variance are taken over the channels of a group and
    all axes but that of the batch, weight and bias have one number a channel.

    Parameters
    ----------
    x : array_like
        An array or a list, of any shape but ``()``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call. Axis 0 is the batch, unless it is `axis`: then there is no batch.
    num_groups : int
        Number of groups, of neighbouring channels. It divides that of channels. As many groups as channels is instance
        norm; one group is layer norm over channels and space, with a weight for each channel.
    weight : array_like, optional
        Factors of shape ``(x.shape[axis],)``, of any of these dtypes, converted once to that of the computation; they
        never widen the result. None, the default, means a factor of 1.
    bias : array_like, optional
        What is added, of the shape and dtypes of a weight. None, the default, means 0.
    eps : float, default: 1e-5
        Added to the variance, so it is in units of ``x**2``. At least 0.
    axis : int, default: 1
        The axis of channels.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself, which
        then is normalised in place without a copy; any other overlap gives what it would if the inputs had been copied
        first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If `x` is no array of those libraries, no list or tuple and no number (subclasses that carry a meaning of their own,
        such as masked arrays and matrices, are refused, as are tensors that require a gradient); if the dtype of `x`, `weight`
        or `bias` is none of those above; if `weight`, `bias` or `out` belongs to another library than `x`, or `out` is not an
        array; if `eps` is not a number, or `num_groups` or `axis` not an integer.
    ValueError
        If `num_groups` is below 1 or does not divide the number of channels; if `weight` or `bias` has another shape than
        ``(channels,)``; if `eps` is negative, NaN or beyond the dtype of the computation; if `out` has another shape or
        dtype than the result, is read-only, or has a stride of 0 along an axis longer than 1.
    numpy.exceptions.AxisError
        If `x` has no axes, or `axis` is not among those it has.

    See Also
    --------
    layer_norm : The same for rows, with a weight for each element.

    Notes
    -----
    This is GroupNorm [1]_. Numbers are those of `layer_norm`, for rows that consist of a group's elements in the order in
    which they stand in `x`. Equal numbers in a group give exactly `bias`. Groups of channels that come last are read in short
    runs of memory, and more slowly.

    References
    ----------
    .. [1] Yuxin Wu and Kaiming He, "Group Normalization", ECCV 2018, arXiv:1803.08494.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> x = np.array([[[1.0, 3.0], [5.0, 7.0], [2.0, 2.0], [2.0, 2.0]]])  # an image of four channels and two pixels
    >>> fastnorm.group_norm(x, 2, eps=0.0)
    array([[[-1.34164079, -0.4472136 ],
            [ 0.4472136 ,  1.34164079],
            [ 0.        ,  0.        ],
            [ 0.        ,  0.        ]]])

    Channels last, a group each:

    >>> fastnorm.group_norm(x.swapaxes(1, 2), 4, eps=0.0, axis=-1)
    array([[[-1., -1.,  0.,  0.],
            [ 1.,  1.,  0.,  0.]]])
    """
    if adapter := adapter_of(x):
        return adapter(group_norm, locals())
    arguments = group_arguments("group_norm", x, num_groups, (weight, bias), eps, axis, out)
    backend, x, parameters, eps, target, out = arguments
    backend.group_norm(x, parameters, eps, target)
    return out if out is target else deliver(out)
