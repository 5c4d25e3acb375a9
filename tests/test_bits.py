"""A row's bits are its own: whatever the layout, the threads, the other rows, the schedule."""

import itertools

import numpy as np
import pytest
from compare import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import fastnorm
from fastnorm import _math
from fastnorm._compile import kernel
from fastnorm._cpu import norms as schedules
from fastnorm._cpu.layout import FEW, scratch_rows

SIZES = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 4096, 4099]
PLAIN, STREAMING = np.array([False]), np.array([True])


NORMS = ["rms_norm", "layer_norm"]  # about zero, about the mean


def parameters(norm, weight):
    """Weight, and where there is one a bias."""
    return (weight, weight[::-1] * np.float32(0.5)) if _math.NORMS[norm].biased else (weight,)


def by_rows(norm, x, weights, eps, flags=PLAIN):
    out = np.full_like(x, np.nan)
    kernel("fastnorm._cpu.rows:rows", norm, "float32").ufunc(x, *weights, eps, flags, out)
    return out


def by_columns(norm, x, weights, eps, flags=PLAIN):
    out = np.full_like(x.T, np.nan, order="C")
    rows = scratch_rows(x.shape[1], _math.NORMS[norm].centred)
    scratch = np.full((rows, -(-len(x) // 64) * 64), np.nan, np.float32)
    columns = np.ascontiguousarray(x.T)
    kernel("fastnorm._cpu.columns:columns", norm, "float32").ufunc(columns, *weights, eps, scratch, flags, out)
    return out.T


def in_pieces(norm, x, weights, eps, piece, monkeypatch):
    monkeypatch.setattr(schedules, "LONG", 2 * piece)
    out = np.full_like(x, np.nan)
    for row, target in zip(x, out, strict=True):
        schedules._by_pieces(norm, row, weights, eps, target, PLAIN)
    return out


def hard_rows(rng, rows, n):
    """Rows of every kind, common and not, side by side."""
    x = rng.standard_normal((rows, n)).astype(np.float32)
    x *= rng.choice(np.array([1, 1e30, 1e-30, 1e-42, 0, 3e-16, 1e15], np.float32), (rows, 1))
    return x


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("weights", ["light", "some heavy", "one number"])
@pytest.mark.parametrize("norm", NORMS)
def test_all_schedules_agree(rng, monkeypatch, norm, n, eps, weights):
    x, weight = hard_rows(rng, 70, n), rng.standard_normal(n).astype(np.float32)
    x[::3, ::5] *= np.float32(1e-38)
    x[1::7] += np.float32(1e4)
    if weights == "some heavy":
        weight[1::4] *= np.float32(1e35)
    if weights == "one number":
        weight = np.broadcast_to(weight[:1], n)
    both = schedules._ready(norm, x.dtype, eps)[1]
    weights = parameters(norm, weight)
    wanted = by_rows(norm, x, weights, both)
    assert_same_bits(by_rows(norm, x, weights, both, STREAMING), wanted)
    assert_same_bits(by_columns(norm, x, weights, both), wanted)
    assert_same_bits(by_columns(norm, x, weights, both, STREAMING), wanted)
    assert_same_bits(by_rows(norm, np.asfortranarray(x), weights, both), wanted)
    for piece in (512, 1024) if n > FEW else ():
        assert_same_bits(in_pieces(norm, x[:5], weights, both, piece, monkeypatch), wanted[:5])


def test_one_row_alone(rng):
    x, weight = hard_rows(rng, 9, 777), rng.standard_normal(777).astype(np.float32)
    together = fastnorm.rms_norm(x, weight)
    for row, wanted in zip(x, together, strict=True):
        assert_same_bits(fastnorm.rms_norm(row, weight), wanted)


LAYOUTS = {
    "reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "fortran": np.asfortranarray,
    "stepped": lambda x: np.repeat(np.repeat(x, 2, 0), 3, -1)[::2, ..., ::3],
    "padded": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 5)])[..., 2:-5],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape),
    "memory-mapped": None,
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 33), (3, 4, 130), (40, 1100), (2, 3, 5, 64)])
def test_layouts(rng, tmp_path, layout, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    if layout == "memory-mapped":
        np.save(tmp_path / "x.npy", x)
        odd = np.load(tmp_path / "x.npy", mmap_mode="r")
    else:
        odd = LAYOUTS[layout](x)
    assert (odd == x).all()
    for axis in range(-1, x.ndim):
        weight = rng.standard_normal(shape[axis]).astype(np.float32)
        wanted = fastnorm.rms_norm(x, weight, axis=axis)
        assert_same_bits(fastnorm.rms_norm(odd, weight, axis=axis), wanted)
        out = np.empty_like(np.asarray(odd), dtype=np.float32)
        assert fastnorm.rms_norm(odd, np.repeat(weight, 3)[::3], axis=axis, out=out) is out
        assert_same_bits(out, wanted)


def test_broadcast_rows(rng):
    row = rng.standard_normal(1000).astype(np.float32)
    x = np.broadcast_to(row, (50, 3, 1000))
    assert_same_bits(fastnorm.rms_norm(x), np.broadcast_to(fastnorm.rms_norm(row), x.shape))
    column = np.broadcast_to(row[:, None], (1000, 7))
    assert_same_bits(fastnorm.rms_norm(column), fastnorm.rms_norm(column.copy()))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_agree(rng, axis):
    x = rng.standard_normal((70, 130, 90)).astype(np.float32)
    weight = rng.standard_normal(x.shape[axis]).astype(np.float32)
    last = np.moveaxis(x, axis, -1).copy()
    assert_same_bits(fastnorm.rms_norm(x, weight, axis=axis), np.moveaxis(fastnorm.rms_norm(last, weight), -1, axis))


@pytest.mark.parametrize("shape", [(2048, 1500), (3, 700_001), (1, 2_000_003), (40, 300, 200)])
def test_threads_and_alignment(rng, threads, shape):
    """Large enough for threads, pieces and streaming; all alignments of what is written."""
    x, weight = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[-1]).astype(np.float32)
    threads(1)
    wanted = fastnorm.rms_norm(x, weight)
    first = fastnorm.rms_norm(x, rng.standard_normal(shape[0]).astype(np.float32) * 0 + 2, axis=0)
    room = np.empty(x.size + 16, np.float32)
    for n in (1, 2, 3, 8):
        threads(n)
        for start in (0, 1, 5, 15):
            out = room[start : start + x.size].reshape(shape)
            assert_same_bits(fastnorm.rms_norm(x, weight, out=out), wanted)
        assert_same_bits(fastnorm.rms_norm(x, np.full(shape[0], 2, np.float32), axis=0), first)


def test_streaming_does_not_show(rng, monkeypatch):
    """Of what is streamed, all arrives: the threshold is lowered so that small arrays are."""
    x, weight = hard_rows(rng, 64, 5000), rng.standard_normal(5000).astype(np.float32)
    wanted = fastnorm.rms_norm(x, weight), fastnorm.rms_norm(x, axis=0)
    for name, value in {"SMALL": 0, "PARALLEL": 0, "STREAM": 0, "TASK": 20000}.items():
        monkeypatch.setattr(schedules, name, value)
    room = np.empty(x.size + 64, np.float32)
    for start in range(0, 64, 7):
        out = room[start : start + x.size].reshape(x.shape)
        assert_same_bits(fastnorm.rms_norm(x, weight, out=out), wanted[0])
        assert_same_bits(fastnorm.rms_norm(x, axis=0, out=out), wanted[1])


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    steps=st.lists(st.sampled_from([-3, -2, -1, 1, 2]), min_size=5, max_size=5),
    order=st.randoms(use_true_random=False),
    axis=st.integers(-5, 4),
)
@settings(max_examples=150, deadline=None)
def test_any_view(shape, steps, order, axis):
    axis = axis % len(shape)
    axes = list(range(len(shape)))
    order.shuffle(axes)
    room = np.random.default_rng(1).standard_normal([3 * n for n in shape]).astype(np.float32)
    view = room[tuple(slice(None, None, step) for step in steps[: len(shape)])].transpose(axes)
    view = view[tuple(slice(0, max(1, n // 2)) for n in view.shape)]
    assert_same_bits(fastnorm.rms_norm(view, axis=axis), fastnorm.rms_norm(np.ascontiguousarray(view), axis=axis))


def test_planes_cover_every_element_once():
    """The views of the schedules hold exactly the array's elements, whatever the order of its axes."""
    from fastnorm._cpu.layout import planes

    room = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for axes in itertools.permutations(range(4)):
        x = room.transpose(axes)
        view = planes(x, np.empty_like(x))
        if view is not None:
            seen, out = view.arrays
            assert sorted(seen.ravel()) == list(range(x.size))
            assert seen.shape == out.shape
            assert seen.strides[-1] == x.itemsize
