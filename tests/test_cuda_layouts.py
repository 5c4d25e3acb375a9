"""Rows on the GPU that lie across memory, or are very long: the kernels of columns and of pieces."""

import cuda_devices
import numpy as np
import ptxrun
import pytest
from compare import assert_same_bits, ulps

import fastnorm
from fastnorm._bench import oracles
from fastnorm._cuda import launch

NORMS = ["rms_norm", "unit_norm", "layer_norm"]
DTYPES = ["float32", pytest.param("float16", marks=pytest.mark.slow), pytest.param("float64", marks=pytest.mark.slow)]
LONG = 1 << 18  # float32 of a row that is cut into pieces of a quarter


@pytest.fixture(params=["interpreted", pytest.param("real", marks=pytest.mark.gpu)])
def device(request):
    with getattr(cuda_devices, request.param)(**({"check_races": True} if request.param == "interpreted" else {})) as found:
        yield found


def last_kernel(device):
    return device.launches[-1].entry.removeprefix("fastnorm_").split("_")[0] if hasattr(device, "launches") else None


def as_rows(device, function, x, axis, *parameters):
    """The same of a contiguous copy whose rows lie along memory."""
    rows = device.array(np.ascontiguousarray(np.moveaxis(x, axis, -1)))
    return np.moveaxis(device.host(function(rows, *map(device.array, parameters))), -1, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 8), 0), ((5, 33), 0), ((3, 70, 5, 9), 1), ((2, 1100, 8), 1), pytest.param((17000, 9), 0, marks=pytest.mark.slow)],
)
def test_columns_have_the_bits_of_rows(device, rng, shape, axis, norm, dtype):
    function, n = getattr(fastnorm, norm), shape[axis]
    x = (rng.standard_normal(shape) + 3).astype(dtype)
    parameters = rng.standard_normal((1 + (norm == "layer_norm"), n)).astype("float64" if dtype == "float64" else "float32")
    on_device, given = device.array(x), list(map(device.array, parameters))
    y = device.host(function(on_device, *given, axis=axis)).copy()
    assert last_kernel(device) in ("columns", None)
    assert_same_bits(y, as_rows(device, function, x, axis, *parameters))
    assert function(on_device, *given, axis=axis, out=on_device) is on_device
    assert_same_bits(device.host(on_device), y)


@pytest.mark.parametrize("norm", NORMS)
def test_columns_that_need_another_look(device, rng, norm):
    """Huge, tiny, of zeros, badly guessed, of no number: one beside the other, each as if it were alone."""
    x = rng.standard_normal((100, 9)).astype(np.float32)
    x[:, 1] *= np.float32(1e30)
    x[:, 2] *= np.float32(1e-30)
    x[:, 3] = 0
    x[:64, 4] += 1000
    x[7, 5], x[8, 6] = np.nan, np.inf
    x[:, 7] = np.float32(1e-40)
    function = getattr(fastnorm, norm)
    with np.errstate(all="ignore"):
        y = device.host(function(device.array(x), axis=0, eps=0.0))
        assert last_kernel(device) in ("columns", None)
        assert_same_bits(y, as_rows(device, lambda a: function(a, eps=0.0), x, 0))
    assert np.isfinite(y[:, [0, 1, 2, 3, 4, 7, 8]]).all()


def test_what_are_no_columns_is_copied(device, rng):
    x = rng.standard_normal((6, 40, 4)).astype(np.float32)
    on_device = device.array(x)
    wanted = device.host(fastnorm.rms_norm(device.array(np.ascontiguousarray(x.transpose(0, 2, 1)))))
    few = device.host(fastnorm.rms_norm(on_device, axis=1))
    assert last_kernel(device) in ("short", None)
    assert_same_bits(few, np.ascontiguousarray(wanted.transpose(0, 2, 1)))
    across = device.array(x[:, :, :1].repeat(8, 2)).transpose(2, 0, 1)  # rows apart, sets of them in another order
    out = device.array(np.zeros((8, 6, 40), np.float32))
    fastnorm.rms_norm(across, out=out)
    assert_same_bits(device.host(out), device.host(fastnorm.rms_norm(device.array(device.host(across).copy()))))


def test_columns_are_read_twice_and_written_once(rng):
    x = rng.standard_normal((4096, 64)).astype(np.float32)
    with cuda_devices.interpreted() as emulated:
        fastnorm.rms_norm(emulated.array(x), axis=0)
        (one,) = emulated.launches
    assert one.stats.buffers["arg0"].bytes_read == 2 * x.nbytes
    assert one.stats.buffers["arg3"].bytes_written == x.nbytes


# ------------------------------------------------------------------------------------------------- very long rows
SIZES = [
    ("float32", LONG),
    *(pytest.param(*s, marks=pytest.mark.slow) for s in (("float32", LONG + 1), ("float64", LONG // 2))),
]


@pytest.mark.parametrize("norm", ["layer_norm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rms_norm", "unit_norm"))])
@pytest.mark.parametrize(("dtype", "n"), SIZES)
def test_long_rows(device, rng, norm, dtype, n):
    function, oracle = getattr(fastnorm, norm), getattr(oracles, norm)
    x = (rng.standard_normal((3, n)) + 3).astype(dtype)
    weight = rng.standard_normal(n).astype(dtype)
    x[1] *= 1e25 if dtype == "float32" else 1e250  # its squares leave the range
    x[2, :64] += 100  # a bad guess of the mean
    on_device, given = device.array(x), device.array(weight)
    y = device.host(function(on_device, given)).copy()
    if hasattr(device, "launches"):
        assert [one.entry.split("_")[1] for one in device.launches] == ["sum", "join", "apply"]
        assert device.launches[0].grid == device.launches[2].grid == (3 * -(-n // (LONG // 4 * 4 // x.itemsize)),)
    assert ulps(y, oracle(x, weight)) <= 4
    alone = device.host(function(device.array(x[1:2]), given))
    assert_same_bits(alone, y[1:2])
    function(on_device, given, out=on_device)
    assert_same_bits(device.host(on_device), y)


@pytest.mark.slow
def test_long_rows_have_the_same_bits_however_they_lie(device, rng):
    x = rng.standard_normal((LONG, 8)).astype(np.float32)
    across = device.host(fastnorm.layer_norm(device.array(x), axis=0))
    assert_same_bits(across, as_rows(device, fastnorm.layer_norm, x, 0))


def test_long_rows_are_read_twice_and_written_once(rng):
    x = rng.standard_normal((2, LONG)).astype(np.float32)
    with cuda_devices.interpreted() as emulated:
        fastnorm.layer_norm(emulated.array(x))
        summed, joined, applied = (one.stats for one in emulated.launches)
    beginning = 64 * 4  # of which the shift is guessed, by each block
    assert summed.buffers["arg0"].bytes_read == x.nbytes + 8 * beginning
    assert joined.buffers["arg0"].bytes_read == 0
    assert applied.buffers["arg0"].bytes_read == applied.buffers["arg2"].bytes_written == x.nbytes
    assert set(applied.global_stores) == {128}


PROGRAMS = [("columns:columns",), ("pieces:sum_pieces", True), ("pieces:join_pieces", True), ("pieces:apply_pieces", True)]
PROGRAMS += [(maker, False) for maker, *aligned in PROGRAMS if aligned]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_code(program, norm, dtype):
    """No float64, nothing in local memory, nothing spilled."""
    maker, *aligned = program
    ptx = launch.program((f"fastnorm._cuda.{maker}", norm, dtype, *aligned), "80").decode()
    assert not any(word in ptx for word in (".f64 ", ".local", "call"))
    used = ptxrun.resources(ptx, "sm_80")
    assert used.spill_stores == used.spill_loads == used.stack == 0
