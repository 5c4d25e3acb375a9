"""What must hold whatever the numbers: invariances, bounds, and how functions belong together."""

import itertools

import numpy as np
import pytest
from compare import NORMS, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import fastnorm

LENGTHS = st.sampled_from([1, 2, 3, 8, 9, 16, 33, 64, 65, 130, 700])
SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=40, deadline=None)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


def rows(seed, n, dtype=np.float64, size=1.0, offset=0.0):
    return (np.random.default_rng(seed).standard_normal((5, n)) * size + offset).astype(dtype)


def apply(norm, x, weights=(), **options):
    """What a norm makes of rows: of `add_*` with a residual of zeros, of `group_norm` with each row an image of one group."""
    if norm == "group_norm":
        return fastnorm.group_norm(x, 1, *weights, **options)
    if norm.startswith("add_"):
        y, h = getattr(fastnorm, norm)(x, np.zeros_like(x), *weights, **options)
        assert_same_bits(h, x + np.float32(0))
        return y
    return getattr(fastnorm, norm)(x, *weights, **options)


@pytest.mark.parametrize("norm", NORMS)
@few
@given(seed=SEEDS, n=LENGTHS, power=st.integers(-12, 12), negative=st.booleans(), dtype=st.sampled_from(["float32", "float64"]))
def test_a_norm_forgets_the_scale(norm, seed, n, power, negative, dtype):
    """Bit for bit where the scale is a power of two; what it never forgets is the sign."""
    x = rows(seed, n, dtype)
    sign = -1 if negative else 1
    factor = x.dtype.type(sign * 2.0**power)
    assert_same_bits(
        apply(norm, x * factor, eps=0.0) + x.dtype.type(0), apply(norm, x, eps=0.0) * x.dtype.type(sign) + x.dtype.type(0)
    )


@pytest.mark.parametrize("norm", NORMS)
@few
@given(seed=SEEDS, n=LENGTHS, eps=st.sampled_from([0.0, 1e-5, 1.0]))
def test_a_norm_does_not_know_the_order(norm, seed, n, eps):
    x, weight = rows(seed, n), rows(seed + 1, n)[0]
    order = np.random.default_rng(seed).permutation(n)
    y = apply(norm, x, [weight], eps=eps)
    turned = apply(norm, np.ascontiguousarray(x[:, order]), [weight[order]], eps=eps)
    np.testing.assert_allclose(
        turned, y[:, order], rtol=0, atol=16 * EPS["float64"] * np.abs(y).max(-1, keepdims=True).max() + 1e-300
    )


@pytest.mark.parametrize("norm", ["rms_norm", "unit_norm", "add_rms_norm"])
@few
@given(seed=SEEDS, n=st.sampled_from([1, 2, 3, 8, 33, 65]))
def test_rotations_commute(norm, seed, n):
    x = rows(seed, n)
    rotation = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((n, n)))[0]
    np.testing.assert_allclose(apply(norm, x @ rotation), apply(norm, x) @ rotation, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer_norm", "group_norm", "add_layer_norm"])
@few
@given(seed=SEEDS, n=LENGTHS, offset=st.integers(-(2**20), 2**20))
def test_offsets_do_not_matter(norm, seed, n, offset):
    """Of whole numbers, whose sums are exact; the result has mean 0 and variance 1."""
    x = np.rint(rows(seed, n, size=100))
    y = apply(norm, x, eps=0.0)
    np.testing.assert_allclose(apply(norm, x + offset, eps=0.0), y, rtol=0, atol=1e-12)
    uneven = (x != x[:, :1]).any(-1)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-13)
    np.testing.assert_allclose(y.var(-1), uneven, rtol=1e-12)


@few
@given(seed=SEEDS, n=LENGTHS, size=st.sampled_from([1e-300, 1e-10, 1.0, 1e200]))
def test_lengths_of_results(seed, n, size):
    x = rows(seed, n, size=size)
    unit, rms = fastnorm.unit_norm(x), fastnorm.rms_norm(x, eps=0.0)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(rms, unit * np.sqrt(n), rtol=1e-14)
    np.testing.assert_allclose(fastnorm.unit_norm(unit), unit, rtol=1e-14)


@few
@given(seed=SEEDS, n=LENGTHS, size=st.sampled_from([0.01, 1.0, 30.0]), offset=st.integers(-1000, 1000), scale=st.floats(-3, 3))
def test_softmax_and_its_logarithms(seed, n, size, offset, scale):
    x = np.round(rows(seed, n, size=size), 3)
    y = fastnorm.softmax(x, scale=scale)
    assert (y >= 0).all()
    assert (y <= 1).all()
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-13)
    ordered = np.take_along_axis(y, np.argsort(np.sign(scale) * x, -1), -1)
    assert (np.diff(ordered) >= -4 * EPS["float64"] * ordered[:, 1:]).all(), "larger scores have larger probabilities"
    np.testing.assert_allclose(fastnorm.softmax(x + offset, scale=scale), y, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(np.exp(fastnorm.log_softmax(x, scale=scale)), y, rtol=1e-12, atol=1e-300)
    total, largest = fastnorm.logsumexp(x), x.max(-1)
    assert (total >= largest - 1e-13 * np.abs(largest)).all()
    assert (total <= (largest + np.log(n)) + 1e-13 * (1 + np.abs(largest))).all()
    np.testing.assert_allclose(fastnorm.logsumexp(x + offset), total + offset, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(fastnorm.log_softmax(x), x - total[:, None], rtol=1e-12, atol=1e-12)


@few
@given(
    seed=SEEDS,
    features=st.sampled_from([2, 6, 64, 128]),
    interleaved=st.booleans(),
    first=st.integers(-1000, 1000),
    second=st.integers(-1000, 1000),
)
def test_rotations_add_up(seed, features, interleaved, first, second):
    """Lengths stay, two turns are one by the sum of positions, and the opposite turn leads back."""
    x = rows(seed, features)
    turn = lambda x, position: fastnorm.rope(x, *tables(position), interleaved=interleaved)  # noqa: E731
    tables = lambda position: fastnorm.rope_tables([position], features, dtype=np.float64)  # noqa: E731
    cos, sin = tables(first)
    np.testing.assert_allclose(cos**2 + sin**2, 1, rtol=1e-14)
    once = turn(x, first)
    np.testing.assert_allclose(np.linalg.norm(once, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(turn(once, second), turn(x, first + second), rtol=0, atol=1e-11)
    np.testing.assert_allclose(turn(once, -first), x, rtol=0, atol=1e-11)
    assert_same_bits(turn(x, 0), x)


@few
@given(
    seed=SEEDS,
    dtype=st.sampled_from(["float32", "float64"]),
    lengths=st.tuples(st.sampled_from([1, 3, 9]), st.sampled_from([1, 2, 64, 70, 130])),
    sizes=st.tuples(st.sampled_from([1, 16, 33]), st.sampled_from([1, 16, 20])),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    cuts=st.lists(st.integers(0, 130), max_size=4),
    window=st.sampled_from([None, (5, 0), (-1, 3)]),
)
def test_attention_is_a_mean(seed, dtype, lengths, sizes, sharpness, cuts, window):
    """Between the least and the largest value; equal values stay; parts merge to the whole, in any order."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, lengths[0], sizes[0])).astype(dtype)
    k, v = (rng.standard_normal((1, lengths[1], size)).astype(dtype) for size in sizes)
    options = {"scale": sharpness, "q_start": lengths[1] // 2}
    whole, lse = fastnorm.attention(q, k, v, return_lse=True, window=window, **options)
    slack = 16 * EPS[dtype] * np.abs(v).max()
    seen = np.isfinite(lse)
    assert (whole[seen] >= v.min() - slack).all()
    assert (whole[seen] <= v.max() + slack).all()
    assert (whole[~seen] == 0).all()
    equal = fastnorm.attention(q, k, np.full_like(v, 3), window=window, **options)
    np.testing.assert_allclose(equal[seen], 3, rtol=16 * EPS[dtype])
    if window is None:
        edges = sorted({0, *(min(cut, lengths[1]) for cut in cuts), lengths[1]})
        parts = [fastnorm.attention(q, k[:, a:b], v[:, a:b], return_lse=True, **options) for a, b in itertools.pairwise(edges)]
        for these in (parts, parts[::-1]):
            merged, merged_lse = fastnorm.merge_attention(*zip(*these, strict=True))
            rounding = 64 * EPS[dtype] * (1 + np.abs(lse).max())
            np.testing.assert_allclose(merged, whole, rtol=0, atol=rounding * np.abs(v).max())
            np.testing.assert_allclose(merged_lse, lse, rtol=0, atol=rounding)
    if sharpness == 0 and window is None:
        np.testing.assert_allclose(whole, np.broadcast_to(v.mean(1, keepdims=True), whole.shape), rtol=0, atol=2 * slack)
