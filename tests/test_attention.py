"""Attention against an oracle over all options, and what must hold whatever the numbers."""

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from compare import assert_same_bits
from far_from_one import CASES as FAR_FROM_ONE
from far_from_one import column
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import guarded as guarded

import fastnorm
from fastnorm import _cpu
from fastnorm._bench import attention_oracles as oracles

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
LENGTHS = [1, 2, 5, 6, 7, 13, 64, 65, 130]


def checked(q, k, v, **options):
    """Attention with any warning an error, held against the oracle: the contract's allowance, and half a unit of 16 bits."""
    with np.errstate(all="raise"):
        out, lse = fastnorm.attention(q, k, v, return_lse=True, **options)
    wanted, wanted_lse, (score, value) = oracles.attention(q, k, v, **options)
    assert (out.shape, out.dtype) == (wanted.shape, q.dtype)
    unit = np.finfo(np.float64).eps if q.dtype == np.float64 else np.finfo(np.float32).eps
    allowed = ((16 + 8 * score) * unit * value)[..., None] + 1e-44
    if q.itemsize == 2:
        allowed = allowed + np.abs(wanted) * (2.0**-8 if q.dtype == DTYPES["bfloat16"] else 2.0**-11) + 2.0**-25
    assert (np.abs(out.astype(wanted.dtype) - wanted) <= allowed).all()
    np.testing.assert_allclose(lse, wanted_lse.astype(lse.dtype), rtol=1e-5, atol=2e-5)
    return out, lse


def arrays(rng, dtype, batch=(), heads=2, key_heads=1, n_queries=3, n_keys=70, head_size=16, value_size=16, cached=None):
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    q = normal(*batch, heads, n_queries, head_size).astype(DTYPES[dtype])
    kv = DTYPES[cached or dtype]
    k, v = (normal(*batch, key_heads, n_keys, size).astype(kv) for size in (head_size, value_size))
    return q, k, v


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries", [1, 3, 80])
def test_small_calls_take_a_shortcut(rng, monkeypatch, dtype, is_causal, n_queries):
    """It gives the bits of the long way, which `out` asks for."""
    batch = (2,) if n_queries == 3 else ()
    q, k, v = arrays(rng, dtype, batch, heads=6, key_heads=2, n_queries=n_queries, n_keys=1300 if n_queries < 80 else 90)
    k, v = k[..., ::-1, :], v[..., ::2]
    wanted = fastnorm.attention(q, k, v, is_causal=is_causal, out=np.empty((*q.shape[:-1], 8), q.dtype))
    with monkeypatch.context() as patched:
        patched.setitem(fastnorm.attention.__globals__, "attention_arguments", None)
        assert_same_bits(fastnorm.attention(q, k, v, is_causal=is_causal), wanted)


def test_rows_that_leave_the_range_do_not_end_on_the_shortcut(rng):
    q, k, v = arrays(rng, "float32")
    for large in ((q, k, np.clip(v, -1, 1) * np.float32(3e38)), (q * np.float32(1e30), k * np.float32(1e30), v)):
        wanted = fastnorm.attention(*large, out=np.empty_like(q))
        assert np.isfinite(wanted).all()
        assert _cpu.small_attention(*(a[None] for a in large), False) is None
        assert_same_bits(fastnorm.attention(*large), wanted)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "is_causal": st.booleans(),
        "q_start": st.sampled_from([0, 3, -2]),
        "window": st.sampled_from([(0, 0), (2, 0), (-1, 1), (3, -1), (40, 2)]),
        "scale": st.sampled_from([0.0, 0.3, -0.5, 1.0]),
        "softcap": st.sampled_from([0.5, 2.0, 30.0]),
        "qk_norm": st.sampled_from(["rms", "unit"]),
        "eps": st.sampled_from([0.0, 1e-3]),
    },
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    # A kernel a pair takes seconds to compile: those that programs use, and one more.
    dtypes=st.sampled_from([*[(dtype, dtype) for dtype in DTYPES], ("float32", "bfloat16"), ("float32", "float32")]),
    lengths=st.tuples(st.sampled_from(LENGTHS), st.sampled_from(LENGTHS)),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    sizes=st.tuples(st.sampled_from([1, 3, 16, 17, 64, 80]), st.sampled_from([1, 16, 33, 64])),
    batch=st.sampled_from([(), (2,), (1, 2)]),
    mask=st.sampled_from([None, "bool", "float16", "bfloat16", "float32", "float64"]),
    broadcast=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    more=st.frozensets(st.sampled_from(["alibi_slopes", "sinks", "kv_lengths"])),
    options=OPTIONS,
)
def test_any_options(seed, dtypes, lengths, heads, sizes, batch, mask, broadcast, more, options):
    rng = np.random.default_rng(seed)
    q, k, v = arrays(rng, dtypes[0], batch, *heads, *lengths, *sizes, dtypes[1])
    shape = tuple(1 if one else n for one, n in zip(broadcast, (heads[0], *lengths), strict=True))
    if mask == "bool":
        options["mask"] = rng.random(shape) < 0.7
    elif mask:
        values = rng.standard_normal(shape).astype(np.float32)
        values[rng.random(shape) < 0.3] = -np.inf
        options["mask"] = values.astype(DTYPES[mask])
    if "alibi_slopes" in more:
        options["alibi_slopes"] = (2.0 ** -np.arange(1, heads[0] + 1)).astype(np.float32)
    if "sinks" in more:
        options["sinks"] = rng.standard_normal(heads[0]).astype(np.float32)
    if "kv_lengths" in more:
        options["kv_lengths"] = rng.integers(0, lengths[1] + 1, batch)
    checked(q, k, v, **options)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 5000), (3, 2100), (200, 1100), (400, 130)])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_segments_and_blocks(rng, threads, n_queries, n_keys, key_heads):
    """Keys in several segments, queries in several blocks; the bits are those of one thread."""
    q, k, v = arrays(rng, "float32", (2,), 2, key_heads, n_queries, n_keys, 32, 40)
    threads(2)
    out, lse = checked(q, k, v, is_causal=True)
    threads(1)
    for a, b in zip((out, lse), fastnorm.attention(q, k, v, is_causal=True, return_lse=True), strict=True):
        assert_same_bits(a, b)
    threads(64)  # segments apart
    assert_same_bits(out, fastnorm.attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("n_queries", [1, 4, 9, 70])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_company_or_layout(rng, dtype, n_queries):
    q, k, v = arrays(rng, dtype, (3,), 4, 2, n_queries, 150, 24, 20)
    out = fastnorm.attention(q, k, v, window=(50, 0))
    for b in range(3):
        assert_same_bits(out[b], fastnorm.attention(q[b], k[b], v[b], window=(50, 0)))
    assert_same_bits(out[:, 2:], fastnorm.attention(q[:, 2:], k[:, 1:], v[:, 1:], window=(50, 0)))

    def stepped(a):
        room = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
        room[..., ::2] = a
        return room[..., ::2]

    def by_length(a):
        return np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)

    def in_a_cache(a):
        room = np.full((*a.shape[:-2], 512, a.shape[-1]), np.nan, a.dtype)
        room[..., : a.shape[-2], :] = a
        return room[..., : a.shape[-2], :]

    for layout in (stepped, by_length, in_a_cache, np.asfortranarray):
        assert_same_bits(out, fastnorm.attention(layout(q), layout(k), layout(v), window=(50, 0)))
    room = stepped(np.empty_like(out))
    assert fastnorm.attention(q, k, v, window=(50, 0), out=room) is room
    assert_same_bits(out, room)
    if dtype == "float32":
        swapped = (a.astype(a.dtype.newbyteorder()) for a in (q, k, v))
        assert_same_bits(out, fastnorm.attention(*swapped, window=(50, 0)))


@pytest.mark.parametrize("n_queries", [2, 5, 40])
@pytest.mark.parametrize("mask", [bool, np.float32])
def test_nothing_leaks_from_behind_a_mask(rng, n_queries, mask):
    q, k, v = arrays(rng, "float32", n_queries=n_queries)
    hidden = rng.random((n_queries, 70)) < 0.5
    hidden[:, 9] = True
    hidden[1] = True
    wanted, wanted_lse = checked(q, k, v, mask=~hidden if mask is bool else np.where(hidden, -np.inf, 0).astype(mask))
    k[:, 9], v[:, 9] = np.nan, np.inf
    rows = np.where(hidden, -np.inf, 0).astype(mask) if mask is not bool else ~hidden
    out, lse = fastnorm.attention(q, k, v, mask=rows, return_lse=True)
    assert_same_bits(out, wanted)
    assert_same_bits(lse, wanted_lse)
    assert (out[:, 1] == 0).all()
    assert (lse[:, 1] == -np.inf).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_future_does_not_matter(rng, dtype):
    """A causal row is what it was, bit for bit, whatever comes after it; also where that is not a number."""
    q, k, v = arrays(rng, dtype, heads=2, key_heads=2, n_queries=100, n_keys=100)
    out = fastnorm.attention(q, k, v, is_causal=True)
    for i in (0, 17, 63, 64, 98):
        other_k, other_v = k.copy(), v.copy()
        other_k[:, i + 1 :], other_v[:, i + 1 :] = 1e30, np.nan
        assert_same_bits(fastnorm.attention(q, other_k, other_v, is_causal=True)[:, : i + 1], out[:, : i + 1])


@pytest.mark.parametrize("cuts", [(1,), (64,), (3, 50), (10, 10, 69)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_parts_merge_to_the_whole(rng, dtype, cuts):
    q, k, v = arrays(rng, dtype)
    sinks = np.float32([0.5, -1])
    whole, lse = fastnorm.attention(q, k, v, return_lse=True, sinks=sinks)
    edges = [0, *cuts, 70]
    parts = [
        fastnorm.attention(q, k[:, a:b], v[:, a:b], return_lse=True, sinks=None if a else sinks)
        for a, b in itertools.pairwise(edges)
    ]
    if cuts == (10, 10, 69):
        assert (parts[1][1] == -np.inf).all()
    merged, merged_lse = fastnorm.merge_attention(*zip(*parts, strict=True))
    assert (merged.dtype, merged_lse.dtype) == (whole.dtype, lse.dtype)
    limit = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 0.02}[dtype]
    assert np.abs(merged.astype(np.float64) - whole.astype(np.float64)).max() < limit * 3
    np.testing.assert_allclose(merged_lse, lse, rtol=1e-6)


def test_the_order_of_keys_does_not_matter(rng):
    q, k, v = arrays(rng, "float32", n_keys=300)
    order = rng.permutation(300)
    np.testing.assert_allclose(fastnorm.attention(q, k[:, order], v[:, order]), fastnorm.attention(q, k, v), rtol=0, atol=2e-6)


def test_either_norm_with_its_own_scale(rng):
    """Both give the same scores, hence the same result."""
    q, k, v = arrays(rng, "float64")
    rms = fastnorm.attention(q, k, v, qk_norm="rms", eps=0.0)
    np.testing.assert_allclose(fastnorm.attention(q, k, v, qk_norm="unit"), rms, rtol=1e-12)
    by_hand = fastnorm.attention(
        fastnorm.unit_norm(q), fastnorm.unit_norm(k), v, scale=fastnorm.attention_scale(16, qk_norm="unit")
    )
    np.testing.assert_allclose(by_hand, rms, rtol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_with_rope_scores_depend_on_distance_alone(rng, interleaved):
    q, k, v = arrays(rng, "float64", heads=1, n_queries=20, n_keys=20)
    outs = []
    for offset in (0, 1000):
        tables = fastnorm.rope_tables(np.arange(20) + offset, 16, dtype=np.float64)
        turned = (fastnorm.rope(a, *tables, interleaved=interleaved) for a in (q, k))
        outs.append(fastnorm.attention(*turned, v))
    np.testing.assert_allclose(*outs, rtol=1e-10)


@pytest.mark.parametrize("head_size", [64, 128, 512])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_whose_products_cancel(rng, dtype, head_size):
    """Whatever the size of a head: in one chain of all features the mean error grew from 21 units of 1 to 36 and 63."""
    dtype, wide = np.dtype(dtype), np.float64 if dtype == "float32" else np.longdouble
    q, k = (4 * rng.standard_normal((n, head_size)).astype(dtype) for n in (4000, 2))
    weight = fastnorm.attention(q, k, np.array([[1], [0]], dtype))[:, 0]
    wanted = 1 / (1 + np.exp(q.astype(wide) @ (k[1] - k[0].astype(wide)) / np.sqrt(wide(head_size))))
    slope = wanted * (1 - wanted)
    near = slope > 0.1
    assert near.sum() > 200
    errors = (weight - wanted)[near] / slope[near] / np.finfo(dtype).eps
    assert np.sqrt((errors * errors).mean()) < 32


@pytest.mark.parametrize("shape", [(0, 5, 4, 3), (2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0)])
def test_empty(shape):
    n_batch, n_queries, n_keys, value_size = shape
    q, k = np.ones((n_batch, 2, n_queries, 8), np.float32), np.ones((n_batch, 2, n_keys, 8), np.float32)
    out, lse = fastnorm.attention(q, k, np.ones((n_batch, 2, n_keys, value_size), np.float32), return_lse=True)
    assert out.shape == (n_batch, 2, n_queries, value_size)
    assert lse.shape == (n_batch, 2, n_queries)
    if not n_keys:
        assert (out == 0).all()
        assert (lse == -np.inf).all()


def test_in_place_and_overlapping(rng):
    q, k, v = arrays(rng, "float32", n_queries=70, n_keys=70)
    wanted = fastnorm.attention(q, k, v)
    same = q.copy()
    assert fastnorm.attention(same, k, v, out=same) is same
    assert_same_bits(same, wanted)
    room = np.zeros(q.size + 1, np.float32)
    room[:-1] = q.ravel()
    moved = room[1:].reshape(q.shape)
    fastnorm.attention(room[:-1].reshape(q.shape), k, v, out=moved)
    assert_same_bits(moved, wanted)
    q, k, v = arrays(rng, "float32", heads=1, n_queries=70)
    wanted = fastnorm.attention(q, k, v)
    fastnorm.attention(q, k, v, out=v)
    assert_same_bits(v, wanted)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_queries", [1, 9])
def test_memory(rng, guarded, at_end, dtype, n_queries):
    """No access beyond any array, whose neighbours nobody may touch."""
    for n_keys, head_size, value_size in itertools.product((1, 15, 16, 63, 64, 65), (1, 16, 63, 64, 65), (1, 64, 70)):
        q, k, v = arrays(rng, dtype, (), 1, 1, n_queries, n_keys, head_size, value_size)
        mask = rng.random((n_queries, n_keys)) < 0.8
        wanted = fastnorm.attention(q, k, v, mask=mask)
        placed = [guarded.array(a, at_end) for a in (q, k, v)]
        out = guarded.array(np.zeros_like(wanted), at_end)
        fastnorm.attention(*placed, mask=guarded.array(mask, at_end), out=out)
        assert_same_bits(out, wanted)
        assert_same_bits(fastnorm.attention(*placed), fastnorm.attention(q, k, v))
        guarded.close()


def test_far_larger_than_its_scores(rng):
    """Scores of 32768 x 32768 would take 4 GB."""
    q = rng.standard_normal((1, 32768, 16), np.float32)
    fastnorm.attention(q[:, :100], q, q, window=(100, 0))
    tracemalloc.start()  # NumPy tells it of its arrays
    out = fastnorm.attention(q, q, q, window=(100, 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.nbytes < peak < out.nbytes + (64 << 20)
    wanted, _, _ = oracles.attention(q[:, 20000:20100], q[:, :20100], q[:, :20100], window=(100, 0))
    np.testing.assert_allclose(out[:, 20000:20100], wanted, rtol=0, atol=1e-5)


Q, K = np.ones((1, 4, 3, 8), np.float32), np.ones((1, 2, 5, 8), np.float32)
WRONG = [
    (ValueError, "k must|8", (Q, K[..., :7], K), {}),
    (ValueError, "v must|(2, 5)", (Q, K, K[:, :, :4]), {}),
    (ValueError, "q must|2|3", (Q[:, :3], K, K), {}),
    (ValueError, "q must|head_dim", (Q[..., :0], K[..., :0], K), {}),
    (ValueError, "q must|shape", (Q[0, 0, 0], K, K), {}),
    (ValueError, "k must|heads", (Q[0, 0], K, K), {}),
    (ValueError, "k must|(2,)|(3,)", (np.ones((2, 4, 3, 8)), np.ones((3, 2, 5, 8)), np.ones((3, 2, 5, 8))), {}),
    (TypeError, "v must|float32|float16", (Q, K, K.astype(np.float16)), {}),
    (TypeError, "q must|complex", (Q.astype(complex), K, K), {}),
    (TypeError, "mask must|bool|int64", (Q, K, K), {"mask": np.ones((3, 5), int)}),
    (TypeError, "mask must|MaskedArray", (Q, K, K), {"mask": np.ma.masked_array(np.ones((3, 5), bool))}),
    (ValueError, "mask must|(3, 4)", (Q, K, K), {"mask": np.ones((3, 4), bool)}),
    (TypeError, "q_start must|1.5", (Q, K, K), {"q_start": 1.5}),
    (ValueError, "q_start must|(2,)", (Q, K, K), {"q_start": np.array([1, 2])}),
    (ValueError, "kv_lengths must|5|6", (Q, K, K), {"kv_lengths": 6}),
    (ValueError, "kv_lengths must|-1", (Q, K, K), {"kv_lengths": -1}),
    (TypeError, "kv_lengths must", (Q, K, K), {"kv_lengths": np.array([1.0])}),
    (TypeError, "q_start must|MaskedArray", (Q, K, K), {"q_start": np.ma.masked_array([1], [1])}),
    (TypeError, "kv_lengths must|MaskedArray", (Q, K, K), {"kv_lengths": np.ma.masked_array([1], [1])}),
    (TypeError, "kv_lengths must", (Q, K, K), {"kv_lengths": [[1, 2], [3]]}),
    (ValueError, "kv_lengths must", (Q, K, K), {"kv_lengths": 2**70}),
    (TypeError, "mask must", (Q, K, K), {"mask": [[True], [True, False]]}),
    (TypeError, "mask must|MaskedArray", (Q, K, K), {"mask": [np.ma.masked_array([True] * 5, [True] * 5)] * 3}),
    (TypeError, "kv_lengths must|MaskedArray", (Q, K, K), {"kv_lengths": [np.ma.masked_array(1, True)]}),
    (TypeError, "q_start must|MaskedArray", (Q, K, K), {"q_start": [np.ma.masked_array(1, True)]}),
    (TypeError, "scale must", (Q, K, K), {"scale": np.ma.masked_array(1.0, True)}),
    (ValueError, "qk_norm must", (Q, K, K), {"qk_norm": np.array(["rms", "unit"])}),
    (TypeError, "return_lse must", (Q, K, K), {"return_lse": np.ones(2)}),
    (TypeError, "window must|pair", (Q, K, K), {"window": (1, 2, 3)}),
    (TypeError, "window must|3", (Q, K, K), {"window": 3}),
    (ValueError, "window must|-2", (Q, K, K), {"window": (-2, 0)}),
    (ValueError, "softcap must|0.0", (Q, K, K), {"softcap": 0.0}),
    (TypeError, "softcap must|'a'", (Q, K, K), {"softcap": "a"}),
    (TypeError, "scale must|'a'", (Q, K, K), {"scale": "a"}),
    (ValueError, "scale must be finite|nan", (Q, K, K), {"scale": np.nan}),
    (ValueError, "scale must be finite|inf", (Q, K, K), {"scale": np.inf}),
    (TypeError, "is_causal must|1", (Q, K, K), {"is_causal": 1}),
    (ValueError, "alibi_slopes must|(4,)|(2,)", (Q, K, K), {"alibi_slopes": np.ones(2)}),
    (ValueError, "sinks must|(4,)|(4, 1)", (Q, K, K), {"sinks": np.ones((4, 1))}),
    (ValueError, "qk_norm must|'layer'", (Q, K, K), {"qk_norm": "layer"}),
    (ValueError, "eps must|-1.0", (Q, K, K), {"qk_norm": "rms", "eps": -1.0}),
    (ValueError, "out must|(1, 4, 3, 8)|(1, 4, 3, 7)", (Q, K, K), {"out": np.zeros((1, 4, 3, 7), np.float32)}),
    (ValueError, "out must|float64", (Q, K, K), {"out": np.zeros((1, 4, 3, 8))}),
]


@pytest.mark.parametrize(("error", "words", "args", "options"), WRONG, ids=[f"{w[1]} {i}" for i, w in enumerate(WRONG)])
def test_wrong_calls(error, words, args, options):
    with pytest.raises(error, match=r"^attention: ") as raised:
        fastnorm.attention(*args, **options)
    assert all(word in str(raised.value) for word in words.split("|"))


@pytest.mark.parametrize(
    ("error", "words", "outs", "lses"),
    [
        (ValueError, "lses", [], []),
        (ValueError, "lses", [Q], [Q[..., 0], Q[..., 0]]),
        (ValueError, "lses[0]", [Q], [Q]),
        (ValueError, "outs[1]", [Q, K], [Q[..., 0], K[..., 0]]),
        (TypeError, "outs", 3, []),
        (TypeError, "outs[0]", [None], [None]),
    ],
)
def test_wrong_merges(error, words, outs, lses):
    with pytest.raises(error, match=r"^merge_attention: ") as raised:
        fastnorm.merge_attention(outs, lses)
    assert words in str(raised.value)


def test_starts_far_away():
    """Beyond any integer of 64 bits: everything lies before, or after."""
    for start in (2**70, np.uint64(2**63 + 5), np.int8(127)):
        assert (fastnorm.attention(Q, K, K, q_start=start, is_causal=True) == 1).all()
    assert (fastnorm.attention(Q, K, K, q_start=-(2**70), is_causal=True) == 0).all()


def test_a_merge_of_large_numbers():
    """A mean lies among its numbers."""
    out, lse = fastnorm.merge_attention([np.full((2, 4), 3e38, np.float32)] * 3, [np.zeros(2, np.float32)] * 3)
    np.testing.assert_allclose(out, 3e38, rtol=1e-6)
    np.testing.assert_allclose(lse, np.log(3), rtol=1e-6)


LARGE_VALUES = {"float16": 6e4, "bfloat16": 3e38, "float32": 3.4e38, "float64": 1.7e308}


@pytest.mark.parametrize("n_queries", [1, 9])
@pytest.mark.parametrize("n_keys", [3, 300, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_means_of_the_largest_values(rng, dtype, n_keys, n_queries):
    """Their sum overflows, their mean does not; and rows beside them, of other heads, keep their bits."""
    q, k, v = arrays(rng, dtype, heads=2, key_heads=2, n_queries=n_queries, n_keys=n_keys)
    alone = fastnorm.attention(q[1:], k[1:], v[1:])
    v[0] = LARGE_VALUES[dtype]
    v[0, ::2] *= v.dtype.type(rng.choice([-1, 1]))
    out, _ = checked(q, k, v)
    assert_same_bits(out[1:], alone)
    v[0] = np.abs(v[0])
    np.testing.assert_allclose(
        fastnorm.attention(q, k, v)[0].astype(float), float(v[0, 0, 0]), rtol=1e-2 if q.itemsize == 2 else 1e-5
    )


@pytest.mark.parametrize("n_queries", [1, 9])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 2.0}, {"sinks": [1.0, -1.0]}, {"is_causal": True}, {"alibi_slopes": [1.0, 2.0]}]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_scores_beyond_the_range(rng, dtype, options, n_queries):
    """What has by far the largest score takes all the weight, also where all are minus infinity once rounded."""
    q, k, v = arrays(rng, dtype, heads=2, key_heads=2, n_queries=n_queries, n_keys=70)
    size = 1e200 if dtype == "float64" else 1e30
    wide = np.longdouble if dtype == "float64" else np.float64
    if dtype == "float64" and np.finfo(wide).maxexp < 1400:
        pytest.skip("no wider numbers here to compare with")
    far = {name: np.array(value, q.dtype) if isinstance(value, list) else value for name, value in options.items()}
    for sign in (1, -1):
        scaled_q = (np.abs(q) * sign * size).astype(q.dtype) if sign < 0 else (q * size).astype(q.dtype)
        scaled_k = (np.abs(k) * size).astype(q.dtype) if sign < 0 else (k * size).astype(q.dtype)
        with np.errstate(all="raise"):
            out = fastnorm.attention(scaled_q, scaled_k, v, **far)
        wanted = oracles.attention(scaled_q, scaled_k, v, **far)[0]
        np.testing.assert_allclose(out.astype(wide), wanted, rtol=1e-2 if q.itemsize == 2 else 1e-5, atol=1e-6)
    one = fastnorm.attention(scaled_q, k, v, scale=0.0)
    np.testing.assert_array_equal(one, fastnorm.attention(q, k, v, scale=0.0))


def test_a_scale_beyond_the_range(rng):
    q, k, v = arrays(rng, "float32")
    best = np.argmax(q @ k.swapaxes(-1, -2), -1)
    np.testing.assert_array_equal(fastnorm.attention(q, k, v, scale=1e300), v[0][best])


@pytest.mark.parametrize("n_queries", [1, 8])
@pytest.mark.parametrize("case", FAR_FROM_ONE, ids=range(len(FAR_FROM_ONE)))
def test_numbers_far_from_one(case, n_queries):
    """Scores, values, scales and caps near either end of the range, together or apart."""
    q, k, v, options, wanted, wanted_lse = case
    with np.errstate(all="raise"):
        out, lse = fastnorm.attention(np.repeat(q, n_queries, 0), k, v, return_lse=True, **{"q_start": 0} | options)
    rest = out[: 1 if "alibi_slopes" in options else None], lse[: 1 if "alibi_slopes" in options else None]
    np.testing.assert_allclose(rest[0], np.full(rest[0].shape, wanted), rtol=2e-6)
    np.testing.assert_allclose(rest[1], np.full(rest[1].shape, wanted_lse), rtol=2e-6)


def test_what_is_too_far_to_see_merges_as_nothing():
    q, k, v = column(-1e30), column(1e30), column(1)
    far, near = fastnorm.attention(q, k, v, return_lse=True), (column(5), np.array([1], np.float32))
    out, lse = fastnorm.merge_attention(*zip(far, near, strict=True))
    assert (out, lse) == (5, 1)
