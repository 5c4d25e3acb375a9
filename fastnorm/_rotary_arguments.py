"""The arguments of RoPE and its tables, prepared; as `_arguments` for the norms."""

import functools
import importlib
import sys

import numpy as np

from ._arguments import as_rows, landing, result_array
from ._checks import as_array, check_flag, computed, integer_of, library_for, native, result_dtype
from ._cpu.layout import SMALL
from ._dispatch import backend_with, describe
from ._vocabulary import STORED

_small: dict[np.dtype, np.ufunc] = {}
_FLAGS = {pairing: np.array([pairing, False], np.int64) for pairing in (False, True)}  # as `_cpu.rope` gives them


def small_rope(x, cos, sin, interleaved, out):
    """The result of a small call, as of one token's heads (5 us instead of 55); None for all but the commonest.

    That is: arrays of NumPy, tables of the dtype of x that broadcast to it, a new result, and a dtype that came by before.
    """
    if out is not None or not (type(x) is type(cos) is type(sin) is np.ndarray) or type(interleaved) is not bool:
        return None
    dtype, shape, of_tables = x.dtype, x.shape, cos.shape
    ufunc = _small.get(dtype)
    if ufunc is None or cos.dtype != dtype or sin.dtype != dtype or not 0 < x.size <= SMALL:
        return None
    if sin.shape != of_tables or not 0 < len(of_tables) <= len(shape) or 2 * of_tables[-1] > shape[-1]:
        return None
    if any(n not in (1, m) for n, m in zip(of_tables[-2::-1], shape[-2::-1], strict=False)):
        return None
    out = np.empty_like(x)
    x, cos, sin, rows = (array[..., None, None, :] for array in (x, cos, sin, out))
    ufunc(x, cos, sin, _FLAGS[interleaved], rows)
    return out


def rope_arguments(x, cos, sin, interleaved, out):
    """Arguments of `rope`: the backend's function, x, tables of its leading shape, the pairing, the target, and out."""
    name = "rope"
    library = library_for(x, name, {"cos": cos, "sin": sin, "out": out})
    arrays, backend = sys.modules[library], backend_with(name, library)
    x = as_array(name, "x", x, arrays, backend.DTYPES)
    cos, sin = (as_array(name, n, a, arrays, tuple(STORED)) for n, a in (("cos", cos), ("sin", sin)))
    check_tables(x, cos, sin, interleaved)
    x = native(x, result_dtype(x.dtype))
    with np.errstate(all="ignore"):
        tables = [native(a, computed(x.dtype)) for a in (cos, sin)]
    tables = [arrays.broadcast_to(a, (*x.shape[:-1], cos.shape[-1])) for a in tables]
    x, tables, out = result_array(name, x, tables, out, x, arrays)
    view = functools.partial(as_rows, axes=(x.ndim - 1,))
    target, out = landing(out, view, arrays)
    if library == "numpy" and x.itemsize > 2 and x.dtype not in _small:
        _small[x.dtype] = backend.small_rope(x.dtype)
    return backend.rope, x, *tables, bool(interleaved), target, out


def check_tables(x, cos, sin, interleaved):
    """Refuse tables whose shapes do not fit that of `x`. Elements are not looked at."""
    name = "rope"
    if not x.ndim:
        raise ValueError(f"{name}: x must have an axis of features, got a 0-dimensional array")
    check_flag(name, "interleaved", interleaved)
    if not cos.ndim or 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(f"{name}: cos must have at most half of the {x.shape[-1]} features of x, got shape {cos.shape}")
    if sin.shape != cos.shape:
        raise ValueError(f"{name}: sin must have the shape of cos, {cos.shape}, got {sin.shape}")
    leading = x.shape[:-1]
    fits = cos.ndim <= x.ndim and all(n in (1, m) for n, m in zip(cos.shape[-2::-1], leading[::-1], strict=False))
    if not fits:
        raise ValueError(f"{name}: cos must broadcast to {leading}, the leading shape of x, got {cos.shape}")


def table_arguments(positions, dim, dtype):
    """Arguments of `rope_tables`: positions in float64, the number of features, the dtype."""
    name = "rope_tables"
    if library_for(positions, name, {}, "positions") != "numpy":
        raise TypeError(f"{name}: positions must be in the CPU's memory, where tables are made, got {describe(positions)}")
    positions = as_array(name, "positions", positions, np, tuple(STORED))
    size = integer_of(name, "dim", dim)
    if not 0 <= size < 1 << 31 or size % 2:
        raise ValueError(f"{name}: dim must be even, at least 0 and below 2**31, got {dim!r}")
    if isinstance(dtype, str) and dtype == "bfloat16":  # NumPy knows the name once this is imported
        importlib.import_module("ml_dtypes")
    try:
        dtype = np.dtype("O" if dtype is None else dtype).newbyteorder("=")
    except TypeError:
        raise TypeError(f"{name}: dtype must be one of {', '.join(STORED)}, got {dtype!r}") from None
    if dtype.name not in STORED:
        raise TypeError(f"{name}: dtype must be one of {', '.join(STORED)}, got {dtype}")
    return positions.astype(np.float64), size, dtype
