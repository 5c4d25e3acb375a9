"""Public functions on CuPy arrays: what reaches the launch, what is refused, and that both backends are alike."""

import inspect
from types import SimpleNamespace

import cuda_devices  # first: it skips where there is no CuPy
import cupy
import numpy as np
import pytest

import fastnorm
from fastnorm import _cpu, _cuda
from fastnorm._bench import measure
from fastnorm._bench.cases import Case
from fastnorm._cuda import norms


@pytest.fixture
def device():
    with cuda_devices.interpreted() as found:
        yield found


def test_backends_are_alike():
    assert set(_cuda.__all__) == set(_cpu.__all__)
    for name in _cuda.__all__:
        assert inspect.signature(getattr(_cuda, name)) == inspect.signature(getattr(_cpu, name))


def test_a_launch(device, rng):
    x = device.array(rng.standard_normal((6, 4, 1024)).astype(np.float32))
    weight = device.array(np.ones(1024, np.float32))
    y = fastnorm.rms_norm(x, weight, eps=1e-5)
    (one,) = device.launches
    assert type(y) is cupy.ndarray
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert one.entry == "fastnorm_rows_rms_norm_float32_True_True"
    assert (one.grid, one.block) == ((24,), (64,))
    eps, lifted_eps = np.float32(1e-5), np.float32(np.inf)
    assert one.arguments == (x.data.ptr, 4096, y.data.ptr, 4096, weight.data.ptr, 0, eps, lifted_eps, 1024)
    assert {type(a) for a in one.arguments} == {int, np.float32}


def test_out_and_views(device):
    base = device.array(np.ones((8, 2, 1026), np.float32))
    x = base[::2, 1, :1024]
    out = cupy.empty((4, 1024), np.float32)
    assert fastnorm.rms_norm(x, out=out) is out
    (one,) = device.launches
    assert one.arguments[:4] == (base.data.ptr + 1026 * 4, 4 * 1026 * 4, out.data.ptr, 4096)
    assert one.arguments[4:6] == (0, 0)
    assert one.entry.endswith("False_True")  # 1026 floats are no multiple of 16 bytes


@pytest.mark.parametrize(
    ("x", "weight", "aligned"),
    [
        (np.s_[:], np.s_[:], True),
        (np.s_[:, 4:8], np.s_[4:8], True),
        (np.s_[:, 1:5], np.s_[:4], False),
        (np.s_[:, 4:8], np.s_[1:5], False),
        (np.s_[:, :6], np.s_[:6], False),
    ],
)
def test_alignment(device, x, weight, aligned):
    x, weight = device.array(np.ones((2, 8), np.float32))[x], device.array(np.ones(8, np.float32))[weight]
    fastnorm.rms_norm(x, weight)
    assert device.launches[0].entry.endswith(f"{aligned}_True")


def test_a_launch_with_a_bias(device):
    x, weight, bias = (device.array(np.ones(shape, np.float32)) for shape in ((2, 8), 8, 9))
    y = fastnorm.layer_norm(x, weight, bias[:8], eps=0.5)
    fastnorm.layer_norm(x, None, bias[1:])
    one, other = device.launches
    assert one.entry == "fastnorm_short_rows_layer_norm_float32_True_True"
    lifted_eps = np.float32(np.inf)
    assert one.arguments == (x.data.ptr, 32, y.data.ptr, 32, weight.data.ptr, bias.data.ptr, np.float32(0.5), lifted_eps, 8, 2)
    assert other.entry.endswith("False_True")  # the bias is not aligned
    assert other.arguments[4:6] == (0, bias.data.ptr + 4)


def test_a_launch_over_sums(device):
    x, residual, out, kept = (device.array(np.ones((3, 12), np.float32)) for _ in range(4))
    norms.add_rms_norm(x[:, :8], residual[:, :8], [None], 1e-6, out[:, :8], kept[:, :8])
    (one,) = device.launches
    assert one.entry == "fastnorm_sum_rows_rms_norm_float32_True_True"
    places = [number for a in (x, residual, out, kept) for number in (a.data.ptr, 48)]
    assert list(one.arguments[:10]) == [*places, 0, 0]
    assert one.arguments[-1] == 8


def test_sums_of_two_dtypes_take_two_passes(device, monkeypatch):
    calls = []
    monkeypatch.setattr(norms, "apart", lambda *arguments: calls.append(arguments))
    x, residual = device.array(np.ones((2, 8), np.float32)), device.array(np.ones((2, 8)))
    norms.add_rms_norm(x, residual, [None], 1e-6, x, residual)
    ((arrays, norm, *others),) = calls
    assert arrays is cupy
    assert norm.args == ("rms_norm",)
    assert all(a is b for a, b in zip(others[:2] + others[4:], (x, residual, x, residual), strict=True))


def test_a_launch_over_groups(device):
    x, weight = device.array(np.ones((2, 3, 1, 4, 5), np.float32)), device.array(np.ones(13, np.float32))
    norms.group_norm(x, [weight[1:], None], 1e-5, x)
    (one,) = device.launches
    assert one.entry == "fastnorm_groups_layer_norm_float32_True_True"  # the weight is read one by one in any case
    assert (one.grid, one.block) == ((6,), (32,))
    assert one.arguments[:6] == (x.data.ptr, 80, x.data.ptr, 80, weight.data.ptr + 4, 0)
    assert one.arguments[-5:] == (20, 0, 3, 4, 5)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (3, 0, 4)])
def test_empty_arrays_launch_nothing(device, shape):
    x = device.array(np.ones(shape, np.float32))
    y = fastnorm.rms_norm(x)
    assert type(y) is cupy.ndarray
    assert y.shape == shape
    assert device.launches == []


@pytest.mark.parametrize("shape", [(0, 2, 1, 4, 5), (2, 0, 1, 4, 5), (2, 2, 1, 0, 5), (2, 2, 1, 4, 0), (2, 2, 0, 4, 5)])
def test_empty_groups_launch_nothing(device, shape):
    x = device.array(np.ones(shape, np.float32))
    norms.group_norm(x, [None, None], 1e-5, x)
    norms.add_layer_norm(x, x, [None, None], 1e-5, x, x)
    assert device.launches == []


def test_a_kernel_is_loaded_once(device, monkeypatch):
    loads = []
    monkeypatch.setattr(norms.launch, "load", lambda *arguments: loads.append(arguments) or device.load(*arguments))
    x = device.array(np.ones((2, 8), np.float32))
    fastnorm.rms_norm(x)
    fastnorm.rms_norm(x)
    assert len(loads) == 1


def test_each_device_loads_its_own(device, monkeypatch):
    """Kernels belong to the current device, and are compiled for what it can do."""
    current, loads = [0], []

    class Properties:
        def __init__(self, number):
            self.compute_capability = ("90", "80")[number]

    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: current[0])
    monkeypatch.setattr(cupy.cuda, "Device", Properties)
    monkeypatch.setattr(norms.launch, "load", lambda entry, ptx: loads.append(ptx) or device.load(entry, ptx))
    x = device.array(np.ones((2, 8), np.float32))
    for current[0] in (0, 1, 0, 1):
        fastnorm.rms_norm(x)
    assert [b".target sm_90" in ptx for ptx in loads] == [True, False]


def test_no_call_waits_or_changes_the_stream(device, monkeypatch):
    """CuPy launches on its current stream, which stays the caller's; nothing asks it for one, nor waits for it."""

    def never(*arguments):
        raise AssertionError("waited for the device, or asked for a stream")

    for name in ("deviceSynchronize", "streamSynchronize", "eventSynchronize", "memcpy", "setDevice"):
        monkeypatch.setattr(cupy.cuda.runtime, name, never)
    for module, name in ((cupy, "asnumpy"), (cupy.cuda, "get_current_stream"), (cupy.cuda, "Stream"), (cupy.cuda, "Event")):
        monkeypatch.setattr(module, name, never)
    x, k = (device.array(np.ones((1, 2, n, 8), np.float32)) for n in (1, 600))
    fastnorm.add_layer_norm(x, x)
    fastnorm.softmax(x, axis=1)
    fastnorm.attention(x, k, k, qk_norm="rms", kv_lengths=600)
    fastnorm.merge_attention([x, x], [x[..., 0], x[..., 0]])
    assert len(device.launches) == 8  # of attention: two norms, segments, their join, and rows that left the range


def test_libraries_do_not_mix(device):
    on_host, on_device = np.ones((2, 8), np.float32), device.array(np.ones((2, 8), np.float32))
    for x, y, wanted in ((on_host, on_device, "numpy.*cupy"), (on_device, on_host, "cupy.*numpy")):
        with pytest.raises(TypeError, match=f"rms_norm: weight .*{wanted}"):
            fastnorm.rms_norm(x, y[0])
        with pytest.raises(TypeError, match=f"rms_norm: out .*{wanted}"):
            fastnorm.rms_norm(x, out=y)


def test_checks_are_those_of_the_cpu(device):
    x = device.array(np.ones((2, 8), np.float32))
    with pytest.raises(ValueError, match=r"weight must have shape \(8,\) to match axis -1 of x, got \(7,\)"):
        fastnorm.rms_norm(x, x[0, :7])
    with pytest.raises(ValueError, match=r"out must have shape \(2, 8\)"):
        fastnorm.rms_norm(x, out=x[:1])
    with pytest.raises(np.exceptions.AxisError):
        fastnorm.rms_norm(x, axis=2)
    with pytest.raises(TypeError, match="complex64"):
        fastnorm.rms_norm(device.array(np.ones((2, 8), np.complex64)))
    assert device.launches == []


def test_lengths_are_for_the_host(device):
    q = device.array(np.ones((2, 1, 3, 8), np.float32))
    for argument in ("kv_lengths", "q_start"):
        with pytest.raises(TypeError, match=f"^attention: {argument} must be an integer, or .* got cupy.ndarray: the host"):
            fastnorm.attention(q, q, q, **{argument: device.array(np.array([1, 2]))})


@pytest.mark.parametrize("function", [fastnorm.softmax, fastnorm.log_softmax])
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_scale_is_finite(device, function, scale):
    with pytest.raises(ValueError, match=f"^{function.__name__}: scale must be finite, got {scale}$"):
        function(device.array(np.ones((2, 8), np.float32)), scale=scale)
    assert not device.launches


def test_tables_are_made_on_the_host(device):
    with pytest.raises(TypeError, match=r"^rope_tables: positions must be in the CPU's memory, .* got cupy.ndarray$"):
        fastnorm.rope_tables(device.array(np.arange(3)), 4)


def test_halves_of_a_buffer_do_not_overlap(device, rng):
    x, both = device.array(rng.standard_normal((3, 32)).astype(np.float32)), device.array(np.zeros((3, 64), np.float32))
    _, h = fastnorm.add_rms_norm(x, x, out=both[:, :32], residual_out=both[:, 32:])
    np.testing.assert_array_equal(device.host(h), 2 * device.host(x))
    with pytest.raises(ValueError, match="residual_out must not overlap out"):
        fastnorm.add_rms_norm(x, x, out=both[:, :32], residual_out=both[:, 31:63])


def test_a_weight_of_16_bits(device, rng):
    """As models have it beside x of 16 bits: converted once."""
    x, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((3, 64), 64))
    y = fastnorm.rms_norm(device.array(x), device.array(weight))
    np.testing.assert_array_equal(
        device.host(y), device.host(fastnorm.rms_norm(device.array(x), device.array(weight.astype("f"))))
    )


def test_arrays_of_other_libraries_on_a_gpu(device, rng):
    """What shows its memory by ``__cuda_array_interface__`` comes back as a CuPy array; it is not copied."""
    x = device.array(rng.standard_normal((3, 8)).astype(np.float32))

    class Foreign:
        def __init__(self):
            at = x.data.ptr, False
            self.dtype = x.dtype
            self.__cuda_array_interface__ = {"shape": x.shape, "typestr": x.dtype.str, "data": at, "strides": None}

    y = fastnorm.softmax(Foreign())
    assert type(y) is cupy.ndarray
    assert device.launches[0].arguments[0] == x.data.ptr
    np.testing.assert_array_equal(device.host(y), device.host(fastnorm.softmax(x)))
    assert type(fastnorm.rms_norm(Foreign(), device.array(np.ones(8, np.float32)))) is cupy.ndarray
    with pytest.raises(TypeError, match=r"^rms_norm: weight must be a numpy array as x is"):
        fastnorm.rms_norm(np.ones((3, 8), np.float32), Foreign())


TIMED = [Case(1, "layer_norm", (3, 100), ()), Case(3, "add_rms_norm", (3, 100), ()), Case(7, "softmax", (3, 100), ())]
TIMED += [Case(7, "rope", (1, 2, 3, 8), ()), Case(8, "attention", (1, 2, 5, 8), ())]
SLOW = Case(11, "attention", (1, 2, 20, 8), (), dtype="bfloat16")  # on tensor cores


@pytest.mark.parametrize("case", [*TIMED, pytest.param(SLOW, marks=pytest.mark.slow)], ids=lambda case: case.title)
def test_the_bench_checks_what_it_times_on_a_gpu(device, monkeypatch, case):
    waits = []
    stream = SimpleNamespace(synchronize=lambda: waits.append(1))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    monkeypatch.setattr(cupy, "asnumpy", device.host)
    job = measure.prepare(case, threads=1)
    one = measure.contender("gpu", job)
    measure.check("gpu", one, job)
    assert device.launches
    assert waits == [1]
