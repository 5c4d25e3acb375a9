"""Softmax, RoPE and attention on CuPy arrays: PTX interpreted, or a real device with --backend cupy, against oracles."""

import cuda_devices
import numpy as np
import ptxrun
import pytest
from compare import assert_same_bits
from cuda_attention_cases import EACH_OPTION, UNIT, arrays, checked
from far_from_one import CASES as FAR_FROM_ONE

import fastnorm
from fastnorm._bench import attention_oracles as oracles
from fastnorm._cuda import attention_layout, launch

DTYPES = {"float16": "int16", "float32": "float32", "float64": "float64"}


@pytest.fixture(params=["interpreted", pytest.param("real", marks=pytest.mark.gpu)])
def device(request):
    with getattr(cuda_devices, request.param)(**({"check_races": True} if request.param == "interpreted" else {})) as found:
        yield found


def close(y, wanted, rtol, atol):
    np.testing.assert_allclose(y, wanted.astype(y.dtype), rtol=rtol, atol=atol)


# ------------------------------------------------------------------------------------------------ softmax and RoPE
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1000, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 8, 33, 20000))])
@np.errstate(all="ignore")
def test_softmax(device, rng, n, dtype):
    x, unit = (3 * rng.standard_normal((5, n))).astype(dtype), UNIT[dtype]
    x[1], x[2, 0], x[3, -1] = -np.inf, np.inf, np.nan
    x[4] = np.finfo(dtype).max
    x[4, ::2] *= -1
    for scale in (1.0, -0.5):
        y, log = (device.host(f(device.array(x), scale=scale)) for f in (fastnorm.softmax, fastnorm.log_softmax))
        wanted = oracles.softmax(x, scale=scale)
        good = [0, 4] if scale < 0 else [0, 1, 4]
        close(y[good], wanted[good], 8 * unit, 2 * unit)
        assert np.isnan(y[2 if scale > 0 else 3 : 4]).any(axis=1).all()
        exact = np.log(wanted[0].clip(1e-300))
        close(log[0], exact, 16 * unit, 16 * unit * max(1, np.abs(exact).max()))
        assert scale < 0 or (log[1] == -np.inf).all()
    total = device.host(fastnorm.logsumexp(device.array(x)))
    close(total[0], oracles.logsumexp(x)[0], 8 * unit, 8 * unit)
    assert total[1] == -np.inf
    assert total[2] == np.inf
    assert np.isnan(total[3])


def test_a_scale_beyond_the_dtype(device):
    x = device.array(np.float32([[0, 1, 1]]))
    np.testing.assert_array_equal(device.host(fastnorm.softmax(x, scale=1e300)), [[0, 0.5, 0.5]])


def test_softmax_along_any_axis_and_in_place(device, rng):
    x = rng.standard_normal((3, 5, 6)).astype(np.float32)
    along = device.host(fastnorm.softmax(device.array(x), axis=1))
    np.testing.assert_allclose(along, oracles.softmax(x, axis=1), rtol=1e-6)
    on_device = device.array(x)
    assert fastnorm.softmax(on_device, axis=1, out=on_device) is on_device
    assert_same_bits(device.host(on_device), along)
    unaligned = device.array(np.zeros((3, 9), np.float32))[:, 1:7]
    fastnorm.softmax(device.array(x[:, 0]), out=unaligned)
    assert_same_bits(device.host(unaligned), device.host(fastnorm.softmax(device.array(x[:, 0]))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "turned"), [((2, 3, 5, 16), 16), ((1, 2, 3, 130), 128), ((7, 6), 2), ((2, 1, 600), 600)])
def test_rope(device, rng, shape, turned, interleaved, dtype):
    x = rng.standard_normal(shape).astype(dtype)
    tables = fastnorm.rope_tables(np.arange(shape[-2]), turned, dtype="float64" if dtype == "float64" else "float32")
    on_device, on = device.array(x), [device.array(t) for t in tables]
    y = device.host(fastnorm.rope(on_device, *on, interleaved=interleaved))
    np.testing.assert_allclose(y, oracles.rope(x, *tables, interleaved).astype(dtype), rtol=0, atol=8 * UNIT[dtype])
    assert_same_bits(y[..., turned:], x[..., turned:])
    room = device.array(np.zeros((*shape[:-1], shape[-1] + 1), dtype))[..., 1:]  # not aligned: element by element the same
    fastnorm.rope(on_device, *on, interleaved=interleaved, out=room)
    assert_same_bits(device.host(room), y)
    fastnorm.rope(on_device, *on, interleaved=interleaved, out=on_device)
    assert_same_bits(device.host(on_device), y)


def test_rope_reads_once_and_writes_once(rng):
    x = rng.standard_normal((2, 3, 64)).astype(np.float16)
    tables = fastnorm.rope_tables(np.arange(3), 64)
    with cuda_devices.interpreted() as emulated:
        fastnorm.rope(emulated.array(x), *map(emulated.array, tables))
        (one,) = emulated.launches
    assert one.stats.buffers["arg0"].bytes_read == one.stats.buffers["arg9"].bytes_written == x.nbytes
    assert set(one.stats.global_loads) == set(one.stats.global_stores) == {128}


# -------------------------------------------------------------------------------------------------------- attention
QUICK = "none", "causal", "scale and cap", "RMS"
OPTIONS = [pytest.param(o, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, o in EACH_OPTION.items()]


@pytest.mark.parametrize("n", [21, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))])
@pytest.mark.parametrize("options", OPTIONS)
def test_options(device, rng, options, n):
    checked(device, *arrays(rng, n=n), **options)


def test_options_of_heads_and_batch(device, rng):
    q, k, v = arrays(rng, batch=2, n=20, keys=40)
    options = {"alibi_slopes": np.float32([0.1, 0.5, 0, 2]), "sinks": np.float32([1, -np.inf, 0, 3])}
    checked(device, q, k, v, q_start=np.array([3, 20]), kv_lengths=np.array([40, 9]), is_causal=True, **options)


@pytest.mark.parametrize("kind", [bool, np.float16, np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_masks(device, rng, kind):
    """Of any shape that broadcasts; what they forbid does not leak, NaN or not; a finite number never forbids."""
    q, k, v = arrays(rng, batch=2, n=7, keys=70)
    mask = rng.random((2, 1, 7, 70)) < 0.4
    mask[1, 0, 3], mask[..., 64:] = False, False
    v[:, :, 64:], k[:, :, 65] = np.nan, np.inf
    if kind is not bool:
        lowest = np.finfo(kind).min if kind is not np.float64 else -3e38
        mask = np.where(mask, rng.choice([0.5, -1, 0], mask.shape), -np.inf).astype(kind)
        mask[0, 0, 0], mask[0, 0, 0, 5] = -np.inf, lowest
    with np.errstate(all="ignore"):
        checked(device, q, k, v, mask=mask)


WIDEST = pytest.param("float64", "float64", marks=pytest.mark.slow)
MIXED = pytest.param("float16", "float32", marks=pytest.mark.slow)
WIDE = pytest.param("float32", "float64", marks=pytest.mark.slow)  # a cache wider than the computation


@pytest.mark.parametrize(("dtype", "cached"), [("float16", "float16"), MIXED, WIDE, WIDEST])
def test_dtypes(device, rng, dtype, cached):
    checked(device, *arrays(rng, n=3, keys=40, sizes=(16, 16), dtype=dtype, cached=cached), is_causal=True)


@pytest.mark.parametrize(
    ("dtype", "cached"), [("float16", "float16"), MIXED, WIDE, pytest.param("float32", "float16", marks=pytest.mark.slow)]
)
def test_dtypes_with_normalised_keys(device, rng, dtype, cached):
    checked(device, *arrays(rng, n=3, keys=40, sizes=(16, 16), dtype=dtype, cached=cached), qk_norm="rms")


@pytest.mark.parametrize("sizes", [(1, 1), *(pytest.param(s, marks=pytest.mark.slow) for s in ((64, 100), (8, 300)))])
def test_head_sizes(device, rng, sizes):
    """Values wider than what a warp holds are taken by several blocks."""
    checked(device, *arrays(rng, n=3, keys=40, sizes=sizes))


def test_segments(device, rng):
    """Few queries over many keys: several segments, joined in order. A cache is not read beyond what is there."""
    q, k, v = arrays(rng, n=1, keys=1100, sizes=(16, 16))
    k[:, :, 1030:], v[:, :, 1030:] = np.nan, np.nan
    checked(device, q, k, v, kv_lengths=1030, sinks=np.zeros(4, np.float32))
    if hasattr(device, "launches"):  # the last launch, for rows that left the range, finds none and reads no key
        _, _, rescue = device.launches
        assert rescue.stats.buffers["arg5"].bytes_read == 0
    q, k, v = (device.array(a[:, -1:].copy()) for a in (q, k, v))
    out, lse = fastnorm.attention(q, k[:, :, :1030], v[:, :, :1030], return_lse=True)
    parts = [fastnorm.attention(q, k[:, :, i:j], v[:, :, i:j], return_lse=True) for i, j in ((0, 100), (100, 1030))]
    merged, merged_lse = fastnorm.merge_attention(*zip(*parts, strict=True))
    np.testing.assert_allclose(device.host(merged), device.host(out), atol=1e-6)
    np.testing.assert_allclose(device.host(merged_lse), device.host(lse), rtol=1e-6)


TOO_SMALL = 1.6e-75  # for a scale in float32, which the GPU takes as one number


NEAR_THE_ENDS = [case for case in FAR_FROM_ONE if case[3].get("scale") != TOO_SMALL]
SEGMENTED = [pytest.param(case, 600, marks=pytest.mark.slow) for case in NEAR_THE_ENDS[:3]]


@pytest.mark.parametrize(("case", "n_keys"), [*[(case, 0) for case in NEAR_THE_ENDS], *SEGMENTED])
def test_numbers_far_from_one(device, case, n_keys):
    """As on the CPU, in one kernel; or, where keys are cut into segments, in another launch that is told by the device."""
    q, k, v, options, wanted, wanted_lse = case
    shown = {"q_start": 0, **options}
    if n_keys:  # further keys, which may not be seen
        k, v = (np.concatenate([a, np.zeros((n_keys - len(a), 1), a.dtype)]) for a in (k, v))
        shown |= {"kv_lengths": len(case[1])}
    largest = device.array(np.float32([np.finfo(np.float32).max]))
    shown = {name: largest if isinstance(option, list) else option for name, option in shown.items()}
    out, lse = fastnorm.attention(*map(device.array, (q, k, v)), return_lse=True, **shown)
    np.testing.assert_allclose(device.host(out), np.full((1, 1), wanted), rtol=2e-6)
    np.testing.assert_allclose(device.host(lse), np.full(1, wanted_lse), rtol=2e-6)


@pytest.mark.parametrize(("dtype", "n"), [("float32", 2), pytest.param("float16", 20, marks=pytest.mark.slow)])
def test_a_cap_beyond_the_dtype(device, rng, dtype, n):
    """All scores are equal within it: it is no cap of 0, which would be none."""
    q, k, v = arrays(rng, n=n, keys=40, sizes=(16, 16), dtype=dtype)
    checked(device, q, k, v, softcap=1e-60)


def test_a_grid_has_room_for_all_segments():
    for n_keys in (1, 512, 513, 512 * 65535, 512 * 65535 + 1, 10**11):
        segment = attention_layout.segment_of(n_keys)
        assert -(-n_keys // segment) <= 65535
        assert segment == 512 or n_keys > 512 * 65535


def test_other_rows_keep_their_bits(device, rng):
    q, k, v = arrays(rng, n=20, keys=40)
    alone = device.host(fastnorm.attention(*map(device.array, (q, k, v))))
    q[0, 1, 3:5] *= np.float32(1e36)
    q[0, 2, 7] = np.nan
    beside = device.host(fastnorm.attention(*map(device.array, (q, k, v))))
    same = np.ones(q.shape[:3], bool)
    same[0, 1, 3:5] = same[0, 2, 7] = False
    assert_same_bits(beside[same], alone[same])
    assert np.isfinite(beside[0, 1]).all()
    assert np.isnan(beside[0, 2, 7]).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_empty(device, shape):
    n, keys = shape
    q, k = np.ones((2, n, 8), np.float32), np.ones((2, keys, 8), np.float32)
    out, lse = fastnorm.attention(*map(device.array, (q, k, k)), return_lse=True)
    assert (device.host(out) == 0).all()
    assert (device.host(lse) == -np.inf).all()


def test_merging_means_of_nothing(device):
    outs, lses = np.float32([[[3e38, 1]], [[3e38, 2]], [[np.nan, np.nan]]]), np.float32([[0], [0], [-np.inf]])
    out, lse = fastnorm.merge_attention(list(map(device.array, outs)), list(map(device.array, lses)))
    np.testing.assert_allclose(device.host(out), [[3e38, 1.5]], rtol=1e-6)
    np.testing.assert_allclose(device.host(lse), [np.log(2)], rtol=1e-6)


# ----------------------------------------------------------------------------------------------------- what code is
ATTEND = "fastnorm._cuda.attend:attend"
PROGRAMS = [
    ("fastnorm._cuda.softmax_kernels:rows", "softmax", "float32", True, True),
    ("fastnorm._cuda.softmax_kernels:rows", "logsumexp", "int16", True, False),
    ("fastnorm._cuda.rotate:rotate", "int16", True, False),
    ("fastnorm._cuda.rotate:rotate", "float32", True, True),
    pytest.param((ATTEND, "float32", "float32", False, 4, False), marks=pytest.mark.slow),
    pytest.param((ATTEND, "int16", "uint16", False, 2, False), marks=pytest.mark.slow),
    ("fastnorm._cuda.attend:join", "float32"),
]


@pytest.mark.parametrize("capability", ["80", pytest.param("90", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS, ids=str)
def test_code(name, capability):
    """No float64 where float32 is computed, no call, no local memory."""
    ptx = launch.program(name, capability).decode()
    assert ".f64" not in ptx
    assert "call" not in ptx
    assert ".local" not in ptx


def test_softmax_reads_once_and_writes_once(rng):
    x = rng.standard_normal((3, 1024)).astype(np.float32)
    with cuda_devices.interpreted() as device:
        fastnorm.softmax(device.array(x))
        (one,) = device.launches
    assert one.stats.buffers["arg0"].bytes_read == one.stats.buffers["arg2"].bytes_written == x.nbytes
    assert set(one.stats.global_loads) == set(one.stats.global_stores) == {128}


@pytest.mark.slow
@pytest.mark.parametrize("columns", [2, 4, 8])
def test_registers(columns):
    used = ptxrun.resources(launch.program((ATTEND, "float32", "float32", False, columns, False), "90").decode())
    assert used.spill_stores == used.spill_loads == used.stack == 0
    assert used.registers <= 255


def test_bfloat16(device, rng):
    """Computed in float32, rounded once: within half a unit of its eight digits."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    x = rng.standard_normal((3, 100), np.float32).astype(dtype)
    q, k = (rng.standard_normal((1, heads, n, 16), np.float32).astype(dtype) for heads, n in ((2, 3), (1, 40)))
    for y, wanted in (
        (fastnorm.softmax(device.array(x)), oracles.softmax(x)),
        (fastnorm.attention(*map(device.array, (q, k, k))), oracles.attention(q, k, k)[0]),
    ):
        assert device.host(y).dtype == dtype
        np.testing.assert_allclose(device.host(y).astype(np.float64), wanted, rtol=2.0**-8, atol=1e-6)
