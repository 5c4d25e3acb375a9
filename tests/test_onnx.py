"""Operators for the evaluator of ONNX: its own tests of them, what those leave out, and where its values are wrong."""

import collections
import pathlib
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from compare import LIMIT, ulps
from onnx import TensorProto, helper, inliner, parser
from onnx.reference import ReferenceEvaluator
from test_docstrings import run

import fastnorm.onnx
from fastnorm._bench import attention_oracles, oracles

OPERATORS = {cls.__name__: cls for cls in fastnorm.onnx.OPERATORS}
STANDARD = [name for name, cls in OPERATORS.items() if not cls.op_domain]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Cases of ONNX whose values are not right: scale, scores and probabilities were rounded to bfloat16 on the way.
ROUGH = {
    "test_attention_3d_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16",
}


# ------------------------------------------------------------------------------------------------- ONNX's own tests
@pytest.fixture(scope="module")
def node_tests():
    """By operator, the tests whose model is that operator alone: an expanded one has others in its place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the right values are made on import, some of them from infinities
        from onnx.backend.test.case.node import collect_testcases

        found = collections.defaultdict(list)
        for case in collect_testcases(None):
            if len(case.model.graph.node) == 1:
                found[case.model.graph.node[0].op_type].append(case)
    return found


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "Attention" else []) for n in STANDARD])
def test_nodes(node_tests, name):
    cases = node_tests[name]
    assert len(cases) >= {"Attention": 93, "LayerNormalization": 19, "RMSNormalization": 19}.get(name, 2)
    wrong = {}
    for case in cases:
        evaluator = ReferenceEvaluator(case.model, new_ops=fastnorm.onnx.OPERATORS)
        assert type(evaluator.rt_nodes_[0]) is OPERATORS[name]
        for inputs, outputs in case.data_sets:
            feed = dict(zip(evaluator.input_names, inputs, strict=True))
            for one, wanted in zip(evaluator.run(None, feed), outputs, strict=True):
                try:
                    assert (one.shape, one.dtype) == (wanted.shape, wanted.dtype)
                    np.testing.assert_allclose(wide(one), wide(wanted), rtol=case.rtol, atol=case.atol)
                except AssertionError as error:
                    wrong[case.name] = str(error)
    assert set(wrong) == {case.name for case in cases} & ROUGH, wrong


def test_where_their_values_are_rough(node_tests):
    """The same operator of onnx says in float64 what is right."""
    cases = [case for case in node_tests["Attention"] if case.name in ROUGH]
    assert len(cases) == len(ROUGH)
    for case in cases:
        ours, theirs = ReferenceEvaluator(case.model, new_ops=fastnorm.onnx.OPERATORS), ReferenceEvaluator(case.model)
        feed = dict(zip(ours.input_names, case.data_sets[0][0], strict=True))
        exact = theirs.run(None, {name: wide(one) if one.dtype == BFLOAT16 else one for name, one in feed.items()})
        assert ulps(ours.run(None, feed)[0], exact[0]) <= LIMIT


def wide(array):
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


# -------------------------------------------------------------------------------------------------- models of one node
def model_of(name, feed, outputs, opset, **attributes):
    """A model of one node, and what to feed it: inputs that are None have no name, outputs of "" neither."""
    domain = OPERATORS[name].op_domain
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(feed)]
    node = helper.make_node(name, names, outputs, domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for key, one in zip(names, feed, strict=True)
        if key
    ]
    statistics = TensorProto.FLOAT
    kinds = [inputs[0].type.tensor_type.elem_type if i in (0, 3) else statistics for i in range(len(outputs))]
    named = [helper.make_tensor_value_info(key, kind, None) for key, kind in zip(outputs, kinds, strict=True) if key]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, named), opset_imports=imports, ir_version=10)
    return model, {key: one for key, one in zip(names, feed, strict=True) if key}


def ours(name, *feed, outputs=("y",), opset=23, **attributes):
    """The outputs of our operator, one of them by itself; floating-point warnings are errors."""
    model, named = model_of(name, feed, outputs, opset, **attributes)
    with np.errstate(all="raise"):
        results = ReferenceEvaluator(model, new_ops=fastnorm.onnx.OPERATORS).run(None, named)
    return results[0] if len(results) == 1 else results


def by_onnxruntime(name, *feed, outputs=("y",), opset=17, **attributes):
    model, named = model_of(name, feed, outputs, opset, **attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, named)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# ----------------------------------------------------------------------------------------------------------- the norms
def test_layer_norm_with_its_statistics(rng):
    x = np.array([[40000, 40001, 40002, 40003], [1, 2, 3, 5]], np.float32)
    weight = floats(rng, 4)
    y, inverse = ours("LayerNormalization", x, weight, outputs=("y", "", "inverse"))
    assert ulps(y, oracles.layer_norm(x, weight)) <= LIMIT
    np.testing.assert_allclose(inverse[:, 0], 1 / np.sqrt(np.array([1.25, 2.1875]) + 1e-5), rtol=1e-7)
    _, mean, inverse = ours("LayerNormalization", x.astype(np.float16), weight.astype(np.float16), outputs=("y", "m", "i"))
    assert mean.dtype == inverse.dtype == np.float32, "their type is that of stash_type"
    assert mean.shape == (2, 1)
    _, mean, _ = ours("LayerNormalization", x, weight, outputs=("y", "m", "i"), stash_type=TensorProto.BFLOAT16)
    assert mean.dtype == BFLOAT16


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 1), (1, 4, 5), (3, 1, 1), (3, 4, 5)])
@pytest.mark.parametrize("axis", [1, -1])
def test_scale_and_bias_broadcast_to_x(rng, axis, shape):
    x, weight, bias = floats(rng, 3, 4, 5), floats(rng, *shape), floats(rng, *shape)
    axes = tuple(range(axis % 3, 3))
    wanted = oracles.layer_norm(x, axis=axes) * weight + bias
    np.testing.assert_allclose(ours("LayerNormalization", x, weight, bias, axis=axis), wanted, rtol=1e-5, atol=1e-6)
    wanted = oracles.rms_norm(x, axis=axes, eps=1e-5) * weight
    np.testing.assert_allclose(ours("RMSNormalization", x, weight, axis=axis), wanted, rtol=1e-5, atol=1e-6)


def test_rms_norm_has_the_dtype_of_its_scale(rng):
    x, weight = floats(rng, 3, 8), floats(rng, 8)
    for given, scaled in [(np.float16, np.float32), (np.float32, np.float16), (BFLOAT16, np.float16), (np.float32, np.float64)]:
        a, b = x.astype(given), weight.astype(scaled)
        y = ours("RMSNormalization", a, b)
        assert y.dtype == scaled
        np.testing.assert_allclose(wide(y), oracles.rms_norm(a, b, eps=1e-5), rtol=1e-3 if y.itemsize == 2 else 1e-6)


def test_a_norm_is_rounded_once(rng):
    """By the text of ONNX what is normalised is rounded to 16 bits, and then once more with its scale."""
    x, weight, bias = (floats(rng, *shape).astype(np.float16) for shape in ((9, 512), (512,), (512,)))
    assert ulps(ours("RMSNormalization", x, weight), oracles.rms_norm(x, weight, eps=1e-5)) <= LIMIT
    assert ulps(ours("LayerNormalization", x, weight, bias), oracles.layer_norm(x, weight, bias), bias=bias) <= LIMIT


@pytest.mark.parametrize("opset", [18, 21])
def test_group_norm_has_a_scale_for_each_group_before_opset_21(rng, opset):
    x = floats(rng, 2, 6, 4, 4)
    weight, bias = floats(rng, 2, 2 if opset == 18 else 6)
    each = (np.repeat(weight, 3), np.repeat(bias, 3)) if opset == 18 else (weight, bias)
    y = ours("GroupNormalization", x, weight, bias, num_groups=2, opset=opset)
    np.testing.assert_allclose(y, oracles.group_norm(x, 2, *each), rtol=1e-5, atol=1e-6)
    other = floats(rng, 6 if opset == 18 else 2)
    with pytest.raises(ValueError, match=r"(scale|weight) must have shape \((2|6),\)"):
        ours("GroupNormalization", x, other, other, num_groups=2, opset=opset)


def test_the_oldest_instance_norm(rng):
    x, weight, bias = floats(rng, 2, 3, 4, 4), *floats(rng, 2, 3)
    y = ours("InstanceNormalization", x, weight, bias, opset=1, consumed_inputs=[0, 0, 0])
    np.testing.assert_array_equal(y, fastnorm.group_norm(x, 3, weight, bias))


def test_a_far_image_keeps_its_digits():
    x = np.array([40000, 40001, 40002, 40003], np.float32).reshape(1, 1, 2, 2)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    wanted = oracles.group_norm(x, 1)
    assert ulps(ours("InstanceNormalization", x, one, zero), wanted, axis=(2, 3)) <= LIMIT
    assert ulps(ours("GroupNormalization", x, one, zero, num_groups=1), wanted, axis=(2, 3)) <= LIMIT


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm(rng, p, dtype):
    x = floats(rng, 5, 7, 3).astype(dtype)
    x[2] = 0
    for axis in (0, 1, -1):
        y = ours("LpNormalization", x, axis=axis, p=p)
        length = (np.abs(wide(x)) ** p).sum(axis, keepdims=True) ** (1 / p)
        assert y.dtype == dtype
        assert ulps(y, wide(x) / np.where(length == 0, 1, length), axis=axis) <= LIMIT
    huge = (np.array([3, -3, 0]) * (float(ml_dtypes.finfo(dtype).max) / 4)).astype(dtype)
    wanted = [2 ** (-1 / p), -(2 ** (-1 / p)), 0]
    np.testing.assert_allclose(wide(ours("LpNormalization", huge, p=p)), wanted, rtol=4e-3)


def test_statistics_of_far_numbers():
    """Their squares, and the sum of the first two, are beyond float64."""
    x = np.array([[1.5e308, 1.0e308, 1.5e308, 1.0e308], [1e200, -1e200, 1e200, -1e200], [1e300] * 4, [1, 2, 1, 2]])
    _, mean, inverse = ours("LayerNormalization", x, np.ones(4), outputs=("y", "m", "i"), stash_type=TensorProto.DOUBLE)
    np.testing.assert_allclose(mean[:, 0], [1.25e308, 0, 1e300, 1.5], rtol=1e-15)
    wanted = [1 / 0.25e308, 1e-200, 1 / np.sqrt(1e-5), 1 / np.sqrt(0.25 + 1e-5)]
    np.testing.assert_allclose(inverse[:, 0], wanted, rtol=1e-7)  # the epsilon is a float32


def test_axes_that_are_not_there(rng):
    x, weight = floats(rng, 3, 4), floats(rng, 4)
    for name in ("LayerNormalization", "RMSNormalization"):
        for axis in (2, -3):
            with pytest.raises(np.exceptions.AxisError, match=rf"{name}: axis must be within the 2 axes of X, got {axis}"):
                ours(name, x, weight, axis=axis)


def test_lp_norm_of_what_is_not_finite():
    x = np.array([[np.inf, 1.0], [np.nan, 1.0]])
    np.testing.assert_array_equal(ours("LpNormalization", x, p=1), [[np.nan, 0], [np.nan, np.nan]])
    with pytest.raises(ValueError, match="LpNormalization: p must be 1 or 2, got 3"):
        ours("LpNormalization", x, p=3)


# ------------------------------------------------------------------------------------------- onnxruntime's own operators
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_norms_of_a_sum(rng, name, biased):
    x, weight, bias = floats(rng, 2, 3, 64), floats(rng, 64), floats(rng, 64) if biased else None
    parameters = [weight, floats(rng, 64), bias] if name == "SkipLayerNormalization" else [weight, bias]
    for skip in (floats(rng, 2, 3, 64), floats(rng, 1, 3, 64), floats(rng, 3, 64)):
        for outputs in (("y",), ("y", "", "", "sum"), ("y", "mean", "inverse", "sum")):
            got = ours(name, x, skip, *parameters, outputs=outputs, opset=17, epsilon=1e-5)
            wanted = by_onnxruntime(name, x, skip, *parameters, outputs=outputs, epsilon=1e-5)
            for one, other in zip(got if len(outputs) > 1 else [got], wanted, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    tiny = x * np.float32(1e-6)
    got, wanted = ours(name, tiny, tiny, *parameters), by_onnxruntime(name, tiny, tiny, *parameters)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg="the default of epsilon")


@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_norms_of_a_sum_of_16_bits(rng, name):
    """The norm is that of the sum before it is rounded: beside 300 a float16 tells quarters apart, and nothing finer."""
    x, skip, weight, bias = (floats(rng, *shape).astype(np.float16) for shape in ((4, 64), (4, 64), (64,), (64,)))
    bias += np.float16(300)
    parameters = [weight, None, bias] if name == "SkipLayerNormalization" else [weight, bias]
    y, h = ours(name, x, skip, *parameters, outputs=("y", "", "", "sum"), epsilon=1e-5)
    total = x.astype(np.float32) + bias + skip.astype(np.float32)
    norm = oracles.layer_norm if name == "SkipLayerNormalization" else oracles.rms_norm
    assert ulps(y, norm(total, weight, eps=1e-5)) <= 16 * LIMIT, "the sum was rounded twice to float32"
    np.testing.assert_array_equal(h, total.astype(np.float16))
    wanted = by_onnxruntime(name, x, skip, *parameters, outputs=("y", "", "", "sum"), epsilon=1e-5)
    np.testing.assert_allclose(wide(y), wide(wanted[0]), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(wide(h), wide(wanted[1]), rtol=1e-3)


def test_mean_of_a_norm_without_one():
    """As onnxruntime gives it: 0, of infinities too."""
    x = np.array([[-1, -2, 3, 4], [np.inf, 1, 1, 1]], np.float32)
    feed = "SkipSimplifiedLayerNormalization", x, np.zeros_like(x), np.ones(4, np.float32)
    _, mean, inverse = ours(*feed, outputs=("y", "m", "i"), opset=17)
    np.testing.assert_array_equal(mean, [[0], [0]])
    assert not np.signbit(mean).any()
    np.testing.assert_allclose(inverse, [[30**-0.5 * 2], [0]], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ softmax, RoPE
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [8, 11, 12, 13])
def test_softmax_takes_axes_together_before_opset_13(rng, opset, name):
    x = floats(rng, 2, 3, 4)
    for axis in (None, 0, 1, 2, -1) if opset >= 11 else (None, 0, 1, 2):
        attributes = {} if axis is None else {"axis": axis}
        wanted = by_onnxruntime(name, x, opset=opset, **attributes)[0]
        np.testing.assert_allclose(ours(name, x, opset=opset, **attributes), wanted, rtol=1e-5, atol=1e-7)
    with pytest.raises(np.exceptions.AxisError):
        ours(name, x, opset=opset, axis=3)


def test_a_row_without_scores():
    np.testing.assert_array_equal(ours("Softmax", np.array([[-np.inf, -np.inf], [0, -np.inf]])), [[0, 0], [1, 0]])
    np.testing.assert_array_equal(ours("LogSoftmax", np.array([0.0, -1000.0])), [0, -1000])


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32], ids=lambda dtype: np.dtype(dtype).name)
def test_rope_of_heads_within_the_features(rng, dtype):
    x, tables = floats(rng, 2, 3, 4, 8).astype(dtype), floats(rng, 2, 50, 2).astype(dtype)
    positions = np.array([[0, 7, 3], [49, 1, 1]])
    for interleaved in (0, 1):
        options = {"interleaved": interleaved, "rotary_embedding_dim": 4, "num_heads": 4}
        y = ours("RotaryEmbedding", x.reshape(2, 3, 32), *tables, positions, **options)
        wanted = attention_oracles.rope(x, *(table[positions][:, :, None] for table in tables), bool(interleaved))
        assert ulps(y.reshape(x.shape), wanted) <= LIMIT
        heads = ours("RotaryEmbedding", np.swapaxes(x, 1, 2), *(table[positions] for table in tables), **options)
        np.testing.assert_array_equal(wide(heads), wide(np.swapaxes(y.reshape(x.shape), 1, 2)))


def test_rope_says_what_does_not_fit(rng):
    x, table = floats(rng, 1, 2, 6), floats(rng, 1, 2, 3)
    with pytest.raises(ValueError, match=r"RotaryEmbedding: X must have 4 axes, or 3 .* num_heads None"):
        ours("RotaryEmbedding", x, table, table)
    with pytest.raises(ValueError, match=r"RotaryEmbedding: cos_cache must be, .* to turn 4 features, got \(1, 2, 3\)"):
        ours("RotaryEmbedding", x, table, table, num_heads=1, rotary_embedding_dim=4)
    with pytest.raises(ValueError, match=r"RotaryEmbedding: cos_cache must be, .* got \(2, 3\)"):
        ours("RotaryEmbedding", x, table[0], table[0], num_heads=1)
    for positions, got in (([[0, 2]], "0 to 2"), ([[1, -1]], "-1 to 1")):
        with pytest.raises(ValueError, match=f"RotaryEmbedding: position_ids must be within the 2 positions of .* got {got}"):
            ours("RotaryEmbedding", x, table[0], table[0], np.array(positions), num_heads=1)


# ---------------------------------------------------------------------------------------------------------- attention
def random_attention(rng):
    """Inputs and attributes of some call that both sides understand, in float64."""
    batch, n_kv, group, n_queries, n_keys, head_size, value_size = rng.integers(1, 5, 7)
    q, k, v = (
        rng.standard_normal((batch, n_kv * times, n, size))
        for times, n, size in ((group, n_queries, head_size), (1, n_keys, head_size), (1, n_keys, value_size))
    )
    attributes = {
        "is_causal": int(rng.integers(2)),
        "softcap": float(rng.choice([0.0, 0.5, 2.0])),
        "qk_matmul_output_mode": int(rng.integers(4)),
        "left_window_size": int(rng.integers(-1, 3)),
        "right_window_size": int(rng.integers(-1, 3)),
    }
    if attributes["softcap"] and not attributes["qk_matmul_output_mode"]:
        attributes["qk_matmul_output_mode"] = 1  # theirs caps the raw scores too
    if rng.integers(2):
        attributes["scale"] = float(rng.choice([0.0, 0.25, 1.0]))  # they take the square root, in float32
    past = (None, None)
    lengths = None
    match rng.integers(3):
        case 1:
            past = tuple(rng.standard_normal((batch, n_kv, 3, size)) for size in (head_size, value_size))
            n_keys += 3
        case 2:
            lengths = rng.integers(0, n_keys + 1, batch)
    mask = None
    if rng.integers(2):
        full = (batch, n_kv * group, n_queries, n_keys)
        shape = tuple(int(rng.choice([1, n])) if i < 3 else n for i, n in enumerate(full))[rng.integers(3) :]
        shape = (*shape[:-1], rng.integers(max(lengths), n_keys + 1) or 1) if lengths is not None else shape
        mask = rng.integers(0, 4, shape) > 0
        if rng.integers(2):
            mask = np.where(mask, rng.standard_normal(shape), -np.inf)
    if rng.integers(2):
        attributes |= {"q_num_heads": int(n_kv * group), "kv_num_heads": int(n_kv)}
        q, k, v = (np.swapaxes(x, 1, 2).reshape(batch, x.shape[2], -1) for x in (q, k, v))
    return (q, k, v, mask, *past, lengths), attributes


@pytest.mark.parametrize("seed", range(20))
def test_attention_as_theirs_in_float64(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        feed, attributes = random_attention(rng)
        model, named = model_of("Attention", feed, ("y", "k", "v", "scores"), 25, **attributes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = ReferenceEvaluator(model).run(None, named)
        got = ours("Attention", *feed, outputs=("y", "k", "v", "scores"), opset=25, **attributes)
        for what, one, other in zip(("y", "k", "v", "scores"), got, wanted, strict=True):
            assert one.dtype == np.float64
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=f"{what}: {attributes}")


def test_attention_of_large_numbers_in_float16(rng):
    """Scores of 96000 are beyond float16, and so is one square of 300; the reference gives 0 or NaN."""
    q, k = np.full((1, 1, 2, 64), 150, np.float16), np.full((1, 1, 3, 64), 10, np.float16)
    v = floats(rng, 1, 1, 3, 4).astype(np.float16)
    y, scores = ours("Attention", q, k, v, outputs=("y", "", "", "s"), qk_matmul_output_mode=3, scale=1.0)
    assert ulps(y, attention_oracles.attention(q, k, v, scale=1.0)[0]) <= LIMIT
    np.testing.assert_allclose(scores, 1 / 3, rtol=1e-3)


@pytest.mark.parametrize("mask", [[True, False], [0.0, -np.inf]])
def test_what_is_not_a_number_behind_a_mask(mask):
    q, k, v = np.ones((1, 1, 1, 2)), np.array([[[[1, 1], [np.nan, np.inf]]]]), np.array([[[[5.0], [np.nan]]]])
    for mode, wanted in ((2, [1.5, -np.inf]), (3, [1.0, 0.0])):
        feed = q, k, v, np.array(mask)
        y, scores = ours("Attention", *feed, outputs=("y", "", "", "s"), qk_matmul_output_mode=mode, scale=0.75)
        assert y.item() == 5
        np.testing.assert_array_equal(scores.ravel(), wanted)


def test_raw_scores_are_not_capped():
    q, k, v = np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 1))
    for mode, wanted in ((0, 4.0), (1, 2 * np.tanh(2.0))):
        _, scores = ours("Attention", q, k, v, outputs=("y", "", "", "s"), qk_matmul_output_mode=mode, softcap=2.0, scale=1.0)
        np.testing.assert_allclose(scores.item(), wanted)


def test_masks_of_integers_are_added(rng):
    q, k, v = floats(rng, 3, 1, 2, 4, 8)
    mask = rng.integers(0, 5, (4, 4)).astype(np.uint8)
    y = ours("Attention", q, k, v, mask)
    np.testing.assert_allclose(y, attention_oracles.attention(q, k, v, mask=mask.astype(np.float64))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [23, 24])
def test_a_mask_of_one_key_broadcasts_until_opset_24_pads_it(rng, opset):
    q, k, v = floats(rng, 3, 1, 2, 4, 8)
    mask = np.array([[True], [True], [False], [True]])
    y = ours("Attention", q, k, v, mask, opset=opset)
    whole = np.repeat(mask, 4, axis=1) if opset == 23 else np.pad(mask, ((0, 0), (0, 3)))
    np.testing.assert_allclose(y, attention_oracles.attention(q, k, v, mask=whole)[0], rtol=1e-5, atol=1e-6)


def test_scores_of_an_empty_batch(rng):
    q, k = floats(rng, 0, 4, 3, 8), floats(rng, 0, 2, 5, 8)
    for mode in range(4):
        y, scores = ours("Attention", q, k, k, outputs=("y", "", "", "s"), qk_matmul_output_mode=mode)
        assert (y.shape, scores.shape) == ((0, 4, 3, 8), (0, 4, 3, 5))


@pytest.mark.slow
def test_values_of_another_dtype_and_softmax_in_double(rng):
    q, k, v = floats(rng, 3, 1, 2, 4, 8)
    for one in (v.astype(np.float16), v.astype(np.float64)):
        y, present = ours("Attention", q, k, one, outputs=("y", "", "v"))
        assert (y.dtype, present.dtype) == (np.float32, one.dtype)
        np.testing.assert_allclose(y, attention_oracles.attention(q, k, one)[0], rtol=1e-5, atol=1e-6)
    far = 100 * q  # scores of which float32 has lost three digits
    exact = attention_oracles.attention(far, 100 * k, v)[0]
    y = ours("Attention", far, 100 * k, v, softmax_precision=TensorProto.DOUBLE)
    np.testing.assert_allclose(y, exact, rtol=2e-7, atol=0)


def test_attention_says_what_does_not_fit(rng):
    q = floats(rng, 1, 2, 4, 8)
    flat = q.reshape(1, 8, 8)
    lengths = np.array([4])
    for message, feed, attributes in (
        ("Q must have 3 axes .* q_num_heads None", (flat, flat, flat), {}),
        ("K must have 3 axes .* kv_num_heads 3", (flat, flat, flat), {"q_num_heads": 2, "kv_num_heads": 3}),
        ("Q, K and V must all have 3 or 4 axes", (q, flat, flat), {}),
        ("past_key and past_value must be given together", (q, q, q, None, q), {}),
        ("nonpad_kv_seqlen must not be given together", (q, q, q, None, q, q, lengths), {}),
        ("softmax_precision must be one of", (q, q, q), {"softmax_precision": 7}),
        ("qk_matmul_output_mode must be one of", (q, q, q), {"qk_matmul_output_mode": 4}),
    ):
        with pytest.raises(ValueError, match=f"Attention: {message}"):
            ours("Attention", *feed, outputs=("y", "", "", "s"), opset=24, **attributes)


# ------------------------------------------------------------------------------------------------------- whole models
BLOCK = """
    <ir_version: 10, opset_import: ["" : 23]>
    block (float[b, n, 32] x, float[b, n, 4] cosines, float[b, n, 4] sines) => (float[b, n, 10] logits, float[b, 2, m, 8] keys)
    <float[32] scale, float[32] gain, float[32] shift, float[32, 32] wq, float[32, 16] wk, float[32, 16] wv, float[32, 10] head>
    {
        normed = RMSNormalization <epsilon = 1e-6> (x, scale)
        q = MatMul (normed, wq)
        k = MatMul (normed, wk)
        v = MatMul (normed, wv)
        turned_q = RotaryEmbedding <num_heads = 4> (q, cosines, sines)
        turned_k = RotaryEmbedding <num_heads = 2> (k, cosines, sines)
        attended, keys, values = Attention <is_causal = 1, q_num_heads = 4, kv_num_heads = 2> (turned_q, turned_k, v)
        sum = Add (x, attended)
        last = LayerNormalization <axis = -1> (sum, gain, shift)
        scores = MatMul (last, head)
        logits = LogSoftmax (scores)
    }
"""


def test_a_block_of_a_transformer(rng):
    model = parser.parse_model(BLOCK)
    sizes = {"scale": 32, "gain": 32, "shift": 32, "wq": (32, 32), "wk": (32, 16), "wv": (32, 16), "head": (32, 10)}
    weights = {name: floats(rng, *np.atleast_1d(size)) / np.sqrt(np.float32(32)) for name, size in sizes.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.checker.check_model(model, full_check=True)
    cosines, sines = fastnorm.rope_tables(np.tile(np.arange(7), (2, 1)), 8)
    feed = {"x": floats(rng, 2, 7, 32), "cosines": cosines, "sines": sines}
    evaluator = ReferenceEvaluator(model, new_ops=fastnorm.onnx.OPERATORS)
    assert sum(type(node) in fastnorm.onnx.OPERATORS for node in evaluator.rt_nodes_) == 6
    wanted = ReferenceEvaluator(model).run(None, feed)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for one, other, third in zip(evaluator.run(None, feed), wanted, session.run(None, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(one, third, rtol=2e-5, atol=2e-5)


def test_an_output_without_a_name_is_no_input_of_the_next_node(rng):
    """The evaluator keeps it under "", and would take it for the mask that the second node has none of."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 23]>
        two (float[1, 1, 2, 4] q, float[1, 1, 2, 4] past) => (float[1, 1, 2, 4] y) {
            a, , , s = Attention (q, q, q)
            y, k, v = Attention (a, a, a, , past, past)
        }
    """)
    q, past = floats(rng, 2, 1, 1, 2, 4)
    first = fastnorm.attention(q, q, q)
    keys = np.concatenate((past, first), axis=2)
    y = ReferenceEvaluator(model, new_ops=fastnorm.onnx.OPERATORS).run(None, {"q": q, "past": past})[0]
    np.testing.assert_array_equal(y, fastnorm.attention(first, keys, keys))


def test_functions_of_a_model(rng):
    """The evaluator hands new operators to no function of the model, until it is inlined; alone it does."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 23, "mine" : 1]>
        outer (float[2, 3, 4] x, float[4] w) => (float[2, 3, 4] y) { y = mine.norm <e = 0.5> (x, w) }
        <opset_import: ["" : 23], domain: "mine">
        norm <e> (x, w) => (y) { y = RMSNormalization <epsilon: float = @e> (x, w) }
    """)
    feed = {"x": floats(rng, 2, 3, 4), "w": floats(rng, 4)}
    wanted = fastnorm.rms_norm(*feed.values(), eps=0.5)
    inlined = inliner.inline_local_functions(model)
    function = ReferenceEvaluator(model.functions[0], new_ops=fastnorm.onnx.OPERATORS)
    np.testing.assert_array_equal(function.run(None, feed, attributes={"e": 0.5})[0], wanted)
    np.testing.assert_array_equal(ReferenceEvaluator(inlined, new_ops=fastnorm.onnx.OPERATORS).run(None, feed)[0], wanted)


# ------------------------------------------------------------------------------------------- the module and its pages
def test_without_onnx():
    program = "import sys; sys.modules['onnx'] = None; import fastnorm; import fastnorm.onnx"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: fastnorm.onnx needs the package onnx, 1.19 or newer" in result.stderr


def test_documentation():
    assert fastnorm.onnx.__all__ == ["OPERATORS"]
    assert run(fastnorm.onnx.__doc__, "fastnorm.onnx") > 0
    page = pathlib.Path(__file__).parent.parent / "docs" / "pipelines.md"
    if page.exists():  # an installation has no pages
        assert not [name for name in OPERATORS if f"`{name}`" not in page.read_text()]


TWO = '<ir_version: 8, opset_import: ["" : {}]> g (float[n,d] x, float[d] s) => (float[n,d] y, float[n,1] m) '
NORM = "{{ y, m = LayerNormalization (x, s) }}"


def layer_normalization(opset, x, operators):
    model = parser.parse_model((TWO + NORM).format(opset))
    return ReferenceEvaluator(model, new_ops=operators).run(None, {"x": x, "s": np.ones(x.shape[1], np.float32)})


def test_an_operator_in_a_model_older_than_it(rng):
    """As onnxruntime's optimiser writes LayerNormalization into models below opset 17."""
    x = rng.standard_normal((3, 8)).astype(np.float32)
    own, theirs = (layer_normalization(14, x, operators) for operators in (fastnorm.onnx.OPERATORS, None))
    np.testing.assert_allclose(own[0], theirs[0], atol=1e-6)


def test_statistics_of_empty_rows():
    y, mean = layer_normalization(17, np.empty((3, 0), np.float32), fastnorm.onnx.OPERATORS)
    assert y.shape == (3, 0)
    assert np.isnan(mean).all()
