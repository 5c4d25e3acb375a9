"""How GPU kernels go about it: their PTX and machine code, what they read and write, and what a launch looks like."""

import re

import cuda_devices  # first: it skips where there is no compiler
import numpy as np
import ptxrun
import pytest

import fastnorm
from fastnorm._cuda import launch, norms

VARIANTS = [(dtype, aligned, whole) for dtype in ("float32", "float64") for aligned in (True, False) for whole in (True, False)]


def program(dtype="float32", aligned=True, whole=True, capability="90"):
    return launch.program(("fastnorm._cuda.rows:rows", "rms_norm", dtype, aligned, whole), capability).decode()


def run(x, weight=None, out=None, **options):
    """The one launch of a call, and its result."""
    with cuda_devices.interpreted(**options) as device:
        x = device.array(x)
        weight = None if weight is None else device.array(weight)
        out = x if out is x else None
        y = fastnorm.rms_norm(x, weight, out=out)
        (one,) = device.launches
        return one, device.host(y)


# ------------------------------------------------------------------------------------------------------- resources
@pytest.mark.parametrize(("dtype", "aligned", "whole"), VARIANTS)
def test_registers(dtype, aligned, whole):
    """No spill, no stack. At most 64 registers: more, and a block of 1024 threads would not start.

    They also leave room for four blocks of 256 threads, which hold rows of 64 KB together.
    """
    used = ptxrun.resources(program(dtype, aligned, whole))
    assert used.spill_stores == used.spill_loads == used.stack == 0
    assert 16 < used.registers <= 64
    assert used.shared % 1024 == 32 * np.dtype(dtype).itemsize  # some compilers count the device's own KB


@pytest.mark.parametrize(("dtype", "aligned", "whole"), VARIANTS)
def test_instructions(dtype, aligned, whole):
    ptx = program(dtype, aligned, whole)
    assert (".f64" in ptx) == (dtype == "float64")
    assert "call" not in ptx
    assert ".local" not in ptx
    assert not re.search(r"\b(div|sqrt|rsqrt|rcp)\.approx|\.ftz", ptx)
    widths = set(re.findall(r"(?:ld|st)\.global\.(\S+)", ptx))
    assert widths == {{"float32": "v4.f32", "float64": "v2.f64"}[dtype] if aligned else "f" + dtype[5:]}


def test_offsets_of_rows_have_64_bits():
    ptx = program()
    (block,) = re.findall(r"mov\.u32\s+(%r\d+), %ctaid\.x", ptx)
    assert set(re.findall(rf"^\s+(\S+)\s.*{block}[,;]\s*", ptx, re.MULTILINE)) <= {"mov.u32", "cvt.s64.s32"}


def test_machine_code():
    """Four loads of x and four of the weight, 128 bits each; no float64."""
    text = ptxrun.sass(program())
    assert len(re.findall(r"LDG\.E\.128", text)) >= 8
    assert len(re.findall(r"STG\.E\.128", text)) >= 4
    assert not re.search(r"(LDG|STG)\.E(?!\.128)", text)
    assert not re.search(r"\b(DADD|DMUL|DFMA|LDL|STL|F2F\.F64)", text)


@pytest.mark.parametrize("capability", ["80", "120", *(pytest.param(c, marks=pytest.mark.slow) for c in ("75", "89", "100"))])
def test_other_devices(capability):
    ptx = program(capability=capability)
    assert f".target sm_{capability}" in ptx
    used = ptxrun.resources(ptx, f"sm_{capability}")
    assert used.spill_stores == used.spill_loads == used.stack == 0
    assert used.registers <= 64


# ---------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("n", [4, 128, 1024, 4096, 5000, 16384])
@pytest.mark.parametrize("weighted", [True, False])
def test_every_byte_once_and_128_bits_at_a_time(rng, n, weighted):
    x = rng.standard_normal((3, n)).astype(np.float32)
    one, _ = run(x, rng.standard_normal(n).astype(np.float32) if weighted else None)
    stats = one.stats
    assert stats.f64 == 0
    assert stats.global_loads == {128: (1 + weighted) * x.size // 4}
    assert stats.global_stores == {128: x.size // 4}
    assert stats.buffers["arg0"].bytes_read == x.nbytes
    assert stats.buffers["arg6"].bytes_written == x.nbytes
    assert stats.local_accesses == 0
    assert stats.barriers == len(x)


@pytest.mark.parametrize("n", [1, 33, 4099, 16381])
def test_unaligned_rows_are_read_and_written_once_too(rng, n):
    x = rng.standard_normal((3, n)).astype(np.float32)
    one, _ = run(x)
    assert one.stats.global_loads == one.stats.global_stores == {32: x.size}


def test_long_rows_are_read_twice(rng):
    x = rng.standard_normal((2, 20000)).astype(np.float32)
    one, _ = run(x)
    assert one.stats.global_loads == {128: 2 * x.size // 4}
    assert one.stats.global_stores == {128: x.size // 4}


def test_rescued_rows_are_read_no_more(rng):
    """A row in registers is summed again from there."""
    x = (rng.standard_normal((2, 1024)) * 1e30).astype(np.float32)
    one, _ = run(x)
    assert one.stats.global_loads == {128: x.size // 4}
    assert one.stats.barriers == 3 * len(x)


@pytest.mark.parametrize("n", [1, 33, 1024, 4099, 20000])
@pytest.mark.parametrize("factor", [1.0, 1e30])
def test_no_races(rng, n, factor):
    x = (rng.standard_normal((2, n)) * factor).astype(np.float32)
    weight = rng.standard_normal(n).astype(np.float32)
    run(x, weight, check_races="global")
    run(x, weight, out=x, check_races="global")


# ------------------------------------------------------------------------------------------------------- launching
def test_block_size():
    """Enough threads to hold a row, in whole warps, up to what a block may have."""
    sizes = {1: 32, 512: 32, 513: 64, 1024: 64, 4096: 256, 4099: 288, 16384: 1024, 1 << 24: 1024}
    assert {n: launch.block_size(n, 4) for n in sizes} == sizes
    assert launch.block_size(4096, 8) == 512


def test_more_rows_than_a_grid_may_have(rng, monkeypatch):
    monkeypatch.setattr(launch, "MOST_BLOCKS", 3)
    x = rng.standard_normal((7, 40)).astype(np.float32)
    with cuda_devices.interpreted() as device:
        on_device = device.array(x)
        y = fastnorm.rms_norm(on_device)
        assert [one.grid for one in device.launches] == [(3,), (3,), (1,)]
        wanted = np.concatenate([run(row[None])[1] for row in x])
        assert (device.host(y) == wanted).all()


@pytest.mark.parametrize(
    ("view", "stride"),
    [
        (np.s_[:], 20),
        (np.s_[0, 0], 20),
        (np.s_[0], 20),
        (np.s_[0, ::-1], -20),
        (np.s_[::-1, ::-1], -20),
        (np.s_[1:1], 20),
        (np.s_[::-1], None),  # the planes go back, the rows in them forth
        (np.s_[:, 0], 80),
        (np.s_[::2, 0], 160),
        (np.s_[::2], None),
        (np.s_[1:2, ::2], 40),
        (np.s_[:, :, :3], 20),
        (np.s_[:, :, :1], 20),
        (np.s_[:, :, ::2], None),
        (np.s_[:, :, ::-1], None),
        (np.s_[:, :, 0], None),
    ],
)
def test_row_stride(view, stride):
    assert norms.row_stride(np.zeros((6, 4, 5), np.float32)[view]) == stride


def test_row_stride_of_one_row_for_all():
    assert norms.row_stride(np.broadcast_to(np.zeros(5, np.float32), (6, 4, 5))) == 0
