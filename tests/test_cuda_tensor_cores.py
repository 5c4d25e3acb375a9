"""Attention of 16-bit floats on tensor cores: the kernel's PTX interpreted, or a real device with --backend cupy."""

import cuda_devices
import ml_dtypes
import numpy as np
import ptxrun
import pytest
from compare import assert_same_bits
from cuda_attention_cases import EACH_OPTION, arrays, checked

import fastnorm
from fastnorm._cuda import launch

pytestmark = pytest.mark.slow  # each kernel takes 4 to 8 s to compile

BFLOAT16 = ml_dtypes.bfloat16
DTYPES = [np.float16, BFLOAT16]
ROWS = {"heads": (4, 2), "n": 40, "keys": 150, "dtype": np.float16}  # two blocks of 64 rows for each head of keys, three tiles


@pytest.fixture(params=["interpreted", pytest.param("real", marks=pytest.mark.gpu)])
def device(request):
    with getattr(cuda_devices, request.param)(**({"check_races": True} if request.param == "interpreted" else {})) as found:
        yield found


def entries(device):
    return [one.entry.split("_int16")[0].split("_uint16")[0] for one in device.launches]


def attend(device, *qkv, **options):
    return device.host(fastnorm.attention(*map(device.array, qkv), **options))


@pytest.mark.parametrize("options", EACH_OPTION.values(), ids=EACH_OPTION)
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(device, rng, options, dtype):
    checked(device, *arrays(rng, **(ROWS | {"dtype": dtype})), **options)
    if hasattr(device, "launches") and "qk_norm" not in options:
        assert entries(device) == ["fastnorm_attend_tiles", "fastnorm_attend"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 64), (128, 96), (1, 8), (65, 7)])
def test_sizes(device, rng, sizes, dtype):
    checked(device, *arrays(rng, heads=(2, 1), n=35, keys=65, sizes=sizes, dtype=dtype), is_causal=True)


def test_options_of_heads_and_batch(device, rng):
    q, k, v = arrays(rng, **ROWS, batch=2)
    options = {"alibi_slopes": np.float32([0.1, 0.5, 0, 2]), "sinks": np.float32([1, -np.inf, 0, 3])}
    checked(device, q, k, v, q_start=np.array([3, 120]), kv_lengths=np.array([150, 69]), is_causal=True, **options)


@pytest.mark.parametrize("kind", [bool, np.float16, np.float32, np.float64])
def test_masks(device, rng, kind):
    q, k, v = arrays(rng, **ROWS)
    mask = rng.random((4, 40, 150)) < 0.4
    mask[1, 3], mask[..., 64:128] = False, False  # a row, and a tile, that nobody sees
    k[:, :, 64:128] = np.nan
    if kind is not bool:
        mask = np.where(mask, rng.choice([0.5, -1, 0], mask.shape), -np.inf).astype(kind)
        mask[0, 0], mask[0, 0, 5] = -np.inf, np.finfo(kind if kind is np.float16 else np.float32).min
    with np.errstate(all="ignore"):
        checked(device, q, k, v, mask=mask)


def test_layout_does_not_show(device, rng):
    """Not aligned, or not side by side: element by element the same, and results too."""
    q, k, v = arrays(rng, heads=(1, 1), n=20, keys=70, sizes=(16, 16), dtype=np.float16)
    plain = attend(device, q, k, v)
    odd = []
    for a in (q, k, v):
        room = np.zeros((*a.shape[:-1], 33), a.dtype)
        room[..., 1::2] = a
        odd.append(device.array(room)[..., 1::2])
    assert_same_bits(device.host(fastnorm.attention(*odd)), plain)
    out = device.array(np.zeros((1, 1, 20, 17), q.dtype))[..., 1:]
    fastnorm.attention(*map(device.array, (q, k, v)), out=out)
    assert_same_bits(device.host(out), plain)


def test_heads_and_batch_do_not_show(device, rng):
    q, k, v = arrays(rng, heads=(2, 2), n=20, keys=70, sizes=(16, 16), batch=2, dtype=np.float16)
    whole = attend(device, q, k, v)
    assert_same_bits(attend(device, q[1:, 1:], k[1:, 1:], v[1:, 1:]), whole[1:, 1:])


def test_no_number_behind_a_mask(device, rng):
    """A value that is none, seen by some rows alone: those that do not see it are computed again, without it."""
    q, k, v = arrays(rng, heads=(1, 1), n=40, keys=40, sizes=(16, 16), dtype=np.float16)
    plain = attend(device, q, k, v, is_causal=True)
    v[0, 0, 20] = np.nan
    with np.errstate(all="ignore"):
        beside = attend(device, q, k, v, is_causal=True)
    np.testing.assert_allclose(beside[0, 0, :20].astype(float), plain[0, 0, :20].astype(float), atol=2e-3)
    assert np.isnan(beside[0, 0, 20:]).all()


def test_far_from_one(device, rng):
    """What leaves the range of float32 on the way is computed again; other rows keep their bits."""
    q, k, v = arrays(rng, heads=(1, 1), n=20, keys=40, sizes=(16, 16), dtype=BFLOAT16)
    plain = attend(device, q, k, v)
    q[0, 0, 3] = BFLOAT16(1e38)
    k[0, 0] = np.where(np.arange(40)[:, None] == 5, np.abs(k[0, 0]) * 8, k[0, 0])  # sees this one alone
    others = attend(device, np.delete(q, 3, axis=2), k, v)
    beside = attend(device, q, k, v)
    assert_same_bits(beside[0, 0, 3], v[0, 0, 5])
    assert_same_bits(np.delete(beside, 3, axis=2), others)
    assert not np.array_equal(others, np.delete(plain, 3, axis=2))


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 10), (BFLOAT16, 7)])
def test_equal_values_are_their_mean(device, dtype, digits):
    """Whatever rounding takes from weights: here nearly half a unit from each of 255, of values at the end of a binade."""
    weight = 2.0**-3 * (1 + 0.9 * 2.0 ** -(digits + 1))
    q, k = (np.zeros((1, n, 16), dtype) for n in (20, 256))
    q[..., 0], k[:, 1:, 0] = 1, -1
    v = np.full(k.shape, 2 - 2.0**-digits, dtype)
    np.testing.assert_array_equal(attend(device, q, k, v, scale=-np.log(weight)), v[:, :20])


@pytest.mark.parametrize("score", [-12.0, -15.0, -18.0])
def test_many_small_weights_count(device, score):
    """As beside a key that all look at: in float16 a weight of exp(-18) is 0, and 2000 of them are not."""
    q, k, v = (np.zeros((1, n, 16), np.float16) for n in (20, 2048, 2048))
    q[..., 0], k[:, 1:, 0], v[:, 1:] = 1, score, 1
    small = 2047 * np.exp(score)
    np.testing.assert_allclose(attend(device, q, k, v, scale=1.0), small / (1 + small), rtol=1e-3, atol=2e-7)


def test_older_devices_do_without(rng, monkeypatch):
    monkeypatch.setattr(launch, "capability", lambda device: "75")
    with cuda_devices.interpreted() as emulated:
        checked(emulated, *arrays(rng, heads=(1, 1), n=20, keys=20, sizes=(8, 8), dtype=np.float16))
        assert entries(emulated) == ["fastnorm_attend"]


def test_each_block_reads_once(rng):
    """Queries once; keys and values once a block of 64 rows, 128 bits at a time; the second launch reads marks alone."""
    q, k, v = arrays(rng, heads=(1, 1), n=128, keys=128, sizes=(64, 64), dtype=np.float16)
    with cuda_devices.interpreted() as emulated:
        attend(emulated, q, k, v)
        fast, rescue = (one.stats for one in emulated.launches)
    assert fast.buffers["arg0"].bytes_read == q.nbytes
    assert fast.buffers["arg5"].bytes_read == 2 * k.nbytes
    assert fast.buffers["arg10"].bytes_read == 2 * v.nbytes
    assert fast.buffers["arg15"].bytes_written == q.nbytes
    assert fast.mma_flops == 2 * 2 * 128 * 128 * 64
    assert rescue.buffers["arg5"].bytes_read == 0


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("capability", ["80", "90", "100"])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("size", [64, 128])
def test_code(size, aligned, capability, dtype):
    """Products on tensor cores, copies 128 bits wide beside them, nothing in local memory, no float64."""
    ptx = launch.program(("fastnorm._cuda.attend_matrix:attend_tiles", dtype, size, aligned, False), capability).decode()
    name = {"int16": "f16", "uint16": "bf16"}[dtype]
    products = 2 * (64 * 64 * size) // (16 * 16 * 8) // 4  # of each of four warps
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32") == products
    assert ("cp.async.cg.shared.global" in ptx) == aligned
    assert not any(word in ptx for word in (".f64 ", ".local", "call"))
    used = ptxrun.resources(ptx, f"sm_{capability}")
    assert used.spill_stores == used.spill_loads == used.stack == 0
