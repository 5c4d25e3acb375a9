"""Attention of Dask arrays, however they are cut."""

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from compare import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import DTYPES, OPTIONS, WRONG, K, Q, arrays

import fastnorm
from fastnorm._bench import attention_oracles as oracles


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def tasks(y, kind):
    """How many tasks of a kind there are before anything is optimised."""
    return sum(isinstance(key, tuple) and key[0].startswith(kind) for key in y.dask)


def lazy(array, rng):
    """A random cutting."""
    return da.from_array(array, tuple(max(1, min(n, int(rng.integers(1, 1 + n)))) for n in array.shape))


def assert_right(q, k, v, lazily, **options):
    """The contract's allowance, once for each merge as well; half a unit of 16 bits."""
    masks = {"mask": options["mask"].compute()} if isinstance(options.get("mask"), da.Array) else {}
    one_head = [a[None] for a in (q, k, v)] if q.ndim == 2 else [q, k, v]
    wanted, wanted_lse, (score, value) = oracles.attention(*one_head, **options | masks)
    if q.ndim == 2:
        wanted, wanted_lse, score, value = wanted[0], wanted_lse[0], score[0], value[0]
    with np.errstate(all="raise"):
        y, logarithms = fastnorm.attention(*lazily, return_lse=True, **options)
        out, lse = dask.compute(y, logarithms)
    assert (y.shape, y.dtype) == (out.shape, out.dtype) == (wanted.shape, q.dtype)
    assert (logarithms.shape, logarithms.dtype) == (lse.shape, lse.dtype) == (wanted_lse.shape, np.promote_types(q.dtype, "f4"))
    assert y.chunks[:-1] == logarithms.chunks
    assert y.chunks[-2] == lazily[0].chunks[-2]
    assert q.ndim == 2 or y.chunks[-3] == lazily[0].chunks[-3]
    unit = np.finfo(np.float64).eps if q.dtype == np.float64 else np.finfo(np.float32).eps
    allowed = ((32 + 8 * score) * unit * value)[..., None] + 1e-44
    if q.itemsize == 2:
        allowed = allowed + np.abs(wanted) * (2.0**-8 if q.dtype == ml_dtypes.bfloat16 else 2.0**-11) + 2.0**-25
    assert (np.abs(out.astype(wanted.dtype) - wanted) <= allowed).all()
    np.testing.assert_allclose(lse, wanted_lse.astype(lse.dtype), rtol=1e-5, atol=2e-5)
    return y


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(list(DTYPES)),
    lengths=st.tuples(st.sampled_from([1, 7, 40]), st.sampled_from([1, 9, 70])),
    heads=st.sampled_from([None, (2, 1), (6, 2), (4, 4), (12, 3)]),
    batch=st.sampled_from([(), (3,), (2, 2)]),
    one_batch=st.booleans(),
    mask=st.sampled_from([None, "bool", "float32"]),
    broadcast=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    lazy_mask=st.booleans(),
    more=st.frozensets(st.sampled_from(["alibi_slopes", "sinks", "kv_lengths", "starts"])),
    options=OPTIONS,
)
def test_any_options_and_any_cuts(seed, dtype, lengths, heads, batch, one_batch, mask, broadcast, lazy_mask, more, options):
    rng = np.random.default_rng(seed)
    batch = batch if heads else ()
    q, k, v = arrays(rng, dtype, batch, *(heads or (1, 1)), *lengths, 5, 3)
    v = v[(slice(1),) * len(batch)] if one_batch else v
    if not heads:
        q, k, v = q[0], k[0], v[0]
    n_heads = heads[0] if heads else 1
    if mask:
        shape = tuple(1 if one else n for one, n in zip(broadcast, (n_heads, *lengths), strict=True))[0 if heads else 1 :]
        values = rng.random(shape) < 0.7
        options["mask"] = values if mask == "bool" else np.where(values, rng.standard_normal(shape), -np.inf).astype(mask)
        options["mask"] = lazy(options["mask"], rng) if lazy_mask else options["mask"]
    if "alibi_slopes" in more:
        options["alibi_slopes"] = (2.0 ** -np.arange(1, n_heads + 1)).astype(np.float32)
    if "sinks" in more:
        options["sinks"] = rng.standard_normal(n_heads).astype(np.float32)
    if "kv_lengths" in more:
        options["kv_lengths"] = rng.integers(0, lengths[1] + 1, batch)
    if "starts" in more:
        options["q_start"] = rng.integers(-3, lengths[1] + 3, batch)
    assert_right(q, k, v, [lazy(a, rng) for a in (q, k, v)], **options)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_whole_heads_have_the_bits_of_numpy(rng, dtype):
    q, k, v = arrays(rng, dtype, (3, 2), 4, 2, 20, 70)
    lazily = [da.from_array(a, (2, 1, heads, -1, -1)) for a, heads in ((q, 1), (k, 1), (v, 2))]
    options = {"is_causal": True, "sinks": [1.0, 2.0, 3.0, 4.0], "kv_lengths": rng.integers(0, 70, (3, 2))}
    y = fastnorm.attention(*lazily, **options)
    assert type(y._meta) is np.ndarray
    assert y.chunks == ((2, 1), (1, 1), (1, 1, 1, 1), (20,), (16,))
    assert_same_bits(y.compute(), fastnorm.attention(q, k, v, **options))


@pytest.mark.slow
def test_parts_of_16_bits_are_rounded_once(rng):
    q, k, v = arrays(rng, "bfloat16", n_queries=8, n_keys=640)
    parts = [da.from_array(a, (-1, 10, -1)) for a in (q, k, v)]
    wide = oracles.attention(q, k, v)[0]
    error = lambda y: np.abs(y.astype(np.float64) - wide).mean()  # noqa: E731
    assert error(fastnorm.attention(*parts).compute()) <= 1.02 * error(fastnorm.attention(q, k, v))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 100),
        ({"is_causal": True}, 55),
        ({"is_causal": True, "q_start": 5}, 64),
        ({"window": (10, 0)}, 19),
        ({"window": (0, 10)}, 19),
        ({"window": (5, 5)}, 28),
        ({"is_causal": True, "window": (25, -1)}, 34),
        ({"kv_lengths": 35}, 40),
        ({"kv_lengths": 35, "q_start": 0, "is_causal": True}, 34),
        ({"kv_lengths": 0}, 0),
        ({"is_causal": True, "q_start": -1000}, 0),
    ],
    ids=str,
)
def test_pairs_that_see_nothing_are_no_tasks(rng, options, count):
    q = rng.standard_normal((1, 100, 4))
    lazily = [da.from_array(q, (1, 10, 4))] * 3
    y = assert_right(q, q, q, lazily, **options)
    calls = tasks(y, "attention-part") + sum(
        task[0].__class__.__name__ == "partial" and "attention-both" in str(key[0]) and len(task) == 10
        for key, task in dict(y.dask).items()
        if isinstance(key, tuple) and isinstance(task, tuple)
    )
    assert calls == count


def test_lengths_of_each_element_of_the_batch(rng):
    """A chunk of keys that one element sees is a task for its chunk of the batch alone."""
    q = rng.standard_normal((2, 1, 60, 4))
    options = {"kv_lengths": np.array([60, 15]), "q_start": 0}
    assert tasks(assert_right(q, q, q, [da.from_array(q, (1, 1, -1, 4)), *[da.from_array(q, (1, 1, 10, 4))] * 2], **options),
                 "attention-part") == 8  # fmt: skip
    assert tasks(assert_right(q, q, q, [da.from_array(q, (2, 1, -1, 4)), *[da.from_array(q, (2, 1, 10, 4))] * 2], **options),
                 "attention-part") == 6  # fmt: skip


def test_hidden_keys_stay_hidden(rng):
    """Of chunks that are not there, and within those that are."""
    q = rng.standard_normal((1, 60, 4))
    k, v = q.copy(), q.copy()
    k[:, 25:], v[:, 25:] = np.nan, np.inf
    lazily = [da.from_array(a, (1, 10, 4)) for a in (q, k, v)]
    wanted = fastnorm.attention(q[:, :25], k[:, :25], v[:, :25], is_causal=True)
    y = fastnorm.attention(*lazily, is_causal=True, q_start=0)[:, :25].compute()
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-14)


def test_many_parts_join_in_a_tree(rng):
    q, k, v = arrays(rng, "float32", n_queries=4, n_keys=600)
    lazily = [da.from_array(a, (-1, 2, -1)) for a in (q, k, v)]
    y = assert_right(q, k, v, lazily)
    joins = [key for key in y.dask if isinstance(key, tuple) and key[0].endswith("-join")]
    assert {key[1] for key in joins} == {0, 1}
    with dask.config.set(split_every=4):
        narrow = assert_right(q, k, v, lazily)
    assert narrow.name != y.name  # other bits
    joins = [key for key in narrow.dask if isinstance(key, tuple) and key[0].endswith("-join")]
    assert {key[1] for key in joins} == {0, 1, 2, 3}


@pytest.mark.slow
def test_small_results_warn_nobody(rng):
    """Parts of 16 bits, whose values are below those of float16."""
    q, k, v = arrays(rng, "float16", n_keys=60)
    lazily = [da.from_array(a, (-1, 10, -1)) for a in (q, k, v * v.dtype.type(1e-5))]
    with np.errstate(all="raise"):
        assert np.isfinite(fastnorm.attention(*lazily).compute()).all()


@pytest.mark.parametrize("shape", [(0, 5, 4, 3), (2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0)])
def test_empty(shape):
    n_batch, n_queries, n_keys, value_size = shape
    q, k, v = (da.ones((n_batch, 2, *own), chunks=2) for own in ((n_queries, 8), (n_keys, 8), (n_keys, value_size)))
    out, lse = dask.compute(*fastnorm.attention(q, k, v, return_lse=True, sinks=[0.0, 1.0]))
    assert out.shape == (n_batch, 2, n_queries, value_size)
    assert lse.shape == (n_batch, 2, n_queries)
    assert n_keys or (lse == [[[0], [1]]]).all()


def test_merging(rng):
    q, k, v = arrays(rng, "float32", (3,), n_queries=20)
    parts = [fastnorm.attention(q, k[..., i::2, :], v[..., i::2, :], return_lse=True) for i in (0, 1)]
    outs, lses = zip(*parts, strict=True)
    lazily = [da.from_array(a, (2, 1, 7, 5)) for a in outs], [da.from_array(a, (1, 1, 20)) for a in lses]
    merged, wanted = fastnorm.merge_attention(*lazily), fastnorm.merge_attention(outs, lses)
    for y, one in zip(merged, wanted, strict=True):
        assert_same_bits(y.compute(), one)
    stacked = fastnorm.merge_attention(da.stack(lazily[0]), da.stack(lazily[1]))
    assert_same_bits(stacked[0].compute(), wanted[0])


def test_lazy_and_named(rng):
    def refuse(block):
        raise RuntimeError("computed")

    q = da.zeros((1, 4, 30, 8), chunks=(1, 2, 10, 8)).map_blocks(refuse, dtype=float, meta=np.empty((0,) * 4))
    y = fastnorm.attention(q, q, q, is_causal=True)
    with pytest.raises(RuntimeError, match="computed"):
        y.compute()
    with pytest.raises(RuntimeError, match="computed"):
        fastnorm.merge_attention([q, q], [q[..., 0], q[..., 0]])[0].compute()
    x = da.from_array(rng.standard_normal((1, 4, 30, 8)), (1, 2, 10, 8))
    calls = [{}, {"is_causal": True}, {"window": (3, 0)}, {"scale": 1.0}, {"sinks": np.ones(4)}, {"kv_lengths": 20}]
    names = [[fastnorm.attention(x, x, x, **options).name for options in calls] for _ in range(2)]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(calls)
    assert all(name.startswith("attention-") for name in names[0])


# ---------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("error", "args", "options"), [(w[0], w[2], w[3]) for w in WRONG if "out" not in w[3]], ids=lambda w: None
)
def test_errors_are_those_of_numpy(error, args, options):
    """Of the same type and in the same words, when the graph is built."""
    messages = []
    for inputs in (args, [da.from_array(a, 2) for a in args]):
        with pytest.raises(error, match=r"^attention: ") as raised:
            fastnorm.attention(*inputs, **options)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def unknown(x):
    return x[x[..., :1, :1, :1].ravel() > 0]


LAZY_Q, LAZY_K = da.from_array(Q, 2), da.from_array(K, 2)
REFUSED = [
    (TypeError, "k must be a Dask array as q is", lambda: fastnorm.attention(LAZY_Q, K, K)),
    (TypeError, "k must be a numpy array as q is", lambda: fastnorm.attention(Q, LAZY_K, K)),
    (TypeError, "out must be None", lambda: fastnorm.attention(LAZY_Q, LAZY_K, LAZY_K, out=Q)),
    (TypeError, "sinks must be a NumPy", lambda: fastnorm.attention(LAZY_Q, LAZY_K, LAZY_K, sinks=da.ones(4))),
    (TypeError, "kv_lengths must be", lambda: fastnorm.attention(LAZY_Q, LAZY_K, LAZY_K, kv_lengths=da.ones(1, int))),
    (TypeError, "kv_lengths must be", lambda: fastnorm.attention(Q, K, K, kv_lengths=da.ones(1, int))),
    (TypeError, "mask must be a numpy array", lambda: fastnorm.attention(Q, K, K, mask=da.ones((3, 5), dtype=bool))),
    (TypeError, "mask must have dtype", lambda: fastnorm.attention(LAZY_Q, LAZY_K, LAZY_K, mask=da.ones((3, 5), dtype=int))),
    (ValueError, "k must have chunks of known", lambda: fastnorm.attention(LAZY_Q, unknown(LAZY_K), LAZY_K)),
    (TypeError, r"lses\[0\] must be a Dask array", lambda: fastnorm.merge_attention([LAZY_Q], [Q[..., 0]])),
    (ValueError, r"lses\[0\] must have shape", lambda: fastnorm.merge_attention([LAZY_Q], [LAZY_Q])),
    (ValueError, "as many", lambda: fastnorm.merge_attention([LAZY_Q], [])),
]


@pytest.mark.parametrize(("error", "words", "function"), REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(error, words, function):
    with pytest.raises(error, match=words):
        function()
