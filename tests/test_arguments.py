"""Wrong calls get a clear error and change nothing; odd but legal ones work."""

import numpy as np
import pytest
from compare import assert_same_bits

import fastnorm

X = np.ones((2, 3, 4), np.float32)
READ_ONLY = np.ones((2, 3, 4), np.float32)
READ_ONLY.flags.writeable = False


def masked():
    return np.ma.masked_array(np.ones((2, 4)), mask=np.eye(2, 4))


class Tensor:
    """Looks like an array; no documentation names it."""

    dtype, shape, ndim = np.dtype(np.float32), (2, 4), 2

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 4), np.float32)


Tensor.__module__ = "torch"

WRONG = [
    # (error, words that the message must hold, positional, keyword)
    (TypeError, "x masked", (masked(),), {}),
    (TypeError, "x bool", (np.ones((2, 4), bool),), {}),
    (TypeError, "x complex128", (np.ones((2, 4), complex),), {}),
    (TypeError, "x object", (np.array([None, 1.0]),), {}),
    (TypeError, "x <U1", (np.array([["a", "b"]]),), {}),
    (TypeError, "x datetime64", (np.array(["2020-01-01"], "M8[D]"),), {}),
    (TypeError, "x timedelta64", (np.array([1], "m8[s]"),), {}),
    (TypeError, "x torch.Tensor", (Tensor(),), {}),
    (TypeError, "x NoneType", (None,), {}),
    (TypeError, "x str", ("abc",), {}),
    (TypeError, "x list", ([[1.0], [2.0, 3.0]],), {}),
    (np.exceptions.AxisError, "x 0-dimensional", (np.float32(3),), {}),
    (np.exceptions.AxisError, "x 0-dimensional", (3.0,), {}),
    (np.exceptions.AxisError, "x 0-dimensional", (np.array(3),), {"axis": 0}),
    (np.exceptions.AxisError, "axis 3", (X,), {"axis": 3}),
    (np.exceptions.AxisError, "axis -4", (X,), {"axis": -4}),
    (np.exceptions.AxisError, "axis (-1, 3)", (X,), {"axis": (-1, 3)}),
    (TypeError, "axis 1.5", (X,), {"axis": 1.5}),
    (TypeError, "axis None", (X,), {"axis": None}),
    (ValueError, "axis (0, 1)", (X,), {"axis": (0, 1)}),
    (ValueError, "axis (0, 2)", (X,), {"axis": (0, 2)}),
    (ValueError, "axis (2, 1)", (X,), {"axis": (2, 1)}),
    (ValueError, "axis ()", (X,), {"axis": ()}),
    (ValueError, "eps -1e-06", (X,), {"eps": -1e-6}),
    (ValueError, "eps nan", (X,), {"eps": float("nan")}),
    (TypeError, "eps 'a'", (X,), {"eps": "a"}),
    (TypeError, "eps None", (X,), {"eps": None}),
    (TypeError, "weight_offset None", (X,), {"weight_offset": None}),
    (TypeError, "weight_offset 0j", (X,), {"weight_offset": 0j}),
    (TypeError, "eps 1j", (X,), {"eps": 1 + 1j}),
    (TypeError, "eps 1e-6", (X,), {"eps": np.array("1e-6")}),
    (TypeError, "eps bytearray", (X,), {"eps": bytearray(b"1")}),
    (TypeError, "eps array", (X,), {"eps": np.zeros(3)}),
    (ValueError, "eps float", (X,), {"eps": 10**400}),
    (TypeError, "x MaskedArray", ([np.ma.masked_array([1.0, 2.0], [0, 1])],), {}),
    (TypeError, "x MaskedConstant", ([[np.ma.masked, 1.0]],), {}),
    (TypeError, "weight_offset 'a'", (X,), {"weight_offset": "a"}),
    (ValueError, "weight (4,) (3,)", (X, np.ones(3, np.float32)), {}),
    (ValueError, "weight (4,) (1,)", (X, np.ones(1, np.float32)), {}),
    (ValueError, "weight (4,) (3, 4)", (X, np.ones((3, 4), np.float32)), {}),
    (ValueError, "weight (3, 4) (12,)", (X, np.ones(12, np.float32)), {"axis": (1, 2)}),
    (TypeError, "weight bool", (X, np.ones(4, bool)), {}),
    (TypeError, "weight complex128", (X, np.ones(4, complex)), {}),
    (TypeError, "weight object", (X, np.array([None] * 4)), {}),
    (TypeError, "weight MaskedArray", (X, np.ma.masked_array(np.ones(4))), {}),
    (TypeError, "weight numpy torch.Tensor", (X, Tensor()), {}),
    (ValueError, "out (2, 3, 4) (2, 3, 5)", (X,), {"out": np.zeros((2, 3, 5), np.float32)}),
    (ValueError, "out (2, 3, 4) (1, 2, 3, 4)", (X,), {"out": np.zeros((1, 2, 3, 4), np.float32)}),
    (ValueError, "out float32 float64", (X,), {"out": np.zeros((2, 3, 4))}),
    (ValueError, "out float32 >f4", (X,), {"out": np.zeros((2, 3, 4), ">f4")}),
    (ValueError, "out float32 int16", (np.ones((2, 4), np.int16),), {"out": np.zeros((2, 4), np.int16)}),
    (ValueError, "out read-only", (X,), {"out": READ_ONLY}),
    (ValueError, "out strides", (X,), {"out": np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), X.shape, (0, 0, 4))}),
    (TypeError, "out list", (X,), {"out": [1.0]}),
]
if np.dtype(np.longdouble).itemsize > 8:
    WRONG += [
        (TypeError, "x longdouble", (np.ones((2, 4), np.longdouble),), {}),
        (TypeError, "weight longdouble", (X, np.ones(4, np.longdouble)), {}),
    ]


@pytest.mark.parametrize(("error", "words", "args", "kwargs"), WRONG, ids=[f"{w[1]} {i}" for i, w in enumerate(WRONG)])
def test_wrong_calls(error, words, args, kwargs):
    arrays = [np.asarray(a) for a in (*args, kwargs.get("out")) if isinstance(a, np.ndarray) and a.dtype != object]
    kept = [a.tobytes() for a in arrays]
    with pytest.raises(error) as caught:
        fastnorm.rms_norm(*args, **kwargs)
    message = str(caught.value)
    assert message.startswith("rms_norm: ")
    words = words.replace("longdouble", str(np.dtype(np.longdouble)))
    for word in words.replace(", ", ",~").split():
        assert word.replace(",~", ", ").lower() in message.lower()
    assert kept == [a.tobytes() for a in arrays]


def test_matrix_is_refused():
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    with pytest.raises(TypeError, match="matrix"):
        fastnorm.rms_norm(matrix)


def test_a_wrong_weight_after_a_right_one(rng):
    """The shortcut for small calls must not let through what the long way refuses."""
    x = rng.standard_normal((3, 8)).astype(np.float32)
    fastnorm.rms_norm(x, np.ones(8, np.float32))
    for weight in (np.ones(7, np.float32), np.ones(1, np.float32), np.ones((3, 8), np.float32)):
        with pytest.raises(ValueError, match="weight must have shape"):
            fastnorm.rms_norm(x, weight)
    with pytest.raises(ValueError, match="eps"):
        fastnorm.rms_norm(x, eps=-1.0)
    for bad in (1e-6 + 0j, np.complex64(1e-6), "1e-6"):
        with pytest.raises(TypeError, match="eps must be a number"):
            fastnorm.rms_norm(x, eps=bad)
    for offset in (None, "", [0.0, 1.0], np.zeros(3), 0j):
        with pytest.raises(TypeError, match="weight_offset must be a number"):
            fastnorm.rms_norm(x, weight_offset=offset)
    assert_same_bits(fastnorm.rms_norm(x, eps=np.array(1e-6), weight_offset=np.array(0)), fastnorm.rms_norm(x))


@pytest.mark.parametrize("shape", [(3, 8), (8,), (300, 500)])
def test_the_second_call_is_the_first(rng, shape):
    """Shortcuts begin with the second call."""
    x, weight = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[-1]).astype(np.float32)
    for eps in (0.125, 0.25):
        for kwargs in ({}, {"weight": weight}, {"out": np.empty_like(x)}):
            first = fastnorm.rms_norm(x, eps=eps, **kwargs).copy()
            for _ in range(2):
                assert_same_bits(fastnorm.rms_norm(x, eps=eps, **kwargs), first)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4), (0, 0)])
@pytest.mark.parametrize("axis", [0, -1])
def test_empty(shape, axis):
    x = np.zeros(shape, np.float32)
    for out in (None, np.zeros(shape, np.float32), x):
        y = fastnorm.rms_norm(x, axis=axis, out=out)
        assert y.shape == shape
        assert y.dtype == np.float32
        assert out is None or y is out


@pytest.mark.parametrize(
    ("given", "result"),
    [("int8", "float32"), ("uint16", "float32"), ("int32", "float64"), ("uint64", "float64"), (">i2", "float32")],
)
def test_integers_become_floats(given, result):
    y = fastnorm.rms_norm(np.full((2, 4), 100, given))
    assert y.dtype == np.dtype(result)
    assert y.dtype.isnative
    np.testing.assert_allclose(y, 1, rtol=1e-6)


def test_lists_and_sequences():
    wanted = fastnorm.rms_norm(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 2.0]))
    assert_same_bits(fastnorm.rms_norm([[1.0, 2.0], [3.0, 4.0]], [1, 2]), wanted)
    assert_same_bits(fastnorm.rms_norm([(1.0, 2.0), (3.0, 4.0)], (1.0, 2.0)), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_never_widen(rng, dtype):
    x = rng.standard_normal((3, 6)).astype(dtype)
    wanted = fastnorm.rms_norm(x, np.arange(1, 7).astype(dtype))
    for weight in (
        np.arange(1, 7),
        np.arange(1, 7, dtype=np.uint8),
        np.arange(1, 7.0),
        np.arange(1, 7, dtype=">f4"),
        [1, 2, 3, 4, 5, 6],
    ):
        assert_same_bits(fastnorm.rms_norm(x, weight), wanted)


def test_weight_offset(rng):
    x, weight = rng.standard_normal((5, 70)).astype(np.float32), rng.standard_normal(70).astype(np.float32)
    assert_same_bits(fastnorm.rms_norm(x, weight, weight_offset=1.0), fastnorm.rms_norm(x, weight + np.float32(1)))
    assert_same_bits(fastnorm.rms_norm(x, weight_offset=1.0), fastnorm.rms_norm(x))


@pytest.mark.parametrize("eps", [1e-5, np.float32(1e-5), np.float64(1e-5), 0, 1, np.array(1e-5)])
def test_kinds_of_eps(eps):
    assert_same_bits(fastnorm.rms_norm(X, eps=eps), fastnorm.rms_norm(X, eps=float(eps)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trailing_axes(rng, count):
    x = rng.standard_normal((5, 6, 7)).astype(np.float32)
    axis = tuple(range(-count, 0))
    weight = rng.standard_normal(x.shape[-count:]).astype(np.float32)
    wanted = fastnorm.rms_norm(x.reshape(-1, weight.size), weight.ravel()).reshape(x.shape)
    assert_same_bits(fastnorm.rms_norm(x, weight, axis=axis), wanted)
    for odd in (np.asfortranarray(x), x[:, ::-1].copy()[:, ::-1]):
        out = np.empty_like(odd)
        assert fastnorm.rms_norm(odd, weight, axis=axis, out=out) is out
        assert_same_bits(out, wanted)
        assert fastnorm.rms_norm(odd, weight, axis=axis, out=odd) is odd
        assert_same_bits(odd, wanted)


@pytest.mark.parametrize("shape", [(10, 100), (700, 900)])
@pytest.mark.parametrize("axis", [0, 1])
def test_out_that_overlaps(rng, shape, axis):
    size = shape[0] * shape[1]
    for distance in (-1, 1, 40, -999):
        room = rng.standard_normal(size + 1000).astype(np.float32)
        start, end = max(0, -distance), max(0, distance)
        x, out = room[start : start + size].reshape(shape), room[end : end + size].reshape(shape)
        wanted = fastnorm.rms_norm(x.copy(), axis=axis)
        assert fastnorm.rms_norm(x, axis=axis, out=out) is out
        assert_same_bits(out, wanted)


def test_out_that_is_x_or_its_mirror_or_the_weight(rng):
    x = rng.standard_normal((6, 6)).astype(np.float32)
    wanted = fastnorm.rms_norm(x, x[2])
    for write in (lambda a: a, lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::-1]):
        a = x.copy()
        out = write(a)
        assert fastnorm.rms_norm(a, a[2], out=out) is out
        assert_same_bits(out, wanted)


def test_odd_outputs(rng):
    x, wanted = rng.standard_normal((6, 40)).astype(np.float32), None
    wanted = fastnorm.rms_norm(x)
    unaligned = np.ndarray(x.shape, x.dtype, buffer=bytearray(x.nbytes + 1), offset=1)
    for out in (np.empty_like(x, order="F"), np.empty((12, 80), np.float32)[::2, ::2], np.empty_like(x)[::-1, ::-1], unaligned):
        assert fastnorm.rms_norm(x, out=out) is out
        assert_same_bits(out, wanted)
        out[...] = x
        assert fastnorm.rms_norm(out, out=out) is out
        assert_same_bits(out, wanted)


@pytest.mark.parametrize("rank", [1, 2, 5, 17, 32])
def test_ranks(rng, rank):
    x = rng.standard_normal((1,) * (rank - 1) + (37,)).astype(np.float32)
    assert_same_bits(fastnorm.rms_norm(x).ravel(), fastnorm.rms_norm(x.ravel()))
    assert_same_bits(fastnorm.rms_norm(x.T, axis=0).ravel(), fastnorm.rms_norm(x.ravel()))


def test_subclasses_come_back_as_arrays(tmp_path, rng):
    memmap = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 8))
    memmap[...] = rng.standard_normal((4, 8))
    assert type(fastnorm.rms_norm(memmap)) is np.ndarray
    assert fastnorm.rms_norm(memmap, out=memmap) is memmap
