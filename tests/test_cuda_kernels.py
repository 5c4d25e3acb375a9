"""How GPU kernels go about it: their PTX and machine code, what they read and write, and what a launch looks like."""

import re

import cuda_devices  # first: it skips where there is no compiler
import numpy as np
import ptxrun
import pytest

import fastnorm
from fastnorm._cuda import launch, norms
from fastnorm._vocabulary import COMPUTED

slow = pytest.mark.slow
SHORT = 512  # elements of float32 that a warp holds: it needs no barrier
KERNELS = [
    ("rows", "rms_norm"),
    ("rows", "layer_norm"),
    ("sum_rows", "rms_norm"),
    ("sum_rows", "layer_norm"),
    ("groups", "layer_norm"),
]
VARIANTS = [
    (*kernel, dtype, aligned, whole)
    for kernel in KERNELS
    for dtype in ("float32", "float64", "int16")
    for aligned in (True, False)
    for whole in (True, False)
]
each_variant = pytest.mark.parametrize(("maker", "norm", "dtype", "aligned", "whole"), VARIANTS)


def program(maker="rows", norm="rms_norm", dtype="float32", aligned=True, whole=True, capability="90"):
    return launch.program((f"fastnorm._cuda.rows:{maker}", norm, dtype, aligned, whole), capability).decode()


def run(x, weight=None, out=None, **options):
    """The one launch of a call of `rms_norm`, and its result."""
    return run_norm(norms.rms_norm, [x], [weight], in_place=out is x, **options)


def run_norm(norm, inputs, parameters, in_place=False, **options):
    """The one launch of a norm, and its first result. In place, results take the places of the inputs."""
    with cuda_devices.interpreted(**options) as device:
        inputs = [device.array(a) for a in inputs]
        outputs = inputs if in_place else [device.array(np.zeros(a.shape, a.dtype)) for a in inputs]
        norm(*inputs, [None if p is None else device.array(p) for p in parameters], 1e-6, *outputs)
        (one,) = device.launches
        return one, device.host(outputs[0])


# ------------------------------------------------------------------------------------------------------- resources
@pytest.mark.slow
@each_variant
def test_registers(maker, norm, dtype, aligned, whole):
    """At most 64 registers: more, and a block of 1024 threads would not start. No spill, no stack, with one exception.

    That is long rows read element by element, of a centred norm or of float64, and long groups in 16 bits: some bytes, once
    a tile. 64 registers also leave room for four blocks of 256 threads, which hold rows of 64 KB together.
    """
    used = ptxrun.resources(program(maker, norm, dtype, aligned, whole))
    centred = norm == "layer_norm"
    by_elements = not aligned and (centred or dtype == "float64")
    excepted = not whole and (by_elements or (centred and maker == "groups" and dtype == "int16"))
    assert used.spill_stores == used.spill_loads == used.stack == 0 or (excepted and used.stack <= 16)
    assert 16 < used.registers <= 64
    numbers = 65 if centred else 32
    assert used.shared % 1024 == numbers * np.dtype(COMPUTED[dtype]).itemsize  # some compilers count the device's own KB


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "uint16", "float64"])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_registers_of_short_rows(norm, dtype):
    """Four blocks of 128 threads are eight warps a scheduler: 128 registers would still do."""
    used = ptxrun.resources(program("short_rows", norm, dtype))
    assert used.spill_stores == used.spill_loads == used.stack == 0
    assert used.registers <= 96


@pytest.mark.slow
@each_variant
def test_instructions(maker, norm, dtype, aligned, whole):
    ptx = program(maker, norm, dtype, aligned, whole)
    assert (".f64" in ptx) == (dtype == "float64")
    assert "call" not in ptx
    assert ".local" not in ptx
    assert not re.search(r"\b(div|sqrt|rsqrt|rcp)\.approx|\.ftz", ptx)
    wide, narrow, weights = {
        "float32": ("v4.32", "32", "32"), "float64": ("v2.64", "64", "64"), "int16": ("v4.32", "16", "32")
    }[dtype]  # fmt: skip
    loads, stores = (set(re.findall(rf"\b{kind}\.global\.((?:v\d\.)?)[a-z](\d+)", ptx)) for kind in ("ld", "st"))
    loads, stores = set(map("".join, loads)), set(map("".join, stores))
    assert stores == {wide if aligned else narrow}
    # Weights are of the dtype of the computation; those of channels are loaded one by one.
    assert loads == stores | ({weights} if maker == "groups" or not aligned else set())


def test_offsets_of_rows_have_64_bits():
    ptx = program()
    (block,) = re.findall(r"mov\.u32\s+(%r\d+), %ctaid\.x", ptx)
    assert set(re.findall(rf"^\s+(\S+)\s.*{block}[,;]\s*", ptx, re.MULTILINE)) <= {"mov.u32", "cvt.s64.s32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maker", "norm", "loads"), [("rows", "rms_norm", 8), ("rows", "layer_norm", 12), ("sum_rows", "rms_norm", 12)]
)
def test_machine_code(maker, norm, loads):
    """Four loads, 128 bits each, of every array and of weight and bias; no float64."""
    text = ptxrun.sass(program(maker, norm))
    assert len(re.findall(r"LDG\.E\.128", text)) >= loads
    assert len(re.findall(r"STG\.E\.128", text)) >= 4
    assert not re.search(r"(LDG|STG)\.E(?!\.128)", text)
    assert not re.search(r"\b(DADD|DMUL|DFMA|LDL|STL|F2F\.F64)", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "capability"),
    [
        ("rms_norm", "80"),
        ("layer_norm", "120"),
        *(pytest.param("rms_norm", c, marks=pytest.mark.slow) for c in ("75", "89", "100", "120")),
        *(pytest.param("layer_norm", c, marks=pytest.mark.slow) for c in ("75", "80", "89", "100")),
    ],
)
def test_other_devices(norm, capability):
    """The compiler for later devices spills some bytes of `layer_norm`, once a row."""
    ptx = program(norm=norm, capability=capability)
    assert f".target sm_{capability}" in ptx
    used = ptxrun.resources(ptx, f"sm_{capability}")
    assert used.stack <= (24 if norm == "layer_norm" else 0)
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
    assert stats.buffers["arg2"].bytes_written == x.nbytes
    assert stats.local_accesses == 0
    assert stats.barriers == (len(x) if n > SHORT else 0)


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


CENTRED = {"usual": 0, "off-centre": 100}


def off_centre(rng, n, distance):
    """Rows whose first elements are `distance` away from the others."""
    x = rng.standard_normal((2, n)).astype(np.float32)
    x[:, 64:] += distance
    return x


@pytest.mark.slow
@pytest.mark.parametrize("n", [128, 1024, 4096, 16384])
@pytest.mark.parametrize("distance", CENTRED.values(), ids=CENTRED)
def test_centred_rows_in_registers_are_read_once(rng, n, distance):
    """A row whose mean was badly guessed is summed again from there."""
    weight, bias = rng.standard_normal((2, n)).astype(np.float32)
    for parameters in ((None, None), (weight, None), (None, bias), (weight, bias)):
        x = off_centre(rng, n, distance)
        one, _ = run_norm(norms.layer_norm, [x], parameters)
        given = sum(p is not None for p in parameters)
        assert one.stats.global_loads == {128: (1 + given) * x.size // 4}
        assert one.stats.global_stores == {128: x.size // 4}
        assert one.stats.local_accesses == one.stats.f64 == 0
        assert one.stats.barriers == ((4 if distance else 2) * len(x) if n > SHORT else 0)


@pytest.mark.parametrize(("distance", "times"), [(0, 2), (100, 3)])
def test_long_centred_rows(rng, distance, times):
    """Twice, and once more if the mean was badly guessed; what it is guessed from is read once more."""
    x = off_centre(rng, 20000, distance)
    one, _ = run_norm(norms.layer_norm, [x], [None, None])
    assert one.stats.global_loads == {128: times * x.size // 4 + len(x) * 64 // 4}
    assert one.stats.global_stores == {128: x.size // 4}


@pytest.mark.slow
@pytest.mark.parametrize("norm", [norms.add_rms_norm, norms.add_layer_norm])
@pytest.mark.parametrize(("n", "times"), [(1024, 2), (20000, 3)])
def test_sums_are_read_once_and_kept_at_once(rng, norm, n, times):
    """A long row is read back from where it is kept."""
    x = rng.standard_normal((2, n)).astype(np.float32)
    one, _ = run_norm(norm, [x, x], [None, None] if norm is norms.add_layer_norm else [None])
    again = 2 * len(x) * 64 // 4 if norm is norms.add_layer_norm and n == 20000 else 0  # to guess the mean
    assert one.stats.global_loads == {128: times * x.size // 4 + again}
    assert one.stats.global_stores == {128: 2 * x.size // 4}
    for buffer, loads in (("arg0", 1), ("arg2", 1), ("arg6", times - 2)):
        assert one.stats.buffers[buffer].bytes_read == loads * x.nbytes + again * 8 * (buffer != "arg6")
    assert one.stats.buffers["arg4"].bytes_written == one.stats.buffers["arg6"].bytes_written == x.nbytes


def test_groups_are_read_once_and_128_bits_at_a_time(rng):
    x = rng.standard_normal((2, 3, 1, 8, 64)).astype(np.float32)
    one, _ = run_norm(norms.group_norm, [x], list(rng.standard_normal((2, 24)).astype(np.float32)))
    assert one.stats.global_loads == {128: x.size // 4, 32: 2 * x.size}
    assert one.stats.global_stores == {128: x.size // 4}
    assert one.stats.buffers["arg0"].bytes_read == x.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("n", [33, 1024, 20000])
@pytest.mark.parametrize("factor", [1.0, 1e30])
@pytest.mark.parametrize("distance", CENTRED.values(), ids=CENTRED)
def test_no_races_of_centred_rows(rng, n, factor, distance):
    x = off_centre(rng, n, distance) * np.float32(factor)
    parameters = rng.standard_normal((2, n)).astype(np.float32)
    run_norm(norms.layer_norm, [x], parameters, check_races="global")
    run_norm(norms.add_layer_norm, [x, x], parameters, in_place=True, check_races="global")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2, 1, 3, 20), (2, 2, 2, 3, 7), (1, 1, 1, 7, 3001)])
def test_no_races_of_groups(rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    parameters = rng.standard_normal((2, shape[1] * shape[3])).astype(np.float32)
    run_norm(norms.group_norm, [x], parameters, in_place=True, check_races="global")


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
    for n, grids in (600, [(3,), (3,), (1,)]), (40, [(1,), (1,), (1,)]):
        x = rng.standard_normal((7, n)).astype(np.float32)
        with cuda_devices.interpreted() as device:
            y = device.host(fastnorm.rms_norm(device.array(x)))
            assert [one.grid for one in device.launches] == grids
        assert (y == np.concatenate([run(row[None])[1] for row in x])).all()


def test_short_rows_share_a_block(rng):
    """Four warps, a row each; the last block has fewer. Bits are those of the row alone."""
    x = rng.standard_normal((9, 100)).astype(np.float32)
    one, y = run_norm(norms.layer_norm, [x], [x[0], x[1]], check_races=True)
    assert (one.grid, one.block, one.arguments[-1]) == ((3,), (32, 4), 9)
    assert (y[8] == run_norm(norms.layer_norm, [x[8:]], [x[0], x[1]])[1]).all()


def test_more_groups_than_a_grid_may_have(rng, monkeypatch):
    """Each launch goes on with the weights of the next group."""
    x = rng.standard_normal((3, 3, 1, 2, 20)).astype(np.float32)
    parameters = rng.standard_normal((2, 6)).astype(np.float32)
    _, wanted = run_norm(norms.group_norm, [x], parameters)
    monkeypatch.setattr(launch, "MOST_BLOCKS", 4)
    with cuda_devices.interpreted() as device:
        out = device.array(np.zeros_like(x))
        norms.group_norm(device.array(x), [device.array(p) for p in parameters], 1e-6, out)
        assert [one.grid for one in device.launches] == [(4,), (4,), (1,)]
        assert (device.host(out) == wanted).all()


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


@pytest.mark.parametrize(
    ("view", "stride"),
    [
        (np.s_[:], 480),
        (np.s_[:, ::-1], None),
        (np.s_[::-1, 0], -1440),
        (np.s_[:, 1:2], 1440),
        (np.s_[:, :, :1], 480),
        (np.s_[:, :, :, :2], None),
        (np.s_[:, :, :1, :2], 480),
        (np.s_[:, :, :, ::2, :1], None),
        (np.s_[:, :, ::-1], None),
    ],
)
def test_row_stride_of_groups(view, stride):
    x = np.zeros((4, 3, 2, 4, 15), np.float32)[view]
    assert norms.row_stride(x.reshape(4, 1, *x.shape[1:]) if x.ndim < 5 else x, 3) == stride


def test_a_group_of_one_axis_that_matters():
    channels_last = np.zeros((4, 9, 6), np.float32).transpose(0, 2, 1).reshape(4, 3, 1, 2, 9)
    assert norms.row_stride(channels_last, 3) is None
