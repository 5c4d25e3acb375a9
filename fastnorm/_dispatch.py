"""Where does it run? The type of `x` decides, through one table; no library is imported unless the caller's array came from it.

To add a backend: a package with the functions of `_cpu`, and a line in `_BACKENDS`. That of Dask is no backend: it has the
public functions themselves, for arrays that are not there yet.
"""

import importlib
import importlib.util
import sys
from typing import Any

import numpy as np

from ._compile import compiling

# Library of the array -> (backend, where its array type is found). NumPy's memmap is an ndarray that lies in a file.
_BACKENDS = {
    "numpy": ("fastnorm._cpu", ("numpy.ndarray", "numpy.memmap")),
    "cupy": ("fastnorm._cuda", ("cupy.ndarray",)),
    "dask": ("fastnorm._dask", ("dask.array.Array",)),
}
_SEQUENCES = (list, tuple, int, float, np.generic)

_imported: dict[str, Any] = {}
_library_of_type: dict[type, str] = {}  # of types whose arrays a backend takes


def library_of(value):
    """The library of an array: a key of `_BACKENDS`; "numpy" for lists and numbers; None for anything else."""
    kind = type(value)
    library = _library_of_type.get(kind)
    if library is None:
        library = _find(kind)
        if library is None:
            return "cupy" if _is_on_gpu(value) else None
        if library != "dask":  # not kept: a type that is needs no adapter
            _library_of_type[kind] = library
    return library


def is_lazy(value):
    """True for an array of Dask, whose elements nobody may ask for."""
    return library_of(value) == "dask"


def _is_on_gpu(value):
    """True for an array of any library that lies on a GPU: CuPy, if there is one, sees its memory. A type is not enough.

    Of torch, one type has arrays here and there.
    """
    if not hasattr(value, "__cuda_array_interface__") or importlib.util.find_spec("cupy") is None:
        return False
    importlib.import_module("cupy")
    return True


def _find(kind):
    if issubclass(kind, _SEQUENCES):
        return "numpy"
    for library, (_, paths) in _BACKENDS.items():
        for path in paths:
            module, _, name = path.rpartition(".")
            if module in sys.modules and kind is getattr(sys.modules[module], name, None):
                return library
    return None


def adapter_of(x):
    """What answers a call with `x` in the place of a public function; None if a backend takes `x` itself.

    An adapter is given the function and its local variables.
    """
    if type(x) in _library_of_type or isinstance(x, (np.ndarray, *_SEQUENCES)):
        return None
    from ._borrowed import borrowed, is_lent

    if is_lent(x):
        return borrowed
    return _planned if is_lazy(x) else None


def _planned(function, variables):
    """The graph of a call with Dask arrays: the function of this name in `_dask` makes it."""
    name = function.__name__
    return getattr(backend_with(name, "dask"), name)(**arguments_of(function, variables))


def arguments_of(function, variables):
    """The arguments of a public function by name, out of its local variables."""
    code = function.__code__
    return {n: variables[n] for n in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}


def backend_of(library):
    """The backend's package, imported on first use, under the lock that forks wait for: a child could never end an import."""
    name = _BACKENDS[library][0]
    backend = _imported.get(name)
    if backend is None:
        with compiling:
            backend = _imported[name] = importlib.import_module(name)
    return backend


def backend_with(function, library):
    """The backend's package; TypeError if it has no function of this name yet."""
    backend = backend_of(library)
    if function not in backend.__all__:
        raise TypeError(
            f"{function}: the arrays must be NumPy arrays, got {library} arrays, which this function does not take yet"
        )
    return backend


def describe(value):
    """The type of a value as errors name it, with its library: ``numpy.ma.MaskedArray``, ``torch.Tensor``."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
