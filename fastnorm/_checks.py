"""One argument at a time: what it must be, what it becomes, and the error if it cannot."""

import math
import numbers
import operator

import numpy as np

from ._dispatch import describe, is_lazy, library_of
from ._vocabulary import STORED, name_of

NO_OFFSET = 0.0  # the default of every `weight_offset`; one object, so that `is` tells it from a caller's
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


# ----------------------------------------------------------------------------------------------------- conversions
def as_array(function, name, value, arrays, dtypes):
    """An array of one of these dtypes or of integers; never a copy of one."""
    if value is None:
        raise TypeError(f"{function}: {name} must be an array or a list of numbers, got None")
    if not hasattr(value, "dtype"):
        check_members(function, name, value)
        try:
            value = arrays.asarray(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{function}: {name} must be an array or a list of numbers: {error}") from None
    elif not isinstance(value, arrays.ndarray):
        value = arrays.asarray(value)
    if value.dtype.kind not in "iu" and name_of(value.dtype) not in dtypes:
        raise TypeError(f"{function}: {name} must have dtype {', '.join(dtypes)} or an integer one, got {value.dtype}")
    return value


def foreign(value):
    """True for what NumPy might turn into an array, but must not: it would lose a meaning, or be computed."""
    return library_of(value) is None or is_lazy(value)


def check_members(function, name, value, depth=1):
    """Refuse what a list of masked or foreign arrays would lose on the way into an array."""
    if depth > 64:
        raise TypeError(f"{function}: {name} must be a list of numbers, got one nested more than 64 deep")
    for member in value if isinstance(value, (list, tuple)) else ():
        if isinstance(member, (list, tuple)):
            check_members(function, name, member, depth + 1)
        elif foreign(member) and not isinstance(member, (str, bytes, complex)) and member is not None:
            raise TypeError(f"{function}: {name} must be a list of numbers, got one that holds {describe(member)}")


def result_dtype(dtype):
    """The dtype of the result: that of `x`, native; for integers a floating one that is wide enough for most of them."""
    if dtype.kind in "iu":
        return np.result_type(dtype, np.float32)
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def computed(dtype):
    """The dtype of the computation, given that of the result."""
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def native(x, dtype):
    """`x` in `dtype`, native and aligned; itself if it is all that."""
    if x.dtype != dtype or not getattr(x.flags, "aligned", True):
        return x.astype(dtype)
    return x


def named(parameters):
    """The caller's weight, and bias if there is one, by name."""
    return dict(zip(("weight", "bias"), parameters, strict=False))


def converted(array, dtype, arrays):
    """A copy of another dtype."""
    copy = arrays.empty(array.shape, dtype)
    arrays.copyto(copy, array)
    return copy


def parameters_of(function, parameters, axis, axes, x, dtype, weight_offset, arrays):
    """Weight and bias as a backend takes them, and the offset that was added to the weight."""
    shape = tuple(x.shape[a] for a in axes)
    given = [_parameter(function, name, p, axis, shape, dtype, arrays) for name, p in named(parameters).items()]
    offset = finite_of(function, "weight_offset", weight_offset)
    if given[0] is not None and offset:
        with np.errstate(all="ignore"):
            given[0] = given[0] + given[0].dtype.type(offset)
    return given, offset


def _parameter(function, name, weight, axis, shape, dtype, arrays):
    """A weight or bias, flat and converted to the dtype of the computation; None stays None."""
    if weight is None:
        return None
    weight = as_array(function, name, weight, arrays, STORED)
    if weight.shape != shape:
        raise ValueError(f"{function}: {name} must have shape {shape} to match axis {axis} of x, got {weight.shape}")
    if weight.dtype != dtype or not getattr(weight.flags, "aligned", True):
        with np.errstate(all="ignore"):
            weight = converted(weight, dtype, arrays)
    return weight.reshape(-1)


# ---------------------------------------------------------------------------------------------------------- checks
def library_for(x, function, others, first="x"):
    """The library of `x`, which must be that of all others."""
    library = library_of(x)
    if library is None:
        raise TypeError(
            f"{function}: {first} must be a NumPy, CuPy or Dask array, one in the CPU's memory that speaks DLPack, "
            f"a list or a number, got {describe(x)}{_place(x)}{_advice(x)}"
        )
    for name, value in others.items():
        _check_library(function, name, value, library, first)
    return library


def _check_library(function, name, value, library, first):
    if value is None:
        return
    other = library_of(value)
    if other == library or (other == "numpy" and not hasattr(value, "dtype")):
        return
    if isinstance(value, np.ndarray) and library == "numpy":
        why = _advice(value)
    elif other or hasattr(value, "dtype") or hasattr(value, "__dlpack__"):
        why = ": arrays of different libraries do not mix"
    else:
        why = ""
    raise TypeError(f"{function}: {name} must be a {library} array as {first} is, got {describe(value)}{why}")


def _place(array):
    """On which device an array lies that no library here can reach."""
    if isinstance(array, np.ndarray) or not hasattr(type(array), "__dlpack__"):
        return ""
    try:
        return f" on {array.device}"
    except Exception:  # each library has errors of its own for arrays that are nowhere
        return ""


def _advice(value):
    """Why a value is no array here, or how to make one of it."""
    if isinstance(value, np.ndarray):  # a subclass
        return ": it may mean more than its numbers"
    if describe(value).startswith("jax") and describe(value).endswith("Tracer"):
        return ": within jit, grad and vmap there are no arrays"
    if hasattr(value, "__cuda_array_interface__"):
        return ": arrays on a GPU need CuPy"
    return ": its to_numpy() makes one" if callable(getattr(value, "to_numpy", None)) else ""


def axes_of(function, axis, x, tuples):
    """The normalised axes, non-negative: one, or where `tuples` are allowed some that end with the last."""
    if x.ndim == 0:
        raise np.exceptions.AxisError(f"{function}: x must have an axis to normalise along, got a 0-dimensional array")
    several = tuples and isinstance(axis, tuple)
    axes = []
    for a in axis if several else (axis,):
        try:
            index = index_of(a)
        except TypeError:
            kinds = "an integer or a tuple of integers" if tuples else "an integer"
            raise TypeError(f"{function}: axis must be {kinds}, got {axis!r}") from None
        if not -x.ndim <= index < x.ndim:
            present = f"the {x.ndim} axes of x" if x.ndim > 1 else "the only axis of x"
            raise np.exceptions.AxisError(f"{function}: axis must be within {present}, of shape {x.shape}, got {axis!r}")
        axes.append(index % x.ndim)
    if (axes != list(range(x.ndim - len(axes), x.ndim)) and several) or not axes:
        raise ValueError(f"{function}: a tuple as axis must name the last axes of x in order, got {axis!r} of {x.ndim} axes")
    return tuple(axes)


def groups_of(function, num_groups, channels):
    groups = integer_of(function, "num_groups", num_groups)
    if groups < 1 or channels % groups:
        raise ValueError(f"{function}: num_groups must be at least 1 and divide the {channels} channels of x, got {groups}")
    return groups


def eps_of(function, eps, dtype):
    """An eps as a float that is finite in the dtype of the computation."""
    number = number_of(function, "eps", eps)
    if not number >= 0:
        raise ValueError(f"{function}: eps must not be negative or NaN, got {eps!r}")
    if number > float(np.finfo(dtype).max):
        raise ValueError(f"{function}: eps must be within the range of {dtype}, in which this is computed, got {eps!r}")
    return number


def index_of(value):
    """`operator.index`, but TypeError for a truth value too: as an axis or a size it was meant for another argument."""
    if isinstance(value, bool):
        raise TypeError("a truth value is no integer")
    return operator.index(value)


def integer_of(function, name, value):
    try:
        return index_of(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be an integer, got {value!r}") from None


def number_of(function, name, value):
    """A float; truth values are no numbers."""
    dtype = getattr(value, "dtype", None)
    real = isinstance(value, numbers.Real) or getattr(dtype, "kind", None) in tuple("iuf") or str(dtype) == "bfloat16"
    if not real or isinstance(value, bool) or getattr(value, "ndim", 0) or (hasattr(value, "dtype") and foreign(value)):
        raise TypeError(f"{function}: {name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{function}: {name} must be within the range of a float, got {value!r}") from None


def finite_of(function, name, value):
    """A finite number as a float: of what would otherwise make NaN of most rows."""
    number = number_of(function, name, value)
    if not math.isfinite(number):
        raise ValueError(f"{function}: {name} must be finite, got {value!r}")
    return number


def check_flag(function, name, value):
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}")


def check_residual(function, x, residual):
    if residual.shape != x.shape:
        raise ValueError(f"{function}: residual must have the shape of x, {x.shape}, got {residual.shape}")


def check_out(function, name, out, shape, dtype):
    if not hasattr(out, "flags"):
        raise TypeError(f"{function}: {name} must be an array, got {describe(out)}")
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(f"{function}: {name} must have shape {shape} and dtype {dtype}, got {out.shape} and {out.dtype}")
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"{function}: {name} must be writeable, got a read-only array")
    if out.size and any(stride == 0 and n > 1 for stride, n in zip(out.strides, shape, strict=True)):
        raise ValueError(f"{function}: {name} must have its own memory for each element, got strides {out.strides}")
