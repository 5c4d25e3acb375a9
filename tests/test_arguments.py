"""Wrong calls get a clear error and change nothing; odd but legal ones work."""

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
from calls import call, groups_of, inputs, parameters
from compare import BIASED, NORMS, assert_same_bits

import fastnorm
from fastnorm._bench import oracles

X = np.ones((2, 3, 4), np.float32)
ENDLESS: list = []
ENDLESS.append(ENDLESS)
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
    (TypeError, "x 64", (ENDLESS,), {}),
    (TypeError, "weight 64", (X, ENDLESS), {}),
    (TypeError, "weight_offset 'a'", (X,), {"weight_offset": "a"}),
    (ValueError, "weight_offset finite inf", (X,), {"weight_offset": float("inf")}),
    (ValueError, "weight_offset finite nan", (X,), {"weight_offset": float("nan")}),
    (ValueError, "weight (4,) (3,)", (X, np.ones(3, np.float32)), {}),
    (ValueError, "weight (4,) (1,)", (X, np.ones(1, np.float32)), {}),
    (ValueError, "weight (4,) (3, 4)", (X, np.ones((3, 4), np.float32)), {}),
    (ValueError, "weight (3, 4) (12,)", (X, np.ones(12, np.float32)), {"axis": (1, 2)}),
    (TypeError, "weight bool", (X, np.ones(4, bool)), {}),
    (TypeError, "weight complex128", (X, np.ones(4, complex)), {}),
    (TypeError, "weight object", (X, np.array([None] * 4)), {}),
    (TypeError, "weight MaskedArray may mean more than its numbers", (X, np.ma.masked_array(np.ones(4))), {}),
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


# The same for every function: what stands for one argument is put in the place of it.
W, H = np.ones(4, np.float32), np.ones((2, 3, 4), np.float32)
FOREIGN = [(TypeError, "torch.Tensor", Tensor()), (TypeError, "MaskedArray", masked())]
WRONG_DTYPES = [(TypeError, np.dtype(kind).name, np.ones((2, 3, 4), kind)) for kind in (bool, complex)]
WRONG_DTYPES += [(TypeError, "object", np.full((2, 3, 4), None)), (TypeError, "longdouble", np.ones((2, 3, 4), np.longdouble))]
WRONG_PARAMETERS = [
    (ValueError, "(4,) (3,)", np.ones(3)),
    (ValueError, "(4,) (1,)", np.ones(1)),
    (ValueError, "(4,) (1, 4)", np.ones((1, 4))),
    (ValueError, "(4,) ()", np.float32(1)),
    (TypeError, "bool", np.ones(4, bool)),
    (TypeError, "object", np.full(4, None)),
    (TypeError, "torch.Tensor", Tensor()),
    (TypeError, "<U1", ["a"] * 4),
]
WRONG_OUTS = [
    (ValueError, "(2, 3, 4) (2, 3, 5)", np.zeros((2, 3, 5), np.float32)),
    (ValueError, "(2, 3, 4) (24,)", np.zeros(24, np.float32)),
    (ValueError, "float32 float64", np.zeros((2, 3, 4))),
    (ValueError, "float32 float16", np.zeros((2, 3, 4), np.float16)),
    (ValueError, "float32 >f4", np.zeros((2, 3, 4), ">f4")),
    (ValueError, "writeable read-only", READ_ONLY),
    (ValueError, "strides (0, 0, 4)", np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), X.shape, (0, 0, 4))),
    (TypeError, "array list", [1.0]),
    (TypeError, "torch.Tensor", Tensor()),
]
AXIS_ERROR = np.exceptions.AxisError
WRONG_BY_ARGUMENT = {
    "x": [
        *FOREIGN,
        *WRONG_DTYPES,
        (TypeError, "NoneType", None),
        (TypeError, "list", [[1.0], [1.0, 2.0]]),
        (AXIS_ERROR, "0-dimensional", np.array(3.0)),
        (AXIS_ERROR, "0-dimensional", 3.0),
    ],
    "residual": [
        *FOREIGN,
        *WRONG_DTYPES,
        (TypeError, "None", None),
        (ValueError, "(2, 3, 4) (4,)", W),
        (ValueError, "(2, 3, 4) (1, 3, 4)", H[:1]),
        (ValueError, "(2, 3, 4) ()", 1.0),
    ],
    "weight": WRONG_PARAMETERS,
    "bias": WRONG_PARAMETERS,
    "num_groups": [
        (ValueError, "at least 1 4 got 0", 0),
        (ValueError, "got -2", -2),
        (ValueError, "divide 4 got 3", 3),
        (ValueError, "got 8", 8),
        (TypeError, "integer 2.0", 2.0),
        (TypeError, "integer None", None),
        (TypeError, "integer True", True),
        (TypeError, "integer '2'", "2"),
    ],
    "eps": [
        (ValueError, "-1e-06", -1e-6),
        (ValueError, "nan", float("nan")),
        (ValueError, "float", 10**400),
        (TypeError, "None", None),
        (TypeError, "'a'", "a"),
        (TypeError, "1j", 1j),
        (TypeError, "array", np.zeros(3)),
    ],
    "weight_offset": [(TypeError, "None", None), (TypeError, "'a'", "a"), (TypeError, "0j", 0j), (TypeError, "[0.0]", [0.0])],
    "axis": [(AXIS_ERROR, "3", 3), (AXIS_ERROR, "-4", -4), (TypeError, "integer 1.5", 1.5), (TypeError, "integer None", None)],
    "out": WRONG_OUTS,
    "residual_out": WRONG_OUTS,
}
SIGNATURES = {norm: list(inspect.signature(getattr(fastnorm, norm)).parameters) for norm in NORMS}


@pytest.mark.parametrize(("norm", "argument"), [(norm, a) for norm in NORMS for a in SIGNATURES[norm]])
def test_every_argument_of_every_function(norm, argument):
    """An error names the function, the argument, what it must be and what it was; and nothing has been written."""
    right = {"x": X, "residual": H, "num_groups": 2, "weight": W, "bias": W, "axis": -1, "out": np.zeros_like(X)}
    right["residual_out"] = np.zeros_like(X)
    right = {name: value for name, value in right.items() if name in SIGNATURES[norm]}
    getattr(fastnorm, norm)(**right)
    for written in ("out", "residual_out"):
        if written in right:
            right[written][...] = 7
    for error, words, value in WRONG_BY_ARGUMENT[argument]:
        if getattr(value, "dtype", None) == np.float64 and words == "longdouble":
            continue  # it is the same here
        with pytest.raises(error) as caught:
            getattr(fastnorm, norm)(**right | {argument: value})
        message = str(caught.value)
        assert message.startswith(f"{norm}: "), message
        assert argument in message, message
        for word in words.replace("longdouble", str(np.dtype(np.longdouble))).replace(", ", ",~").split():
            assert word.replace(",~", ", ").lower() in message.lower(), message
    for written in ("out", "residual_out"):
        assert written not in right or (right[written] == 7).all()
    assert (X == 1).all()


@pytest.mark.parametrize("norm", ["unit_norm", "group_norm", "add_rms_norm", "add_layer_norm"])
def test_one_axis_only(norm):
    arrays = [X, X] if norm.startswith("add_") else [X, 1] if norm == "group_norm" else [X]
    for axis in ((-1,), (1, 2), ()):
        with pytest.raises(TypeError, match=rf"^{norm}: axis must be an integer, got \("):
            getattr(fastnorm, norm)(*arrays, axis=axis)


@pytest.mark.parametrize("norm", ["add_rms_norm", "add_layer_norm"])
def test_results_must_not_overlap(rng, norm):
    function = getattr(fastnorm, norm)
    for shape in [(6, 8), (300, 500)]:
        x, residual = inputs(norm, rng, shape)
        kept = x.copy(), residual.copy()
        room = np.zeros(2 * x.size, np.float32)
        a, shifted = room[: x.size].reshape(shape), room[1 : x.size + 1].reshape(shape)
        overlapping = [
            (x, x),
            (residual, residual),
            (a, a),
            (a, shifted),
            (a, a[::-1]),
            (a, room[x.size - 1 : -1].reshape(shape)),
        ]
        for out, residual_out in overlapping:
            with pytest.raises(ValueError, match=f"^{norm}: residual_out must not overlap out"):
                function(x, residual, out=out, residual_out=residual_out)
        assert (x == kept[0]).all()
        assert (residual == kept[1]).all()
        assert (room == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["add_rms_norm", "add_layer_norm"])
@pytest.mark.parametrize("shape", [(6, 8), (250, 300)])
@pytest.mark.parametrize("axis", [0, -1])
def test_results_that_overlap_inputs_in_odd_ways(rng, norm, shape, axis):
    """As if the inputs had been copied first."""
    function, size = getattr(fastnorm, norm), shape[0] * shape[1]
    for distance in (-1, 1, 40, shape[1]):
        for places in [(0, 1, 2, 3), (0, 1, 0, 3), (0, 1, 3, 0), (0, 1, 1, 0), (0, 0, 0, 3), (0, 0, 3, 0)]:
            room = rng.standard_normal(4 * (size + 1200)).astype(np.float32)
            starts = [600 + place * (size + 1200) + (distance if i > 1 else 0) for i, place in enumerate(places)]
            x, residual, out, residual_out = (room[start : start + size].reshape(shape) for start in starts)
            wanted = function(x.copy(), residual.copy(), axis=axis)
            y, h = function(x, residual, axis=axis, out=out, residual_out=residual_out)
            assert y is out
            assert h is residual_out
            assert_same_bits(y, wanted[0])
            assert_same_bits(h, wanted[1])


@pytest.mark.parametrize("norm", ["add_rms_norm", "add_layer_norm"])
def test_x_added_to_itself(rng, norm):
    function = getattr(fastnorm, norm)
    for shape in [(6, 8), (300, 500)]:
        x = inputs(norm, rng, shape)[0]
        wanted = function(x, x.copy())
        for arrangement in ({}, {"out": 0}, {"residual_out": 0}):
            a = x.copy()
            y, h = function(a, a, **dict.fromkeys(arrangement, a))
            assert_same_bits(y, wanted[0])
            assert_same_bits(h, wanted[1])
        a = x.copy()
        y, h = function(a, a[::-1], residual_out=a)  # a mirror of itself
        assert_same_bits(h, x + x[::-1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(8, 12), (300, 500)])
def test_weights_that_are_written_over(rng, norm, shape):
    """A row of `out` as the weight, and another as the bias."""
    for axis in (1, -1):
        arrays = inputs(norm, rng, shape)
        kept = [a.copy() for a in arrays]
        weights = [arrays[0][2], arrays[0][3]][: 1 + (norm in BIASED)]
        wanted = call(norm, kept, axis, weights=[p.copy() for p in weights])
        results = call(norm, arrays, axis, arrays, weights)
        for y, one in zip(results, wanted, strict=True):
            assert_same_bits(y, one)


@pytest.mark.parametrize("norm", ["layer_norm", "group_norm", "add_rms_norm", "add_layer_norm"])
def test_odd_calls_that_are_legal(rng, norm):
    """Lists, integers, weights of any dtype, outputs of any layout, nothing at all."""
    shape = (4, 6, 10)
    arrays, weights = inputs(norm, rng, shape), parameters(norm, 6)
    wanted = call(norm, arrays, 1, weights=weights)
    for results in (
        call(norm, [arrays[0], *[a.tolist() for a in arrays[1:]]], 1, weights=weights)[:1],
        call(norm, arrays, 1, weights=[p.astype(np.float64) for p in weights]),
        call(norm, arrays, 1, weights=[p.tolist() for p in weights]),
        call(norm, arrays, np.int64(-2), weights=weights, eps=np.float32(1e-6 if norm == "add_rms_norm" else 1e-5)),
    ):
        np.testing.assert_allclose(results[0], wanted[0], rtol=1e-5, atol=1e-6)
    for make in (np.asfortranarray, lambda a: np.zeros((8, 12, 20), np.float32)[::2, ::-2, ::2], unaligned):
        outs = [make(np.empty_like(a)) for a in arrays]
        results = call(norm, arrays, 1, outs, weights)
        assert all(y is out for y, out in zip(results, outs, strict=True))
        for y, one in zip(results, wanted, strict=True):
            assert_same_bits(y, one)
    integers = [np.arange(240).reshape(shape).astype(kind) % 50 for kind in (np.int16, np.uint8)][: len(arrays)]
    results = call(norm, integers, 1)
    assert all(y.dtype == np.float32 for y in results)
    np.testing.assert_allclose(results[0], call(norm, [a.astype(np.float32) for a in integers], 1)[0], rtol=1e-6)
    assert call(norm, [a.astype(np.int32) for a in integers], 1)[0].dtype == np.float64
    for empty in [(0, 5), (5, 0), (2, 0, 4), (0, 3, 0), (2, 3, 0)]:
        for axis in range(len(empty)):
            nothing = [np.zeros(empty, np.float32) for _ in arrays]
            results = call(norm, nothing, axis, nothing)
            assert all(y is a for y, a in zip(results, nothing, strict=True))
            assert all(y.shape == empty for y in call(norm, nothing, axis, weights=[None]))


def unaligned(like):
    return np.ndarray(like.shape, like.dtype, buffer=bytearray(like.nbytes + 1), offset=1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 8), (4, 6, 10), (2, 4, 3, 70), (3, 4, 1, 1, 2)])
def test_every_axis_of_groups(rng, shape):
    """Channels anywhere, with a batch or (on axis 0) without; out of any layout."""
    x = rng.standard_normal(shape)
    for axis in range(-len(shape), len(shape)):
        groups = groups_of(shape[axis])
        weight, bias = parameters("group_norm", shape[axis], np.float64)
        wanted = oracles.group_norm(x, groups, weight, bias, axis=axis).astype(float)
        for odd in (x, np.asfortranarray(x), x[..., ::-1].copy()[..., ::-1], np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)):
            y = fastnorm.group_norm(odd, groups, weight, bias, axis=axis)
            np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-13)
            out = np.empty_like(odd)
            assert fastnorm.group_norm(odd, groups, weight, bias, axis=axis, out=out) is out
            assert_same_bits(out, y)
            odd = odd.copy("K")
            assert fastnorm.group_norm(odd, groups, weight, bias, axis=axis, out=odd) is odd
            assert_same_bits(odd, y)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trailing_axes_of_layer_norm(rng, count):
    x = rng.standard_normal((5, 6, 7)).astype(np.float32)
    axis = tuple(range(-count, 0))
    weight, bias = rng.standard_normal((2, *x.shape[-count:])).astype(np.float32)
    wanted = fastnorm.layer_norm(x.reshape(-1, weight.size), weight.ravel(), bias.ravel()).reshape(x.shape)
    assert_same_bits(fastnorm.layer_norm(x, weight, bias, axis=axis), wanted)
    with pytest.raises(ValueError, match="layer_norm: bias must have shape"):
        fastnorm.layer_norm(x, weight, bias.ravel()[1:], axis=axis)


def test_a_wrong_bias_after_a_right_one(rng):
    """The shortcut for small calls must not let through what the long way refuses."""
    x, right = rng.standard_normal((3, 8)).astype(np.float32), np.ones(8, np.float32)
    wanted = fastnorm.layer_norm(x, right, right)
    for bias in (np.ones(7, np.float32), np.ones(1, np.float32), np.ones((3, 8), np.float32)):
        for weight in (None, right):
            with pytest.raises(ValueError, match="layer_norm: bias must have shape"):
                fastnorm.layer_norm(x, weight, bias)
        with pytest.raises(ValueError, match="layer_norm: weight must have shape"):
            fastnorm.layer_norm(x, bias, right)
    with pytest.raises(ValueError, match="layer_norm: out must"):
        fastnorm.layer_norm(x, right, right, out=np.zeros((3, 7), np.float32))
    out = x.copy()
    fastnorm.layer_norm(out, right, out[1], out=out)
    assert_same_bits(out, fastnorm.layer_norm(x, right, x[1]))
    assert_same_bits(fastnorm.layer_norm(x, right, right), wanted)


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


@pytest.mark.parametrize("eps", [1e-5, np.float32(1e-5), np.float64(1e-5), 0, 1, np.array(1e-5), ml_dtypes.bfloat16(1e-5)])
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


def test_a_result_without_memory_of_its_own_is_refused_every_time():
    """The shortcut of small calls must not accept what the long way refuses."""
    row = np.arange(8, dtype=np.float32)
    x, residual = np.lib.stride_tricks.as_strided(row, (4, 8), (0, 4)), np.ones((4, 8), np.float32)
    for _ in range(3):
        fastnorm.add_rms_norm(residual.copy(), residual)
        with pytest.raises(ValueError, match="must have its own memory"):
            fastnorm.add_rms_norm(x, residual, out=x)
    assert (row == np.arange(8)).all()


@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e39), (np.float16, 1e39), (np.float64, np.inf)])
def test_an_eps_beyond_the_computation(dtype, eps):
    for shape in ((2, 4), (300, 400)):
        with pytest.raises(ValueError, match="rms_norm: eps must be within the range of float"):
            fastnorm.rms_norm(np.ones(shape, dtype), eps=eps)


Q = np.ones((2, 3, 4), np.float32)
NUMBERS = [  # every function and each of its arguments that is a number or an integer
    *((fastnorm.rms_norm, (X,), name) for name in ("eps", "axis", "weight_offset")),
    *((function, (X,), name) for function in (fastnorm.layer_norm, fastnorm.unit_norm) for name in ("eps", "axis")),
    *((fastnorm.group_norm, (X, 1), name) for name in ("eps", "axis")),
    (fastnorm.group_norm, (X,), "num_groups"),
    *((fastnorm.add_rms_norm, (X, X), name) for name in ("eps", "axis", "weight_offset")),
    *((fastnorm.add_layer_norm, (X, X), name) for name in ("eps", "axis")),
    *((function, (X,), name) for function in (fastnorm.softmax, fastnorm.log_softmax) for name in ("axis", "scale")),
    (fastnorm.logsumexp, (X,), "axis"),
    (fastnorm.rope_tables, ([0, 1],), "dim"),
    (fastnorm.rope_tables, ([0, 1], 4), "base"),
    *((fastnorm.attention, (Q, Q, Q), name) for name in ("q_start", "kv_lengths", "scale", "softcap", "eps")),
    (fastnorm.attention_scale, (), "head_dim"),
    (fastnorm.init_std, (), "fan_in"),
    (fastnorm.set_num_threads, (), "n"),
]


@pytest.mark.parametrize("value", [True, False, np.True_, np.array(True)], ids=repr)
@pytest.mark.parametrize(("function", "args", "name"), NUMBERS, ids=[f"{f.__name__} {name}" for f, _, name in NUMBERS])
def test_truth_values_are_no_numbers(function, args, name, value):
    """``axis=True`` would be axis 1, and ``eps=True`` 1.0: whoever writes that means another argument."""
    words = rf"^{function.__name__}: {name} must be (a|an) (number|integer).*, got .*{bool(value)}"
    with pytest.raises(TypeError, match=words):
        function(*args, **{name: value})


def test_truth_values_within_an_argument():
    with pytest.raises(TypeError, match=r"^rms_norm: axis must be an integer or a tuple of integers, got \(1, True\)"):
        fastnorm.rms_norm(X, axis=(1, True))
    with pytest.raises(TypeError, match=r"^attention: window must be a pair of integers, \(left, right\), got \(2, False\)"):
        fastnorm.attention(Q, Q, Q, window=(2, False))
    batch = np.ones((2, 1, 3, 4), np.float32)
    for name in ("kv_lengths", "q_start"):
        for value in ([True, 2], (2, np.False_), [[1, True]], [np.array(True), 2]):
            got = re.escape(repr(value))
            with pytest.raises(TypeError, match=rf"^attention: {name} must be an integer, or a list .*, got {got}$"):
                fastnorm.attention(batch, batch, batch, **{name: value})
    with pytest.raises(ValueError, match=r"^rope_tables: scaling must have positive numbers, got factor=True"):
        fastnorm.rope_tables([0, 1], 4, scaling={"type": "linear", "factor": True})
