"""Norms, softmax and RoPE of Dask arrays: bits of NumPy's results where chunks hold whole rows, their accuracy elsewhere."""

import functools
import operator
import pickle

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from calls import call, parameters
from compare import BIASED, LIMIT, NORMS, assert_same_bits, ulps
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fastnorm
from fastnorm._bench import attention_oracles, oracles

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32]
SOFTMAXES = ["softmax", "log_softmax", "logsumexp"]


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def computed(y, chunks=None):
    """What a lazy array gives, which must be what it said of itself."""
    assert isinstance(y, da.Array)
    assert type(y._meta) is np.ndarray
    assert (y._meta.dtype, y._meta.ndim) == (y.dtype, y.ndim)
    assert chunks is None or y.chunks == chunks
    result, blocks = dask.compute(y, y.to_delayed().tolist())
    assert (result.shape, result.dtype) == (y.shape, y.dtype)
    for place in np.ndindex(*y.numblocks):
        block = functools.reduce(operator.getitem, place, blocks)
        assert block.shape == tuple(sizes[i] for sizes, i in zip(y.chunks, place, strict=True))
    return result


def forbidden(shape, chunks, dtype=np.float32):
    """An array that cannot be computed."""

    def refuse(block):
        raise RuntimeError("computed")

    return da.zeros(shape, dtype, chunks=chunks).map_blocks(refuse, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))


# ------------------------------------------------------------------------------------------------------ whole rows
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_whole_rows_have_the_bits_of_numpy(rng, norm, dtype):
    arrays = [(3 * rng.standard_normal((5, 24, 70))).astype(dtype) for _ in range(1 + norm.startswith("add_"))]
    axis, chunks = (1, (2, 6, 70)) if norm == "group_norm" else (-1, (2, 7, 70))
    lazy = [da.from_array(a, chunks) for a in arrays]
    for y, wanted in zip(call(norm, lazy, axis), call(norm, arrays, axis), strict=True):
        assert_same_bits(computed(y, lazy[0].chunks), wanted)


@pytest.mark.parametrize("axis", [0, 1, -1, (-2, -1)], ids=str)
@pytest.mark.parametrize("functions", [["rms_norm", "layer_norm"], ["unit_norm", *SOFTMAXES]], ids=["norms", "others"])
def test_whole_rows_along_any_axis(rng, functions, axis):
    axis = -1 if "unit_norm" in functions and isinstance(axis, tuple) else axis
    x = rng.standard_normal((6, 20, 30)).astype(np.float32)
    axes = axis if isinstance(axis, tuple) else (axis,)
    lazy = da.from_array(x, tuple(-1 if a in axes or a - 3 in axes else 4 for a in range(3)))
    for function in functions:
        assert_same_bits(computed(getattr(fastnorm, function)(lazy, axis=axis)), getattr(fastnorm, function)(x, axis=axis))


def test_options_are_passed_on(rng):
    x, weight = rng.standard_normal((2, 6, 30)).astype(np.float32)[0], rng.standard_normal(30)
    lazy = da.from_array(x, (2, 30))
    options = {"eps": 0.3, "weight_offset": 1.0}
    assert_same_bits(computed(fastnorm.rms_norm(lazy, weight, **options)), fastnorm.rms_norm(x, weight, **options))
    assert_same_bits(computed(fastnorm.rms_norm(lazy, list(weight))), fastnorm.rms_norm(x, weight))
    assert_same_bits(computed(fastnorm.layer_norm(lazy, None, weight)), fastnorm.layer_norm(x, None, weight))
    assert_same_bits(computed(fastnorm.softmax(lazy, scale=-0.7)), fastnorm.softmax(x, scale=-0.7))
    kept = fastnorm.logsumexp(lazy, keepdims=True)
    assert kept.chunks == ((2, 2, 2), (1,))
    assert_same_bits(computed(kept), fastnorm.logsumexp(x, keepdims=True))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(50, 10), (1, 50, 10), (6, 1, 10), (10,)])
def test_rope(rng, shape, interleaved):
    x = rng.standard_normal((6, 50, 30)).astype(np.float32)
    cos, sin = rng.standard_normal((2, *shape))
    wanted = fastnorm.rope(x, cos, sin, interleaved=interleaved)
    lazy = da.from_array(x, (4, 20, 30))
    assert_same_bits(computed(fastnorm.rope(lazy, cos, sin, interleaved=interleaved), lazy.chunks), wanted)
    cut = da.from_array(x, (4, 20, 7))
    tables = [da.from_array(a, 3) for a in (cos, sin)]
    assert_same_bits(computed(fastnorm.rope(cut, *tables, interleaved=interleaved), lazy.chunks), wanted)


# -------------------------------------------------------------------------------------------------------- cut rows
@pytest.mark.parametrize("dim", [0, 8])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("chunks", [(), (3,), (3, 2)])
def test_rope_tables(rng, chunks, dtype, dim):
    positions = rng.integers(0, 1000, (7, 5)[: len(chunks)])
    scaling = {"rope_type": "linear", "factor": 2.0}
    wanted = fastnorm.rope_tables(positions, dim, scaling=scaling, dtype=dtype)
    lazy = da.from_array(positions, chunks)
    tables, again = (fastnorm.rope_tables(lazy, dim, scaling=scaling, dtype=dtype) for _ in range(2))
    assert [table.name for table in tables] == [table.name for table in again]
    scaling["factor"] = 3.0
    for table, expected in zip(tables, wanted, strict=True):
        assert_same_bits(computed(table, (*lazy.chunks, (dim // 2,))), expected)


def rows_of(kind, rng, shape, dtype):
    """Rows along the last axis that are hard on sums, in three chunks of it or more."""
    normal = rng.standard_normal(shape)
    n = shape[-1]
    edges = np.repeat([1.0, -1.0, 1e3], -(-n // 3))[:n]
    far = 1e30 if dtype == np.float32 else 1e300
    rows = {
        "normal": normal,
        "far from zero": normal + 1e6,
        "one part far off": normal + edges * 1e4,
        "huge": normal * far,
        "tiny": normal / far,
        "all sizes": normal * far ** edges.clip(-1, 1) * (edges < 100),
        "half zeros": normal * (edges > 0),
        "nearly equal": 40000 + (normal > 1),
        "parts equal": edges + 0 * normal,
    }
    return rows[kind].astype(dtype)


KINDS = [
    "normal", "far from zero", "one part far off", "huge", "tiny", "all sizes", "half zeros", "nearly equal", "parts equal",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "unit_norm"])
def test_cut_rows_are_as_exact_as_whole_ones(rng, norm, kind, dtype):
    for n, chunk, axis in ((9, 2, -1), (700, 33, 0), (20000, 2222, -1)):
        x = rows_of(kind, rng, (12, n), dtype)
        weights = [(rng.standard_normal(n) * 2.0 ** rng.integers(-3, 30, n)).astype(dtype), rng.standard_normal(n)]
        weights = weights[: 1 + (norm in BIASED)]
        bias = weights[1].astype(dtype) if norm in BIASED else None
        for eps in (0.0, 1e-5) if n == 700 else (0.0,):
            wanted = getattr(oracles, norm)(x, *weights, eps=eps)
            given = x if axis else x.T
            lazy = da.from_array(given, (5, chunk) if axis else (chunk, 5))
            y = computed(getattr(fastnorm, norm)(lazy, *weights, eps=eps, axis=axis), lazy.chunks)
            assert ulps(y if axis else y.T, wanted, bias=bias) <= LIMIT


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "unit_norm"])
def test_cut_rows_of_other_dtypes(rng, norm, dtype):
    x = (30 * rng.standard_normal((4, 300))).astype(dtype)
    y = computed(getattr(fastnorm, norm)(da.from_array(x, (3, 70))))
    assert y.dtype == getattr(fastnorm, norm)(x).dtype
    assert ulps(y, getattr(oracles, norm)(x)) <= LIMIT


def test_a_tuple_of_cut_axes(rng):
    x = rng.standard_normal((3, 20, 30)).astype(np.float32)
    weight, bias = rng.standard_normal((2, 20, 30)).astype(np.float32)
    for chunks in ((1, 7, 30), (2, 20, 8), (3, 6, 11)):
        lazy = da.from_array(x, chunks)
        y = computed(fastnorm.layer_norm(lazy, weight, bias, axis=(1, 2)), lazy.chunks)
        assert ulps(y, oracles.layer_norm(x, weight, bias, axis=(1, 2)), (1, 2), bias) <= LIMIT


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_numbers_give_exactly_the_bias(dtype):
    numbers = np.array([0.1, 40000.3, -1e30, 1e-42, 0], dtype)[:, None] + np.zeros(500, dtype)
    weight, bias = np.linspace(-1e30, 1e30, 500).astype(dtype), np.linspace(-1, 1, 500).astype(dtype)
    for chunk in (3, 30, 499):
        y = computed(fastnorm.layer_norm(da.from_array(numbers, (2, chunk)), weight, bias, eps=0.0))
        assert_same_bits(y, np.broadcast_to(bias, y.shape))


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "unit_norm"])
def test_special_values_of_cut_rows(rng, norm):
    """As in whole rows: what is not a number stays in its row, infinities follow the formula, zeros stay zeros."""
    x = rng.standard_normal((6, 200)).astype(np.float32)
    x[0, 150], x[1, 3], x[2, 70], x[3], x[4, :150] = np.nan, np.inf, -np.inf, 0, 0
    x[2, :60] *= np.float32(1e37)
    function = getattr(fastnorm, norm)
    y, wanted = computed(function(da.from_array(x, (4, 60)), eps=0.0)), function(x, eps=0.0)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-7)


def test_heavy_weights_bring_back_what_is_small():
    x = np.full((1, 300), 1e-30, np.float32)
    x[0, 0] = 1e10
    weight = np.full(300, 1e38, np.float32)
    weight[0] = 0
    y = computed(fastnorm.rms_norm(da.from_array(x, (1, 100)), weight, eps=0.0))
    assert ulps(y, oracles.rms_norm(x, weight, eps=0.0)) <= LIMIT


def test_short_rows_keep_their_chunks(rng):
    """Up to eight elements are put together, for sums that are exact, and cut again."""
    x = rng.standard_normal((4, 8))
    lazy = da.from_array(x, (2, 3))
    assert_same_bits(computed(fastnorm.layer_norm(lazy), lazy.chunks), fastnorm.layer_norm(x))


@pytest.mark.parametrize("norm", ["add_rms_norm", "add_layer_norm"])
@pytest.mark.parametrize("dtypes", [(np.float32, np.float32), (np.float16, np.float64), (np.float32, np.float16)])
def test_cut_sums(rng, norm, dtypes):
    x, residual = (rng.standard_normal((6, 300)).astype(dtype) for dtype in dtypes)
    weights = parameters(norm, 300)
    lazy = da.from_array(x, (2, 70)), da.from_array(residual, (3, 50))
    y, h = (computed(one, lazy[0].chunks) for one in getattr(fastnorm, norm)(*lazy, *weights))
    wanted, wanted_h = getattr(oracles, norm)(x, residual, *weights)
    assert_same_bits(h, wanted_h)
    assert y.dtype == dtypes[0]
    assert ulps(y, wanted, bias=weights[1] if norm in BIASED else None) <= LIMIT


def test_half_of_a_sum_computes_alone(rng):
    x = rng.standard_normal((6, 30))
    y, h = fastnorm.add_rms_norm(da.from_array(x, (3, 30)), da.from_array(x, 2))
    assert_same_bits(h.compute(), x + x)
    assert_same_bits(y.compute(), fastnorm.rms_norm(x + x))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("groups", [1, 2, 6, 24])
def test_groups_however_cut(rng, groups, axis):
    x = rng.standard_normal((24, 24, 24)).astype(np.float32) + 100
    weight, bias = rng.standard_normal((2, 24)).astype(np.float32)
    wanted = fastnorm.group_norm(x, groups, weight, bias, axis=axis)
    exact = oracles.group_norm(x, groups, weight, bias, axis=axis)
    for chunks in ((5, 24, 24), (24, 4, 24), (24, 5, 24), (5, (1, 12, 0, 11), 7), (24, 24, 1)):
        lazy = da.from_array(x, chunks)
        y = computed(fastnorm.group_norm(lazy, groups, weight, bias, axis=axis), lazy.chunks)
        np.testing.assert_allclose(y, wanted, rtol=0, atol=4e-6)
        assert np.abs(y - exact).max() <= LIMIT * np.spacing(np.float32(np.abs(exact).max()))


def test_parts_without_elements(rng):
    x = rng.standard_normal((4, 30)).astype(np.float32)
    for chunks in (((0, 4), (10, 0, 20)), ((4, 0), (0, 30, 0))):
        lazy = da.from_array(x, chunks)
        np.testing.assert_allclose(computed(fastnorm.layer_norm(lazy), lazy.chunks), fastnorm.layer_norm(x), atol=1e-6)
        np.testing.assert_allclose(computed(fastnorm.softmax(lazy), lazy.chunks), fastnorm.softmax(x), atol=1e-6)
        np.testing.assert_allclose(computed(fastnorm.logsumexp(lazy)), fastnorm.logsumexp(x), rtol=1e-6)
    for shape, chunks in (((0, 30), (1, 10)), ((4, 0), ((2, 2), (0, 0))), ((0, 0), 1)):
        lazy = da.zeros(shape, chunks=chunks)
        assert computed(fastnorm.rms_norm(lazy), lazy.chunks).shape == shape
        assert computed(fastnorm.softmax(lazy), lazy.chunks).shape == shape
        assert_same_bits(computed(fastnorm.logsumexp(lazy)), fastnorm.logsumexp(np.zeros(shape)))
        assert computed(fastnorm.group_norm(lazy, 1 if shape[1] == 0 else 3), lazy.chunks).shape == shape


def test_columns_are_added_up_as_rows_are(rng):
    """Not in one chain, as NumPy does along an axis that is not contiguous; so bits depend on cuts alone."""
    x = 0.1 + 1e-3 * rng.standard_normal((7000, 3))
    for function in (fastnorm.rms_norm, fastnorm.layer_norm, fastnorm.softmax):
        columns = function(da.from_array(x, (3000, 3)), axis=0)
        rows = function(da.from_array(x.T.copy(), (1, 3000)))
        assert_same_bits(computed(columns), np.ascontiguousarray(computed(rows).T))


def test_long_rows_join_in_a_tree():
    """The error of a chain of a thousand sums of equal numbers would be seen."""
    x = np.full((1, 3000), 0.1)
    lazy = fastnorm.rms_norm(da.from_array(x, (1, 1)), eps=0.0)
    levels = {key[1] for key in lazy.dask if isinstance(key, tuple) and key[0].endswith("-join")}
    assert levels == {0, 1}
    assert np.abs(lazy.compute() - 1).max() <= 2 * np.finfo(float).eps


# --------------------------------------------------------------------------------------------------------- softmax
@settings(max_examples=30, deadline=None)
@example(34844, np.int32, (70, 700), (3, 1), 0, 30.0, 0.125, 0.0)  # sums of 24 and of three chunks, in float64
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(st.sampled_from([1, 7, 70]), st.sampled_from([2, 17, 700])),
    pieces=st.tuples(st.integers(1, 3), st.integers(1, 20)),
    axis=st.integers(0, 1),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    scale=st.sampled_from([1.0, 0.125, -3.7, 0.0]),
    offset=st.sampled_from([0.0, 1000.0]),
)
def test_softmax_of_cut_rows(seed, dtype, shape, pieces, axis, size, scale, offset):
    """4 units in the last place of each probability, 6 in float64, and 1 of the row's largest; half a unit of 16 bits."""
    x = (np.random.default_rng(seed).standard_normal(shape) * size + offset).astype(dtype)
    lazy = da.from_array(x, tuple(-(-n // count) for n, count in zip(shape, pieces, strict=True)))
    x = x.astype(np.result_type(dtype, np.float32)) if dtype is np.int32 else x
    y = computed(fastnorm.softmax(lazy, axis=axis, scale=scale), lazy.chunks)
    wanted = attention_oracles.softmax(x, axis, scale)
    kind = np.float64 if y.dtype == np.float64 else np.float32
    units = 6 if kind == np.float64 else 4
    allowed = units * np.spacing(wanted.astype(kind)) + np.spacing(wanted.max(axis, keepdims=True).astype(kind))
    rough = {2: 2.0**-8, 4: 3e-7, 8: 4e-16}[y.itemsize]
    allowed = allowed + (np.abs(wanted) * rough + 2.0**-25 if y.itemsize == 2 else 0)
    assert (np.abs(y.astype(wanted.dtype) - wanted) <= allowed).all()
    lse = attention_oracles.logsumexp(x, axis)
    np.testing.assert_allclose(computed(fastnorm.logsumexp(lazy, axis=axis)).astype(wanted.dtype), lse, rtol=rough, atol=rough)
    logarithms = computed(fastnorm.log_softmax(lazy, axis=axis)).astype(wanted.dtype)
    distances = attention_oracles.wide(x) - np.expand_dims(lse, axis)
    np.testing.assert_allclose(logarithms, distances, rtol=rough, atol=4 * rough)


@pytest.mark.parametrize("function", SOFTMAXES)
def test_special_scores(function):
    x = np.zeros((9, 70), np.float64)
    x[0], x[1, 0], x[2, 60], x[3, 1:], x[4, :65] = -np.inf, np.inf, np.nan, -np.inf, -np.inf
    x[5, 3], x[5, 40], x[6, ::2], x[6, 1::2] = np.inf, np.nan, 1e308, -1e308
    x[7] = np.linspace(0, -800, 70)
    wanted = getattr(fastnorm, function)(x)
    y = computed(getattr(fastnorm, function)(da.from_array(x, (4, 20))))
    np.testing.assert_allclose(y, wanted, rtol=1e-13, atol=1e-15)
    if function != "logsumexp":
        small = {"scale": 1e-308}
        y = computed(getattr(fastnorm, function)(da.from_array(x, (4, 20)), **small))
        np.testing.assert_allclose(y, getattr(fastnorm, function)(x, **small), rtol=1e-13, atol=1e-15)


# ----------------------------------------------------------------------------------------------------- lazy, named
def lazily(x):
    """Every function of one array, by name."""
    cos, sin = np.ones((2, x.shape[0], 2))
    calls = {norm: lambda norm=norm: call(norm, [x] * (1 + norm.startswith("add_")), weights=[]) for norm in NORMS}
    calls |= {name: lambda name=name: [getattr(fastnorm, name)(x)] for name in SOFTMAXES}
    return calls | {"rope": lambda: [fastnorm.rope(x, cos, sin)]}


@pytest.mark.parametrize("chunks", [(2, 24), (2, 5)])
@pytest.mark.parametrize("name", [*NORMS, *SOFTMAXES, "rope"])
def test_nothing_is_computed_before_it_is_asked_for(name, chunks):
    for y in lazily(forbidden((4, 24), chunks))[name]():
        with pytest.raises(RuntimeError, match="computed"):
            y.compute()


@pytest.mark.parametrize("chunks", [(2, 24), (2, 5)])
def test_names_are_those_of_what_is_done(rng, chunks):
    """The same call has the same name, another one another."""
    x = rng.standard_normal((4, 24))
    first, again = lazily(da.from_array(x, chunks)), lazily(da.from_array(x, chunks))
    for name, function in first.items():
        names = [y.name for y in function()]
        assert names == [y.name for y in again[name]()]
        assert all(one.partition("-")[0] in (name, "rechunk-merge", "getitem") for one in names), names
    lazy, weight = da.from_array(x, chunks), np.ones(24)
    different = [
        fastnorm.rms_norm(lazy), fastnorm.rms_norm(lazy, eps=0.1), fastnorm.rms_norm(lazy, weight),
        fastnorm.rms_norm(lazy, weight, weight_offset=1.0), fastnorm.rms_norm(lazy, axis=0), fastnorm.unit_norm(lazy),
        fastnorm.softmax(lazy), fastnorm.softmax(lazy, scale=2.0), fastnorm.group_norm(lazy, 2), fastnorm.group_norm(lazy, 3),
    ]  # fmt: skip
    assert len({y.name for y in different}) == len(different)


@pytest.mark.parametrize("chunk", [50000, 10000])
def test_weights_are_in_the_graph_once(chunk):
    lazy, weight = da.ones((40, 50000), chunks=(1, chunk), dtype=np.float32), np.ones(50000, np.float32)
    y = fastnorm.layer_norm(lazy, weight, 2 * weight)
    sizes = [len(pickle.dumps(task)) for task in dict(y.dask).values()]
    assert sum(size > 4 * chunk for size in sizes) == 2 * (50000 // chunk)


def test_lazy_weights(rng):
    x, weight = rng.standard_normal((6, 30)), rng.standard_normal(30).astype(np.float32)
    for chunks in ((2, 30), (3, 7)):
        y = fastnorm.rms_norm(da.from_array(x, chunks), da.from_array(weight, 4), weight_offset=1.0)
        np.testing.assert_allclose(computed(y), fastnorm.rms_norm(x, weight, weight_offset=1.0), rtol=1e-15)


def test_lazy_weights_take_no_memory_before_they_are_computed():
    """A weight of 8 TB."""
    x, weight = (da.zeros(1 << 40, chunks=1 << 37, dtype=dtype) for dtype in (np.float32, np.float64))
    assert fastnorm.layer_norm(x, weight, weight).shape == x.shape
    assert fastnorm.rms_norm(x, weight, weight_offset=1.0).shape == x.shape


@pytest.mark.parametrize("axis", [0, 1])
def test_several_chunks_without_elements(axis):
    x, whole = da.ones((20, 0), chunks=((20,), (0, 0))), da.ones((20, 0))
    for y in fastnorm.add_layer_norm(x, whole, axis=axis):
        assert computed(y, x.chunks).shape == (20, 0)
    nothing = da.ones(0, chunks=((0, 0),))
    assert computed(fastnorm.logsumexp(nothing)) == -np.inf
    assert computed(fastnorm.rms_norm(nothing, whole[0])).shape == (0,)


def test_lazy_weights_beyond_float32_warn_nobody():
    x, weight = da.ones((2, 30), chunks=(1, 7), dtype=np.float32), da.from_array(np.full(30, 1e300), 4)
    with np.errstate(all="raise"):
        assert (fastnorm.rms_norm(x, weight).compute() == np.inf).all()


def test_in_threads(rng):
    x = rng.standard_normal((40, 3000)).astype(np.float32)
    lazy = fastnorm.softmax(fastnorm.layer_norm(da.from_array(x, (7, 500))))
    wanted = fastnorm.softmax(fastnorm.layer_norm(x))
    np.testing.assert_allclose(lazy.compute(scheduler="threads", num_workers=4), wanted, atol=1e-7)


# ---------------------------------------------------------------------------------------------------------- errors
WRONG = [
    ("rms_norm", (np.ones(5),), {}),
    ("rms_norm", (np.ones(24, complex),), {}),
    ("rms_norm", ("a",), {}),
    ("rms_norm", (), {"eps": -1.0}),
    ("rms_norm", (), {"eps": "a"}),
    ("rms_norm", (), {"axis": 2}),
    ("rms_norm", (), {"axis": (0,)}),
    ("layer_norm", (None, np.ones(23)), {}),
    ("unit_norm", (), {"axis": (0, 1)}),
    ("rms_norm", (), {"weight_offset": None}),
    ("group_norm", (5,), {}),
    ("group_norm", (2.5,), {}),
    ("group_norm", (4, np.ones(4)), {}),
    ("softmax", (), {"scale": "a"}),
    ("softmax", (), {"scale": np.nan}),
    ("log_softmax", (), {"scale": np.inf}),
    ("softmax", (), {"axis": 0.5}),
    ("logsumexp", (), {"keepdims": 1}),
    ("logsumexp", (), {"axis": -3}),
    ("rope", (np.ones((3, 2)), np.ones((3, 2))), {}),
    ("rope", (np.ones((4, 2)), np.ones((4, 3))), {}),
    ("rope", (np.ones((4, 13)), np.ones((4, 13))), {}),
    ("rope", (np.ones((4, 2)), np.ones((4, 2))), {"interleaved": 1}),
]


@pytest.mark.parametrize(("name", "args", "options"), WRONG, ids=[f"{w[0]} {i}" for i, w in enumerate(WRONG)])
def test_errors_are_those_of_numpy(name, args, options):
    """Of the same type and in the same words, when the graph is built."""
    messages = []
    for x in (np.ones((4, 24), np.float32), forbidden((4, 24), 3)):
        with pytest.raises((TypeError, ValueError)) as raised:
            getattr(fastnorm, name)(x, *args, **options)
        messages.append((raised.type, str(raised.value)))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("dtype", [bool, complex, "datetime64[s]", object])
def test_wrong_dtypes(dtype):
    for name in ("rms_norm", "softmax"):
        with pytest.raises(TypeError, match=rf"^{name}: x must have dtype .*, got "):
            getattr(fastnorm, name)(forbidden((4, 24), 3, dtype))


def unknown():
    x = da.ones((4, 24), chunks=2)
    return x[x[:, 0] > 0]


X = da.ones((4, 24), chunks=3)
REFUSED = [
    (TypeError, "out must be None", lambda: fastnorm.rms_norm(X, out=np.empty((4, 24)))),
    (TypeError, "out must be None", lambda: fastnorm.softmax(X, out=X)),
    (TypeError, "residual_out must be None", lambda: fastnorm.add_rms_norm(X, X, residual_out=np.empty((4, 24)))),
    (TypeError, "residual must be a Dask array", lambda: fastnorm.add_rms_norm(X, np.ones((4, 24)))),
    (ValueError, "residual must have the shape", lambda: fastnorm.add_layer_norm(X, X[:2])),
    (ValueError, "x must have chunks of known sizes", lambda: fastnorm.layer_norm(unknown())),
    (ValueError, "x must have chunks of known sizes", lambda: fastnorm.logsumexp(unknown())),
    (ValueError, "weight must have chunks of known sizes", lambda: fastnorm.rms_norm(X, unknown()[:, 0])),
    (TypeError, "weight must be a numpy array", lambda: fastnorm.rms_norm(np.ones((4, 24)), da.ones(24))),
    (TypeError, "x must be a list of numbers", lambda: fastnorm.rms_norm([X[0], X[1]])),
    (TypeError, "eps must be a number", lambda: fastnorm.rms_norm(np.ones(4), eps=da.ones(()))),
    (TypeError, "x must be a NumPy, CuPy or Dask array.*MaskedArray", lambda: fastnorm.rms_norm(da.ma.masked_equal(X, 1))),
    (TypeError, "rope_tables: positions must have dtype", lambda: fastnorm.rope_tables(X > 0, 4)),
    (ValueError, "rope_tables: dim must be even", lambda: fastnorm.rope_tables(X, 5)),
    (TypeError, "rope_tables: scaling must be a dict", lambda: fastnorm.rope_tables(X, 4, scaling=3)),
    (ValueError, "positions must have chunks of known sizes", lambda: fastnorm.rope_tables(unknown(), 4)),
    (np.exceptions.AxisError, "x must have an axis", lambda: fastnorm.rms_norm(X.sum())),
]


@pytest.mark.parametrize(("error", "words", "function"), REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(error, words, function):
    with pytest.raises(error, match=words):
        function()
