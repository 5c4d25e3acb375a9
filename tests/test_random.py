"""Random calls of all six norms, by hypothesis, against the oracles and against the same call on contiguous copies."""

import importlib

import ml_dtypes
import numpy as np
import pytest
from calls import call, groups_of
from compare import BIASED, LIMIT, NORMS, assert_same_bits, error
from hypothesis import given, settings
from hypothesis import strategies as st

from fastnorm._cpu.layout import SMALL

# Of residuals, besides that of x: each pair has kernels that take seconds to compile. `test_half.py` goes through all.
OTHERS = {
    np.float16: [np.float32, np.float64],
    np.float32: [ml_dtypes.bfloat16, np.float64],
    np.float64: [np.float32, np.int16],
}
LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 33, 64, 65, 100, 130])


def numbers(rng, shape, dtype, scale, offset):
    """Normal numbers, or integers that may be called so."""
    values = rng.standard_normal(shape) * scale + offset
    if np.dtype(dtype).kind == "i":
        return np.clip(values * 100, -30000, 30000).astype(dtype)
    return np.clip(values, -60000, 60000).astype(dtype)


# Those who look at SMALL. By name, since the package has a function of a module's name.
MODULES = [
    importlib.import_module(f"fastnorm.{name}") for name in ("_arguments", "_cpu.norms", "_cpu.add_norm", "_cpu.group_norm")
]


@st.composite
def views(draw, shape, dtype, rng):
    """An array of this shape and dtype: any order of axes, any steps, any byte order, aligned or not, some rows repeated."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in shape]
    scale, offset = draw(st.sampled_from([1.0, 1e-3, 30.0])), draw(st.sampled_from([0.0, 1.0, 500.0]))
    room = numbers(rng, [shape[a] * abs(steps[a]) for a in order], dtype, scale, offset)
    view = room.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    kind = draw(st.sampled_from(["as it is"] * 4 + ["swapped bytes", "unaligned", "read-only", "broadcast"]))
    if kind == "swapped bytes" and view.dtype.name != "bfloat16":
        view = view.astype(view.dtype.newbyteorder())
    if kind == "unaligned":
        view = np.frombuffer(b"." + view.tobytes(), view.dtype, view.size, 1).reshape(shape)
    if kind == "read-only":
        view.flags.writeable = False
    if kind == "broadcast":
        view = np.broadcast_to(view[:1], shape)
    return view


@st.composite
def calls(draw, dtypes):
    """A norm, its arrays and its keywords."""
    norm = draw(st.sampled_from(NORMS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.lists(LENGTHS, min_size=1 + (norm == "group_norm"), max_size=3)))
    while np.prod(shape) > 5000:
        shape = tuple(1 + n // 2 for n in shape)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    dtype = draw(st.sampled_from(dtypes))
    residual_dtype = draw(st.sampled_from([dtype, dtype, *OTHERS.get(dtype, [])]))
    kinds = [dtype, residual_dtype] if norm.startswith("add_") else [dtype]
    arrays = [draw(views(shape, kind, rng)) for kind in kinds]
    weights = []
    for _ in range(1 + (norm in BIASED)):
        dtype = draw(st.sampled_from([None, np.float32, np.float64, np.float16, np.int8]))
        weights.append(None if dtype is None else (5 * rng.standard_normal(shape[axis])).astype(dtype))
    return norm, arrays, weights, axis, draw(st.sampled_from([0.0, 1e-6, 1e-5, 0.1, 10.0]))


def check(norm, arrays, weights, axis, eps):
    """Right numbers, the bits of contiguous copies, by whatever schedule; and inputs that are as they were."""
    before = [a.copy() for a in arrays]
    groups = [groups_of(arrays[0].shape[axis])] if norm == "group_norm" else []
    assert error(norm, *arrays, *groups, *weights, axis=axis, eps=eps) <= LIMIT
    copies = call(norm, [np.ascontiguousarray(a) for a in arrays], axis, weights=weights, eps=eps)
    for small in (SMALL, 0):  # as small arrays are treated, and as large ones
        with pytest.MonkeyPatch.context() as patch:
            for module in MODULES:
                patch.setattr(module, "SMALL", small)
            results = call(norm, arrays, axis, weights=weights, eps=eps)
        for y, wanted in zip(results, copies, strict=True):
            assert_same_bits(y, wanted)
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.slow
@given(calls([np.float32, np.float32, np.float32, np.float64]))
@settings(max_examples=100, deadline=None)
def test_any_call(it):
    check(*it)


@pytest.mark.slow
@given(calls([np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int16, np.int32]))
@settings(max_examples=1500, deadline=None)
def test_any_call_of_any_dtype(it):
    check(*it)
