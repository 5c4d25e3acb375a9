"""RoPE and its tables."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from compare import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import guarded as guarded

import fastnorm
from fastnorm._bench import attention_oracles as oracles

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def assert_right(x, cos, sin, **options):
    y = fastnorm.rope(x, cos, sin, **options)
    wanted = oracles.rope(x, cos, sin, **options)
    unit = {2: 2.0**-8, 4: 2.0**-22, 8: 2.0**-51}[x.itemsize]
    size = np.abs(x.astype(np.float64)).max(initial=0) * 1.5
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert (np.abs(y.astype(wanted.dtype) - wanted) <= unit * size).all()
    n = 2 * cos.shape[-1]
    assert_same_bits(np.ascontiguousarray(y[..., n:]), np.ascontiguousarray(x[..., n:]))
    return y


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    features=st.sampled_from([2, 6, 64, 65, 128, 130, 300]),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    table=st.sampled_from(["length", "batch", "one", "heads", "all"]),
    interleaved=st.booleans(),
)
def test_any_shape(seed, dtype, features, share, table, interleaved):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 5, features)).astype(dtype)
    shape = {"length": (5,), "batch": (2, 1, 5), "one": (1,), "heads": (3, 1), "all": (2, 3, 5)}[table]
    tables = fastnorm.rope_tables(rng.integers(0, 1000, shape), 2 * int(features * share / 2))
    y = assert_right(x, *tables, interleaved=interleaved)
    room = np.zeros((2, 3, 5, 2 * features), dtype)
    room[..., ::2] = x
    assert_same_bits(y, fastnorm.rope(room[..., ::2], *tables, interleaved=interleaved))
    same = x.copy()
    assert fastnorm.rope(same, *tables, interleaved=interleaved, out=same) is same
    assert_same_bits(same, y)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("features", [64, 128])
def test_large(rng, threads, interleaved, features):
    """Streamed, shared among threads: the bits of small calls."""
    x = rng.standard_normal((2, 8, 3000, features), np.float32)
    tables = fastnorm.rope_tables(np.arange(3000), features)
    threads(2)
    y = fastnorm.rope(x, *tables, interleaved=interleaved)
    assert_same_bits(y[1, 3, :50], fastnorm.rope(x[1, 3, :50], *[t[:50] for t in tables], interleaved=interleaved))
    by_length = np.ascontiguousarray(x.swapaxes(1, 2))
    turned = fastnorm.rope(by_length, *[t[:, None] for t in tables], interleaved=interleaved)
    assert_same_bits(turned.swapaxes(1, 2), y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [4, 6, 64, 100, 128])
def test_streamed_wherever_it_begins(rng, monkeypatch, dtype, turned):
    """Rows that share lines with their neighbours, the first and the last of a head with what is beside them."""
    tables = fastnorm.rope_tables(np.arange(5), turned, dtype=np.float64 if dtype is np.float64 else np.float32)
    for features in (turned, turned + 3, 130, 896, 900):
        x = rng.standard_normal((3, 5, features)).astype(dtype)
        memory = np.empty(x.nbytes + 128, np.uint8)
        for offset in range(0, 64, x.itemsize):
            start = -memory.ctypes.data % 64 + offset
            out = memory[start : start + x.nbytes].view(dtype).reshape(x.shape)
            for interleaved in (False, True):
                memory[:] = 7
                monkeypatch.setattr("fastnorm._cpu.norms.STREAM", 0)
                fastnorm.rope(x, *tables, interleaved=interleaved, out=out)
                monkeypatch.undo()
                assert_same_bits(out, fastnorm.rope(x, *tables, interleaved=interleaved))
                assert (memory[:start] == 7).all()
                assert (memory[start + x.nbytes :] == 7).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_calls_take_a_shortcut(rng, monkeypatch, dtype, interleaved):
    """It gives the bits of the long way; what it does not take, the long way judges."""
    x = rng.standard_normal((2, 12, 130)).astype(dtype)[:, ::2, :128]
    tables = fastnorm.rope_tables(np.arange(2), 64, dtype=dtype)
    of_tokens = [t[:, None] for t in tables]
    y = fastnorm.rope(x, *of_tokens, interleaved=interleaved, out=np.empty_like(x))
    with monkeypatch.context() as patched:
        patched.setattr(fastnorm.rotary, "rope_arguments", None)
        assert_same_bits(fastnorm.rope(x, *of_tokens, interleaved=interleaved), y)
    with pytest.raises(ValueError, match="rope: cos must have at most half of the 62 features"):
        fastnorm.rope(x[..., :62], *of_tokens, interleaved=interleaved)
    with pytest.raises(ValueError, match="rope: cos must broadcast to"):
        fastnorm.rope(x[:, :5], *(t[:, :30] for t in tables), interleaved=interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
def test_lengths_stay(rng, interleaved):
    x = rng.standard_normal((7, 64))
    y = fastnorm.rope(x, *fastnorm.rope_tables(np.arange(7), 64, dtype=np.float64), interleaved=interleaved)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-14)


def test_the_two_pairings(rng):
    """One is the other with the features in another order."""
    x = rng.standard_normal((5, 12), np.float32)
    tables = fastnorm.rope_tables(np.arange(5), 12)
    order = np.arange(12).reshape(2, 6).T.ravel()
    assert_same_bits(fastnorm.rope(x[:, order], *tables, interleaved=True), fastnorm.rope(x, *tables)[:, order])


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_memory(rng, guarded, at_end, interleaved):
    for features in (2, 6, 30, 64, 66, 126, 128, 130):
        x = rng.standard_normal((3, features), np.float32)
        tables = fastnorm.rope_tables(np.arange(3), features)
        wanted = fastnorm.rope(x, *tables, interleaved=interleaved)
        placed = [guarded.array(a, at_end) for a in (x, *tables)]
        out = guarded.array(np.zeros_like(x), at_end)
        assert_same_bits(fastnorm.rope(*placed, interleaved=interleaved, out=out), wanted)
        guarded.close()


# ------------------------------------------------------------------------------------------------------------ tables
def angles(dim, scaling, base=10000.0):
    """Angles of position 1, from the tables."""
    cos, sin = fastnorm.rope_tables(1, dim, base=base, scaling=scaling, dtype=np.float64)
    return np.arctan2(sin, cos)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables(dtype):
    positions = np.arange(0, 131072, 1317).reshape(4, 25)
    cos, sin = fastnorm.rope_tables(positions, 64, base=500000.0, dtype=dtype)
    angle = positions[..., None] * 500000.0 ** (-np.arange(0, 64, 2) / 64)
    assert cos.shape == sin.shape == (4, 25, 32)
    for table, wanted in ((cos, np.cos(angle)), (sin, np.sin(angle))):
        assert table.dtype == dtype
        half = {2: 2.0**-9 if dtype != np.float16 else 2.0**-12, 4: 2.0**-25, 8: 2.0**-52}[table.itemsize]
        assert np.abs(table.astype(np.float64) - wanted).max() <= half * 1.001 + 1e-16


def test_names_and_bases_of_any_kind():
    """The name of a dtype that NumPy does not know until its package is there, and numbers as other functions take them."""
    program = "import fastnorm; print(fastnorm.rope_tables([0, 1], 4, dtype='bfloat16')[0].dtype)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "bfloat16\n"
    wanted = fastnorm.rope_tables([0, 1], 8, base=512.0)
    for base in (512, np.float32(512), np.array(512.0), ml_dtypes.bfloat16(512)):
        np.testing.assert_array_equal(fastnorm.rope_tables([0, 1], 8, base=base), wanted)


def test_scalings_without_their_effect():
    plain = angles(64, None)
    for scaling in (
        {"rope_type": "linear", "factor": 1.0},
        {"type": "ntk", "factor": 1},
        {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096},
        {"type": "llama3", "factor": 1, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192},
    ):
        np.testing.assert_allclose(angles(64, scaling), plain, rtol=1e-12)


def test_linear_and_ntk():
    plain = angles(64, None)
    np.testing.assert_allclose(angles(64, {"rope_type": "linear", "factor": 4.0}), plain / 4, rtol=1e-12)
    ntk = angles(64, {"type": "ntk", "factor": 4.0})
    np.testing.assert_allclose([ntk[0], ntk[-1]], [plain[0], plain[-1] / 4], rtol=1e-12)


def test_llama3():
    """Each pair by the rule as Llama 3.1 states it: by its wave's length."""
    original, factor, low, high = 8192, 8.0, 1.0, 4.0
    scaling = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    got = angles(128, {"rope_type": "llama3", "original_max_position_embeddings": original} | scaling, base=500000.0)
    for plain, scaled in zip(angles(128, None, base=500000.0), got, strict=True):
        wave = 2 * np.pi / plain
        smooth = (original / wave - low) / (high - low)
        if wave > original / low:
            wanted = plain / factor
        elif wave < original / high:
            wanted = plain
        else:
            wanted = (1 - smooth) * plain / factor + smooth * plain
        np.testing.assert_allclose(scaled, wanted, rtol=1e-12)


def test_yarn():
    """The ramp lies between the pairs that turn 32 times and once; both tables are multiplied."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    cos, sin = fastnorm.rope_tables(1, 128, scaling=scaling, dtype=np.float64)
    np.testing.assert_allclose(np.hypot(cos, sin), 0.1 * np.log(4) + 1, rtol=1e-12)
    ratio = angles(128, scaling) / angles(128, None)
    turns = 4096 * angles(128, None) / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns > 33 * 1.2], 1, rtol=1e-12)
    np.testing.assert_allclose(ratio[turns < 0.8], 0.25, rtol=1e-12)
    assert (np.diff(ratio) <= 1e-12).all()
    fixed = fastnorm.rope_tables(0, 128, scaling=scaling | {"attention_factor": 2.0})[0]
    assert (fixed == 2).all()


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (ValueError, "dim", {"dim": 7}),
        (ValueError, "dim", {"dim": -2}),
        (TypeError, "dim", {"dim": 2.0}),
        (ValueError, "base", {"base": 0.0}),
        (ValueError, "base", {"base": np.inf}),
        (TypeError, "base", {"base": "a"}),
        (TypeError, "base", {"base": np.ones(2)}),
        (TypeError, "dtype", {"dtype": np.int32}),
        (ValueError, "dim", {"dim": 2**70}),
        (TypeError, "dtype", {"dtype": None}),
        (ValueError, "base", {"base": 1.0, "scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 10}}),
        (ValueError, "rope_type", {"scaling": {"type": ["a"], "factor": 2}}),
        (TypeError, "scaling", {"scaling": 3}),
        (ValueError, "rope_type", {"scaling": {"factor": 2.0}}),
        (ValueError, "rope_type", {"scaling": {"type": "other", "factor": 2.0}}),
        (ValueError, "factor", {"scaling": {"type": "linear"}}),
        (ValueError, "speed", {"scaling": {"type": "linear", "factor": 2.0, "speed": 1}}),
        (ValueError, "factor=-1", {"scaling": {"type": "linear", "factor": -1}}),
    ],
)
def test_wrong_tables(error, words, options):
    with pytest.raises(error, match=r"^rope_tables: ") as raised:
        fastnorm.rope_tables(np.arange(3), **({"dim": 8} | options))
    assert words in str(raised.value)


X, T = np.ones((2, 3, 8), np.float32), np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("error", "words", "args", "options"),
    [
        (ValueError, "cos must have at most", (X, np.ones((3, 5)), np.ones((3, 5))), {}),
        (ValueError, "sin must have the shape", (X, T, T[:, :3]), {}),
        (ValueError, "cos must broadcast", (X, np.ones((7, 4)), np.ones((7, 4))), {}),
        (ValueError, "cos must broadcast", (X, np.ones((4, 2, 3, 4)), np.ones((4, 2, 3, 4))), {}),
        (TypeError, "x must", (X.astype(complex), T, T), {}),
        (TypeError, "cos must", (X, T.astype(complex), T), {}),
        (TypeError, "cos must", (X, np.ma.masked_array(T), T), {}),
        (TypeError, "interleaved must", (X, T, T), {"interleaved": 1}),
        (ValueError, "out must", (X, T, T), {"out": np.zeros((2, 3, 7), np.float32)}),
        (ValueError, "x must", (np.float32(1), T, T), {}),
    ],
)
def test_wrong_calls(error, words, args, options):
    with pytest.raises(error, match=f"^rope: {words}"):
        fastnorm.rope(*args, **options)
