"""A backend as CONTRIBUTING says to add one, for a made-up library that has what the page asks of it and nothing more."""

import pathlib
import re
import sys
import types

import numpy as np
import pytest
from compare import assert_same_bits

import fastnorm
from fastnorm import _cpu, _dispatch

PAGE = pathlib.Path(__file__).parent.parent / "CONTRIBUTING.md"
OF_MODULE = ["ndarray", "asarray", "empty", "empty_like", "copyto", "may_share_memory", "broadcast_to"]
OF_ARRAYS = ["shape", "strides", "dtype", "ndim", "size", "itemsize", "flags"]
METHODS = ["astype", "copy", "reshape", "transpose", "swapaxes"]


class Array:
    """Memory of the toy library."""

    def __init__(self, values):
        self.values = values

    def __getattr__(self, name):
        if name in OF_ARRAYS:
            return getattr(self.values, name)
        if name in METHODS:
            return lambda *args: Array(getattr(self.values, name)(*args))
        raise AttributeError(name)

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.values.ctypes.data)

    def __getitem__(self, index):
        return Array(self.values[index])

    def __setitem__(self, index, value):
        self.values[index] = bare(value)

    def __add__(self, other):
        return Array(self.values + other)


def bare(value):
    """NumPy arrays in the place of those of the toy library."""
    if isinstance(value, Array):
        return value.values
    if isinstance(value, list | tuple):
        return getattr(type(value), "_make", type(value))(map(bare, value))
    return value


def wrapped(value):
    return Array(value) if isinstance(value, np.ndarray) else value


def function_of(module, name):
    return lambda *args: wrapped(getattr(module, name)(*bare(args)))


@pytest.fixture
def backend(monkeypatch):
    """The toy library and its backend, whose functions compute with the CPU's."""
    toy, backend = types.ModuleType("toy"), types.ModuleType("toy_backend")
    for name in OF_MODULE[1:]:
        setattr(toy, name, function_of(np, name))
    toy.ndarray = Array
    for name in _cpu.__all__:
        setattr(backend, name, function_of(_cpu, name))
    backend.DTYPES, backend.__all__ = ("float32", "float64"), list(_cpu.__all__)
    for module in (toy, backend):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for table in ("_BACKENDS", "_imported", "_library_of_type"):
        monkeypatch.setattr(_dispatch, table, dict(getattr(_dispatch, table)))
    _dispatch._BACKENDS["toy"] = ("toy_backend", ("toy.ndarray",))
    return backend


X, W = np.random.default_rng(0).standard_normal((2, 4, 3, 6)).astype(np.float32), np.linspace(0, 1, 6, dtype=np.float32)
TABLES = fastnorm.rope_tables(np.arange(3), 6)
_, LSE = fastnorm.attention(X, X, X, return_lse=True)
CALLS = {
    "rms_norm": (X, W),
    "layer_norm": (X, W, W),
    "unit_norm": (X,),
    "group_norm": (X, 2),
    "add_rms_norm": (X, X, W),
    "add_layer_norm": (X, X, W, W),
    "softmax": (X,),
    "log_softmax": (X,),
    "logsumexp": (X,),
    "rope": (X, *TABLES),
    "attention": (X, X[:, :2], X[:, :2], X[0, 0] > 0),
    "merge_attention": ([X, X + 1], [LSE, LSE]),
}


def shared(value):
    """Arrays of the toy library in the place of NumPy's."""
    return [shared(one) for one in value] if isinstance(value, list) else wrapped(value)


def call(name, args):
    if name == "attention":
        *args, mask = args
        return fastnorm.attention(*args, mask=mask[:, :3])
    return getattr(fastnorm, name)(*args)


def test_every_function_is_called():
    assert set(CALLS) == set(_cpu.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_results(backend, name):
    wanted, results = call(name, CALLS[name]), call(name, [shared(value) for value in CALLS[name]])
    for y, one in zip(results, wanted, strict=True) if isinstance(wanted, tuple) else [(results, wanted)]:
        assert type(y) is Array
        assert_same_bits(bare(y), one)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "rope"])
def test_results_in_place_and_over_the_mirror(backend, name):
    wanted = call(name, CALLS[name])
    for mirrored in (False, True):
        room = np.empty_like(X)
        x, out = Array(room[::-1] if mirrored else room), Array(room)
        x[...] = X
        assert getattr(fastnorm, name)(x, *map(wrapped, CALLS[name][1:]), out=out) is out
        assert_same_bits(room, wanted)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_there_yet(backend, name):
    backend.__all__.remove(name)
    with pytest.raises(TypeError, match=f"^{name}: .* got toy arrays, which this function does not take yet$"):
        call(name, [shared(value) for value in CALLS[name]])


def test_dtypes_are_the_backends(backend):
    for name in ("rms_norm", "softmax"):
        with pytest.raises(TypeError, match=f"^{name}: x must have dtype float32, float64 or an integer one, got float16"):
            getattr(fastnorm, name)(Array(X.astype(np.float16)))
    with pytest.raises(TypeError, match=r"weight must be a toy array as x is, got numpy\.ndarray"):
        fastnorm.rms_norm(Array(X), W)


@pytest.mark.skipif(not PAGE.exists(), reason="an installation without the repository")
def test_the_page_asks_for_what_the_toy_has():
    text = PAGE.read_text().split("that the library must share with NumPy")[1].split("\n\n")[0]
    assert re.findall(r"`([\w.+]+)`", text) == [*OF_MODULE, *OF_ARRAYS, *METHODS, "+", "data.ptr"]
