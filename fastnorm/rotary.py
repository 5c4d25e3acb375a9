"""Rotary position embedding."""

import numpy as np

from ._arguments import deliver
from ._dispatch import adapter_of
from ._frequencies import frequencies
from ._rotary_arguments import rope_arguments, small_rope, table_arguments
from ._two_passes import for_rounding


def rope_tables(positions, dim, *, base=10000.0, scaling=None, dtype=np.float32):
    """Return the cosines and sines of the angles by which `rope` turns pairs of features.

    Pair i of position p is turned by ``p * base ** (-2 * i / dim)``.

    Parameters
    ----------
    positions : array_like
        Positions, of any shape: integers, or floats, of NumPy, of Dask (lazy), or in the CPU's memory and with DLPack. The
        tables are of their library (that of a list is NumPy).
    dim : int
        Number of features that are turned, even, below 2**31.
    base : float, default: 10000.0
        Of the frequencies; positive. Models call it rope_theta.
    scaling : dict, optional
        For contexts longer than a model was trained on, as model configurations have it: "rope_type" (or "type") with the
        options of that type:

        - "linear" [2]_: factor. Positions are divided by it.
        - "ntk" [3]_: factor. The base is multiplied by ``factor ** (dim / (dim - 2))``.
        - "yarn" [4]_: factor, original_max_position_embeddings; beta_fast (32), beta_slow (1), attention_factor
          (``0.1 * log(factor) + 1``, which multiplies both tables).
        - "llama3" [5]_: factor, low_freq_factor, high_freq_factor, original_max_position_embeddings.
    dtype : dtype, default: float32
        Of the tables: float16, bfloat16, float32 or float64.

    Returns
    -------
    cos : array
        Of shape ``positions.shape + (dim / 2,)``, computed in float64 and rounded once.
    sin : array
        Likewise.

    Raises
    ------
    TypeError
        If `positions` is not an array or list of numbers, or lies on a GPU; if `dim` is not an integer, `base` not a number,
        `scaling` no dict, or `dtype` none of those above.
    ValueError
        If `dim` is odd, negative or too large, or `base` not positive; if `scaling` has an unknown type, lacks an option of it
        or has one that is unknown or not positive.

    See Also
    --------
    rope : Turns features by these tables.

    References
    ----------
    .. [1] Jianlin Su et al., "RoFormer", 2021, arXiv:2104.09864.
    .. [2] Shouyuan Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
       arXiv:2306.15595.
    .. [3] bloc97, "NTK-Aware Scaled RoPE", 2023; as in [4]_, section 3.1.
    .. [4] Bowen Peng et al., "YaRN", 2023, arXiv:2309.00071, sections 3.2 to 3.4.
    .. [5] Aaron Grattafiori et al., "The Llama 3 Herd of Models", 2024, arXiv:2407.21783; the formula is that of the code
       published with Llama 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> cos, sin = fastnorm.rope_tables(np.arange(3), 4)
    >>> cos.shape
    (3, 2)
    >>> cos, sin = fastnorm.rope_tables([7], 128, scaling={"rope_type": "linear", "factor": 4.0})
    """
    if adapter := adapter_of(positions):
        return adapter(rope_tables, locals())
    positions, dim, dtype = table_arguments(positions, dim, dtype)
    speeds, factor = frequencies(dim, base, scaling)
    angles = positions[..., None] * speeds
    tables = np.empty((2, *angles.shape), dtype)
    for table, function in zip(tables, (np.cos, np.sin), strict=True):
        with np.errstate(all="ignore"):
            table[...] = for_rounding(function(angles) * factor, table)
    return tables[0], tables[1]


def rope(x, cos, sin, *, interleaved=False, out=None):
    """Turn pairs of features by the angles of their position.

    ``(a * cos - b * sin, b * cos + a * sin)`` for each pair (a, b) of features.

    Parameters
    ----------
    x : array_like
        An array or a list, of shape ``(..., D)``, of float16, bfloat16 (`ml_dtypes`), float32, float64 or integers, of any
        strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in the CPU's memory and with DLPack, as torch's and JAX's.
        It decides the library of all arrays of the call.
    cos, sin : array_like
        Tables of `rope_tables`, of shape ``(..., n)`` with 2 n at most D, of any of these dtypes. Their leading axes broadcast
        to those of `x` by NumPy's rules. The first 2 n features are turned, the others stay as they are.
    interleaved : bool, default: False
        Pair features (0, 1), (2, 3), and so on, as GPT-J does, instead of (i, i + n), as GPT-NeoX and Llama do.
    out : array, optional
        Where to write the result: writeable, of the shape of `x` and the dtype of the result. It may be `x` itself; any
        other overlap gives what it would if the inputs had been copied first. By default a new array.

    Returns
    -------
    array
        `out` if it was given, else a new array of the shape of `x`. Its dtype is that of `x` in native byte order;
        integers become ``numpy.result_type(x.dtype, numpy.float32)``.

    Raises
    ------
    TypeError
        If an array is not of the kinds and dtypes above or of another library than `x`; if `out` is not an array, or
        `interleaved` neither True nor False.
    ValueError
        If `cos` turns more features than there are, or does not broadcast to `x`; if `sin` has another shape; if `out` has
        another shape or dtype than the result, is read-only, or has a stride of 0 along an axis longer than 1.

    See Also
    --------
    rope_tables : The tables.

    Notes
    -----
    This is RoPE [1]_. Computed in float32, or in float64 for a result of float64, and rounded once. A rotation changes no
    length, and scores of rotated queries and keys depend on the distance of their positions alone.

    References
    ----------
    .. [1] Jianlin Su et al., "RoFormer", 2021, arXiv:2104.09864.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> quarter = np.array([0.0]), np.array([1.0])
    >>> fastnorm.rope(np.array([1.0, 2.0, 5.0]), *quarter)
    array([-2.,  1.,  5.])
    >>> q = np.ones((1, 8, 16, 64), np.float32)
    >>> fastnorm.rope(q, *fastnorm.rope_tables(np.arange(16), 64)).shape
    (1, 8, 16, 64)
    """
    y = small_rope(x, cos, sin, interleaved, out)
    if y is not None:
        return y
    if adapter := adapter_of(x):
        return adapter(rope, locals())
    function, x, cos, sin, interleaved, target, out = rope_arguments(x, cos, sin, interleaved, out)
    function(x, cos, sin, interleaved, target)
    return out if out is target else deliver(out)
