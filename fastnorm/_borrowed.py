"""Arrays of other libraries in the CPU's memory: NumPy arrays over it for a call, and results of their own kind.

What is behind a public function sees NumPy arrays alone. Both ways go by DLPack, in which libraries tell each other where an
array lies. Nothing is copied, and no library is imported: the caller's array came from it.
"""

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._checks import result_dtype
from ._dispatch import arguments_of, describe
from ._vocabulary import name_of

_CPU = 1  # DLPack's number of the device
_INTEGER, _BFLOAT = 0, 4  # DLPack's codes of kinds of numbers
_LINE = 64  # bytes: JAX takes no memory that begins within a line of the cache, and copies it
_SEQUENCES = ("outs", "lses")  # arguments that are lists of arrays
_COUNTS = ("q_start", "kv_lengths")  # may be NumPy's beside any library
_PLAIN = {"torch": ("torch.Tensor", "torch.nn.parameter.Parameter")}  # a subclass has a mask, say, which would be lost
_libraries: dict[type, "_Library"] = {}


def is_lent(x):
    """True for an array in the CPU's memory, of a library that can take the result."""
    if not hasattr(type(x), "__dlpack__"):
        return False
    try:
        return _library(x).from_dlpack is not None and x.__dlpack_device__()[0] == _CPU
    except Exception:  # each library has errors of its own for arrays that are nowhere, such as those being traced
        return False


def borrowed(function, variables):
    """The results of a public function, of the library of its first argument."""
    name, arguments = function.__name__, arguments_of(function, variables)
    first, x = next(iter(arguments.items()))
    if first in _SEQUENCES:
        first, x = f"{first}[0]", x[0]
    views = {}
    for n, value in arguments.items():
        if n in _SEQUENCES:
            views[n] = [_view(name, f"{n}[{i}]", one, x, first) for i, one in enumerate(value)]
        else:
            views[n] = _view(name, n, value, x, first)
    theirs = {id(views[n]): arguments[n] for n in ("out", "residual_out") if arguments.get(n) is not None}
    results = function(**views | _room(views))

    def back(y):
        return _written(theirs[id(y)]) if id(y) in theirs else _given(f"{name}: {first}", y, x)

    return tuple(map(back, results)) if type(results) is tuple else back(results)


def _written(out):
    """An array that has been written to. To torch it is told: gradients may rest on what was there, which is an error then."""
    if _library(out).name == "torch":
        sys.modules["torch"].autograd.graph.increment_version(out)
    return out


class _Library(NamedTuple):
    name: str
    from_dlpack: Callable | None  # None: it has none, or arrays of this type may be more than their memory


def _library(array):
    """The library of an array, looked up once for each type."""
    kind = type(array)
    if kind not in _libraries:
        if hasattr(kind, "__array_namespace__"):  # JAX
            homes = [array.__array_namespace__()]
            name = homes[0].__name__.partition(".")[0]
        else:  # PyArrow's types have a `from_dlpack` each, MLX one in the module of its type, torch in that of the library
            name = kind.__module__.partition(".")[0]
            homes = [kind, sys.modules.get(kind.__module__), sys.modules.get(name)]
        plain = describe(array) in _PLAIN.get(name, (describe(array),))
        taking = [home.from_dlpack for home in homes if plain and hasattr(home, "from_dlpack")]
        _libraries[kind] = _Library(name, taking[0] if taking else None)
    return _libraries[kind]


def _view(function, name, value, x, first):
    """The memory of an array of the library of `x` as a NumPy array. Numbers and lists stay what they are."""
    kind = type(value)
    if not hasattr(kind, "__dlpack__") and not hasattr(kind, "dtype"):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and (name in _COUNTS or not value.ndim):
        return value
    library = _library(value)
    if library.name != _library(x).name:
        raise TypeError(
            f"{function}: {name} must be a {_library(x).name} array as {first} is, got {describe(value)}: "
            "arrays of different libraries do not mix"
        )
    try:
        if library.from_dlpack is None:
            raise BufferError(f"{describe(value)} may be more than its memory")
        if library.name == "torch":
            _check_torch(value)
        halves = str(getattr(value, "dtype", "")).endswith("bfloat16")
        view = np.from_dlpack(_Relabelled(value, _INTEGER) if halves else value)
        if view.size and view.flags.owndata:  # NumPy makes new memory where it is told of none
            raise BufferError("it has no memory")
        return view.view(importlib.import_module("ml_dtypes").bfloat16) if halves else view
    except Exception as error:  # each library has its own
        raise TypeError(f"{function}: {name} must be an array that DLPack can share: {error}") from None


def _check_torch(tensor):
    """Refuse what DLPack does not tell of: signs that are not in memory, and derivatives that go forward."""
    if tensor.is_neg():
        raise BufferError("the negative bit is set, use tensor.resolve_neg()")
    if sys.modules["torch"].autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise BufferError("it has a tangent, use tensor.detach()")


def _given(argument, array, x):
    """A NumPy array as one of the library of `x`."""
    lent = _Relabelled(array.view(np.int16), _BFLOAT) if name_of(array.dtype) == "bfloat16" else array
    try:
        return _library(x).from_dlpack(lent)
    except Exception as error:  # arrays of PyArrow have one axis, say
        shape = f"of shape {array.shape} and dtype {array.dtype}"
        raise TypeError(f"{argument} must be of a library that takes the result, {shape}, got {describe(x)}: {error}") from None


class _Relabelled:
    """A 16-bit array under another kind of number. Of bfloat16, which DLPack has, NumPy neither gives nor takes any."""

    def __init__(self, array, code):
        self.array, self.code = array, code

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        """The array's own capsule, in whose DLTensor the code of the dtype stands behind address, device and rank."""
        capsule = self.array.__dlpack__(**options)
        name = _capsule_name(capsule)
        tensor = _capsule_pointer(capsule, name) + (32 if name == b"dltensor_versioned" else 0)
        ctypes.c_uint8.from_address(tensor + 20).value = self.code
        return capsule


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _room(views):
    """Memory for results, if the caller gives none, that any library takes without a copy: for all that have an `out`."""
    room = {}
    for name, like in (("out", "x"), ("residual_out", "residual")):
        if name in views and views[name] is None and isinstance(views.get(like), np.ndarray):
            room[name] = _aligned_like(views[like], views[like].shape)
    if "q" in views and views["out"] is None:
        q, k, v = views["q"], views["k"], views["v"]
        try:
            batch = np.broadcast_shapes(*[np.shape(a)[:-3] for a in (q, k, v)])
        except ValueError:  # attention will complain
            return {}
        room["out"] = _aligned_like(q, (*batch, *q.shape[-3:-1], *np.shape(v)[-1:]))
    return room


def _aligned_like(x, shape):
    """`numpy.empty_like` for a result, at the beginning of a line."""
    like = np.empty_like(x, result_dtype(x.dtype), shape=shape)
    memory = np.empty(like.nbytes + _LINE, np.uint8)
    return np.ndarray(shape, like.dtype, memory, -memory.ctypes.data % _LINE, like.strides)
