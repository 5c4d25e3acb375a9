"""A row's bits are its own: whatever the layout, the threads, the other rows, the schedule."""

import importlib
import itertools

import numpy as np
import pytest
from calls import call, groups_of, inputs, parameters
from compare import NORMS, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import fastnorm
from fastnorm import _math
from fastnorm._compile import kernel
from fastnorm._cpu import norms as schedules
from fastnorm._cpu.layout import FEW, scratch_rows

SIZES = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 4096, 4099]
PLAIN, STREAMING = np.array([False]), np.array([True])


SCHEDULED = ["rms_norm", "layer_norm"]  # about zero, about the mean
OF_ROWS = [norm for norm in NORMS if norm != "group_norm"]
# Those who look at sizes. By name, since the package has a function of a module's name.
MODULES = [importlib.import_module(f"fastnorm._cpu.{name}") for name in ("norms", "add_norm", "group_norm")]


def weight_and_bias(norm, weight):
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
@pytest.mark.parametrize("weights", ["ordinary", "some extreme", "one number"])
@pytest.mark.parametrize("norm", SCHEDULED)
def test_all_schedules_agree(rng, monkeypatch, norm, n, eps, weights):
    x, weight = hard_rows(rng, 70, n), rng.standard_normal(n).astype(np.float32)
    x[::3, ::5] *= np.float32(1e-38)
    x[1::7] += np.float32(1e4)
    if weights == "some extreme":
        weight[1::4] *= np.float32(1e35)
        weight[2::4] *= np.float32(1e-38)
    if weights == "one number":
        weight = np.broadcast_to(weight[:1], n)
    both = schedules.both_eps(norm, x.dtype, eps)
    weights = weight_and_bias(norm, weight)
    wanted = by_rows(norm, x, weights, both)
    assert_same_bits(by_rows(norm, x, weights, both, STREAMING), wanted)
    for order in ("C", "F"):
        out = np.full_like(x, np.nan, order=order)
        kernel("fastnorm._cpu.small:rows", norm, "float32").ufunc(np.asarray(x, order=order), *weights, both, out)
        assert_same_bits(out, wanted)
    assert_same_bits(by_columns(norm, x, weights, both), wanted)
    assert_same_bits(by_columns(norm, x, weights, both, STREAMING), wanted)
    for piece in (512, 1024) if n > FEW else ():
        assert_same_bits(in_pieces(norm, x[:5], weights, both, piece, monkeypatch), wanted[:5])


def assert_same(results, wanted):
    """Every result has the same bits: y, or y and h."""
    for y, one in zip(results, wanted, strict=True):
        assert_same_bits(y, one)


@pytest.mark.parametrize("norm", OF_ROWS)
def test_one_row_alone(rng, norm):
    arrays = [hard_rows(rng, 9, 777) for _ in inputs(norm, rng, 1)]
    together = call(norm, arrays)
    for i in range(9):
        assert_same(call(norm, [a[i] for a in arrays]), [y[i] for y in together])
        assert_same(call(norm, [a[i : i + 1] for a in arrays]), [y[i : i + 1] for y in together])


@pytest.mark.parametrize("shape", [(5, 12, 7), (3, 12, 100), (4, 12, 3, 50), (2, 12, 40_000)])
@pytest.mark.parametrize("axis", [1, -1])
def test_one_image_or_group_alone(rng, shape, axis):
    x = rng.standard_normal(shape).astype(np.float32)
    x[1] *= np.float32(1e-30)
    x = np.moveaxis(x, 1, axis).copy()
    weight, bias = parameters("group_norm", 12)
    together = fastnorm.group_norm(x, 4, weight, bias, axis=axis)
    for i in range(len(x)):
        assert_same_bits(fastnorm.group_norm(x[i : i + 1], 4, weight, bias, axis=axis), together[i : i + 1])
        alone = fastnorm.group_norm(x[i], 4, weight, bias, axis=0 if axis == 1 else axis) if axis == 1 else None
        if alone is not None:
            assert_same_bits(alone, together[i])
    channels_first, results = np.moveaxis(x, axis, 1), np.moveaxis(together, axis, 1)
    for j in range(0, 12, 3):
        group = np.moveaxis(channels_first[:, j : j + 3], 1, axis).copy()
        alone = fastnorm.group_norm(group, 1, weight[j : j + 3], bias[j : j + 3], axis=axis)
        assert_same_bits(np.moveaxis(alone, axis, 1), results[:, j : j + 3])


@pytest.mark.parametrize("shape", [(3, 6, 5), (2, 6, 64), (2, 6, 65), (1, 6, 700), (2, 6, 7, 9), (1, 2, 100_000), (70, 8, 8)])
def test_groups_are_rows(rng, shape):
    """A group is a row of `layer_norm`, with weights repeated over space; instance norm is `layer_norm` over space."""
    x = rng.standard_normal(shape).astype(np.float32)
    channels, space = shape[1], int(np.prod(shape[2:]))
    weight, bias = parameters("group_norm", channels)
    for groups in (1, 2, channels):
        rows = x.reshape(shape[0], groups, -1)
        wanted = np.empty_like(rows)
        for j in range(groups):
            part = slice(j * channels // groups, (j + 1) * channels // groups)
            wanted[:, j] = fastnorm.layer_norm(rows[:, j], weight[part].repeat(space), bias[part].repeat(space))
        assert_same_bits(fastnorm.group_norm(x, groups, weight, bias), wanted.reshape(shape))


@pytest.mark.parametrize("shape", [(5, 33), (40, 1100), (200, 300), (3, 70_000)])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(d, marks=pytest.mark.slow) for d in (np.float16, np.float64))])
def test_a_sum_is_a_sum_and_its_norm(rng, norm, shape, dtype):
    x, residual = rng.standard_normal((2, *shape)).astype(dtype)
    for axis in (0, -1):
        weights = parameters(norm, shape[axis])
        y, h = call("add_" + norm, [x, residual], axis, weights=weights)
        assert_same_bits(h, x + residual)
        assert_same_bits(y, call(norm, [h], axis, weights=weights)[0])


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
@pytest.mark.parametrize("norm", NORMS)
def test_layouts(rng, tmp_path, norm, layout, shape):
    arrays = inputs(norm, rng, shape)
    if layout == "memory-mapped":
        for i, array in enumerate(arrays):
            np.save(tmp_path / f"{i}.npy", array)
        odd = [np.load(tmp_path / f"{i}.npy", mmap_mode="r") for i in range(len(arrays))]
    else:
        odd = [LAYOUTS[layout](a) for a in arrays]
    for axis in range(-1, len(shape)):
        weights = [np.repeat(p, 3)[::3] for p in parameters(norm, shape[axis])]
        wanted = call(norm, arrays, axis)
        assert_same(call(norm, odd, axis), wanted)
        assert_same(call(norm, [arrays[0], *odd[1:]], axis, weights=weights), wanted)
        outs = [np.empty_like(np.asarray(a), dtype=np.float32) for a in odd]
        results = call(norm, odd, axis, outs)
        assert all(y is out for y, out in zip(results, outs, strict=True))
        assert_same(results, wanted)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(5, 33), (300, 500), (2, 6, 9, 40), (3, 50_000)])
def test_in_place(rng, norm, shape):
    """Over x, over residual, and over both of them, either way round."""
    kept = inputs(norm, rng, shape)
    for axis in range(-1, len(shape)):
        wanted = call(norm, kept, axis)
        for order in [(0,), (1,), (0, 1), (1, 0)] if len(kept) == 2 else [(0,)]:
            for arrange in (np.copy, np.asfortranarray, lambda a: a[..., ::-1].copy()[..., ::-1]):
                arrays = [arrange(a) for a in kept]
                outs = [arrays[i] for i in order]
                results = call(norm, arrays, axis, outs)
                assert all(y is out for y, out in zip(results, outs, strict=False))
                assert_same(results, wanted)
    if len(kept) == 2:  # h alone in place, y new
        arrays = [a.copy() for a in kept]
        results = call(norm, arrays, residual_out=arrays[1])
        assert results[1] is arrays[1]
        assert_same(results, call(norm, kept))


def test_broadcast_rows(rng):
    row = rng.standard_normal(1000).astype(np.float32)
    for norm in NORMS:
        arrays = [np.broadcast_to(row, (50, 3, 1000)) for _ in inputs(norm, rng, 1)]
        assert_same(call(norm, arrays), call(norm, [a.copy() for a in arrays]))
        arrays = [np.broadcast_to(row[:, None], (1000, 7)) for _ in arrays]
        assert_same(call(norm, arrays), call(norm, [a.copy() for a in arrays]))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("norm", OF_ROWS)
def test_axes_agree(rng, norm, axis):
    arrays = inputs(norm, rng, (70, 130, 90))
    last = [np.moveaxis(a, axis, -1).copy() for a in arrays]
    wanted = [np.moveaxis(y, -1, axis) for y in call(norm, last)]
    assert_same(call(norm, arrays, axis), wanted)


@pytest.mark.parametrize("shape", [(2048, 1500), (3, 700_001), (1, 2_000_003), (40, 300, 200)])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "add_layer_norm"])
def test_threads_and_alignment(rng, threads, norm, shape):
    """Large enough for threads, pieces and streaming; all alignments of what is written."""
    arrays = inputs(norm, rng, shape)
    two = [np.full(shape[0], 2, np.float32)] * len(parameters(norm, 1))
    threads(1)
    wanted, first = call(norm, arrays), call(norm, arrays, axis=0, weights=two)
    rooms = [np.empty(a.size + 16, np.float32) for a in arrays]
    for n in (1, 2, 5):
        threads(n)
        for start in (0, 5, 15):
            outs = [room[start : start + a.size].reshape(shape) for room, a in zip(rooms, arrays, strict=True)]
            assert_same(call(norm, arrays, outs=outs), wanted)
        assert_same(call(norm, arrays, axis=0, weights=two), first)


@pytest.mark.parametrize("shape", [(20, 32, 3000), (64, 16, 1500), (1, 4, 300_003), (1, 2, 1_500_000), (1, 1_500_000, 1)])
@pytest.mark.parametrize("axis", [1, -1])
def test_threads_and_alignment_of_groups(rng, threads, shape, axis):
    x = np.moveaxis(rng.standard_normal(shape).astype(np.float32), 1, axis).copy()
    groups = min(groups_of(shape[1]), 2)
    weight, bias = parameters("group_norm", shape[1])
    threads(1)
    wanted = fastnorm.group_norm(x, groups, weight, bias, axis=axis)
    room = np.empty(x.size + 16, np.float32)
    for n, start in ((1, 5), (2, 0), (2, 15), (5, 1)):
        threads(n)
        out = room[start : start + x.size].reshape(x.shape)
        assert_same_bits(fastnorm.group_norm(x, groups, weight, bias, axis=axis, out=out), wanted)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float16, marks=pytest.mark.slow)])
def test_streaming_does_not_show(rng, monkeypatch, norm, dtype):
    """Of what is streamed, all arrives: the threshold is lowered so that small arrays are."""
    with np.errstate(all="ignore"):
        arrays = [hard_rows(rng, 64, 5000).astype(dtype) for _ in inputs(norm, rng, 1)]
    if norm == "group_norm":
        arrays = [arrays[0].reshape(8, 8, 5000)]
    shape, size = arrays[0].shape, arrays[0].size
    axes = (1, 0) if norm == "group_norm" else (-1, 0)
    wanted = [call(norm, arrays, axis) for axis in axes]
    for name, value in {"SMALL": 0, "PARALLEL": 0, "STREAM": 0, "TASK": 20000}.items():
        for module in MODULES:
            monkeypatch.setattr(module, name, value, raising=False)
    rooms = [np.empty(size + 128, dtype) for _ in arrays]
    for start, other in [(0, 0), (7, 7), (14, 15), (21, 85), (28, 1), (63, 31)]:  # lines of both results alike, and not
        outs = [room[at : at + size].reshape(shape) for room, at in zip(rooms, (start, other), strict=False)]
        for axis, results in zip(axes, wanted, strict=True):
            assert_same(call(norm, arrays, axis, outs), results)
    for i, array in enumerate(arrays):  # one result over an input, the other streamed
        outs = [room[:size].reshape(shape) for room in rooms]
        outs[i] = array.copy()
        assert_same(call(norm, [outs[i] if j == i else a for j, a in enumerate(arrays)], axes[0], outs), wanted[0])


@pytest.mark.parametrize("width", [1, 20, 64, 1000])
def test_interleaved_results(rng, monkeypatch, width):
    """Rows of y and h that take turns in memory, down to neighbours in one line: neither writes over the other."""
    for name, value in {"SMALL": 0, "PARALLEL": 0, "STREAM": 0}.items():
        for module in MODULES:
            monkeypatch.setattr(module, name, value, raising=False)
    for norm in ("add_rms_norm", "add_layer_norm"):
        arrays = inputs(norm, rng, (90, width))
        wanted = call(norm, arrays)
        room = np.full((90, 2, width), np.nan, np.float32)
        assert_same(call(norm, arrays, outs=[room[:, 0], room[:, 1]]), wanted)
        room = np.full((90, width, 2), np.nan, np.float32)
        assert_same(call(norm, arrays, outs=[room[..., 1], room[..., 0]]), wanted)
        room = np.stack(arrays, axis=1)
        assert_same(call(norm, [room[:, 0], room[:, 1]], outs=[room[:, 1], room[:, 0]]), wanted)


@pytest.mark.parametrize("piece", [512, 1024])
def test_groups_in_pieces(rng, monkeypatch, piece):
    """Large groups are cut: within a channel, between channels, or without regard to them."""
    for shape in [(2, 6, 1000), (2, 6, 5000), (1, 3, 20_000), (2, 4000, 1), (1, 900, 7), (1, 300, 3, 5)]:
        x = rng.standard_normal(shape).astype(np.float32)
        wanted = fastnorm.group_norm(x, 1, *parameters("group_norm", shape[1]))
        with monkeypatch.context() as patch:
            for name, value in {"SMALL": 0, "PARALLEL": piece, "LONG": 2 * piece}.items():
                for module in MODULES:
                    patch.setattr(module, name, value, raising=False)
            with fastnorm.set_num_threads(2):
                assert_same_bits(fastnorm.group_norm(x, 1, *parameters("group_norm", shape[1])), wanted)


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
