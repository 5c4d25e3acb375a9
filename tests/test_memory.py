"""No kernel touches memory outside its arrays, and none writes to anything but `out`."""

import ctypes
import itertools
import mmap
import sys

import numpy as np
import pytest
from calls import call, inputs, parameters
from compare import NORMS as ALL

from fastnorm._compile import kernel
from fastnorm._cpu import norms as schedules
from fastnorm._cpu.layout import SLOTS, scratch_rows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mprotect is a POSIX call")

PAGE = mmap.PAGESIZE
SIZES = [*range(20), *range(30, 36), *range(46, 50), *range(60, 69), 80, 95, 96, 97, *range(126, 131)]  # around lines, lanes
NORMS = {"rms_norm": 1, "layer_norm": 2}  # about zero and about the mean; how many of weight and bias they take
PLAIN, STREAMING = np.array([False]), np.array([True])


class Guarded:
    """Arrays that begin or end exactly at a page that nobody may touch: a load or store beyond them ends the process."""

    def __init__(self):
        self._maps = []

    def array(self, values, at_end):
        values = np.ascontiguousarray(values)
        pages = max(1, -(-values.nbytes // PAGE))
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for page in (start, start + (pages + 1) * PAGE):
            assert protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0, ctypes.get_errno()
        self._maps.append((memory, protect, start, pages))
        offset = PAGE + (pages * PAGE - values.nbytes if at_end else 0)
        array = np.ndarray(values.shape, values.dtype, memory, offset)
        array[...] = values
        return array

    def close(self):
        for _, protect, start, pages in self._maps:
            protect(ctypes.c_void_p(start), ctypes.c_size_t((pages + 2) * PAGE), mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.fixture
def guarded():
    guard = Guarded()
    yield guard
    guard.close()


def eps_of(eps, dtype):
    return schedules.both_eps("rms_norm", np.dtype(dtype), eps)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [1, 1e-30])
@pytest.mark.parametrize("norm", NORMS)
def test_rows(rng, guarded, at_end, dtype, scale, norm):
    run = kernel("fastnorm._cpu.rows:rows", norm, np.dtype(dtype).name).ufunc
    parameters = NORMS[norm]
    eps = eps_of(0.0, dtype)
    for n in SIZES:
        values = (rng.standard_normal((3, n)) * scale).astype(dtype)
        x, weight = guarded.array(values, at_end), guarded.array(values[0], at_end)
        for flags in (PLAIN, STREAMING):
            out = guarded.array(np.zeros_like(values), at_end)
            run(x, *[weight] * parameters, eps, flags, out)
            run(x, *[np.broadcast_to(guarded.array(values[0, :1], at_end), n)] * parameters, eps, flags, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [1, 1e-30])
@pytest.mark.parametrize("norm", NORMS)
def test_columns(rng, guarded, at_end, dtype, scale, norm):
    run = kernel("fastnorm._cpu.columns:columns", norm, np.dtype(dtype).name).ufunc
    parameters, centred = NORMS[norm], norm == "layer_norm"
    eps = eps_of(0.0, dtype)
    for columns in SIZES:
        for n in (1, 5, 70):
            values = (rng.standard_normal((n, columns)) * scale).astype(dtype)
            x, weight = guarded.array(values, at_end), guarded.array(np.ones(n, dtype), at_end)
            scratch = guarded.array(np.zeros((scratch_rows(n, centred), -(-columns // 64) * 64), dtype), at_end)
            out = guarded.array(np.zeros_like(values), at_end)
            for flags in (PLAIN, STREAMING):
                run(x, *[weight] * parameters, eps, scratch, flags, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", NORMS)
def test_pieces(rng, guarded, at_end, dtype, norm):
    name = np.dtype(dtype).name
    measure = kernel("fastnorm._cpu.pieces:measure", norm, name).ufunc
    join = kernel("fastnorm._cpu.pieces:join", norm, name).ufunc
    apply = kernel("fastnorm._cpu.pieces:apply", norm, name).ufunc
    eps = eps_of(1e-6, dtype)
    for n in SIZES:
        values = rng.standard_normal(n).astype(dtype)
        x, weight, out = (guarded.array(values, at_end) for _ in range(3))
        statistics = guarded.array(np.zeros((1, SLOTS), dtype), at_end)
        row, shift = guarded.array(np.zeros(SLOTS, dtype), at_end), guarded.array(np.zeros(1, dtype), at_end)
        if n:
            kernel("fastnorm._cpu.pieces:guess", name).ufunc(x[:64], shift)
            measure(x, shift, eps, statistics[0])
            join(statistics, shift, row)
            for flags in (PLAIN, STREAMING):
                apply(x, *[weight] * NORMS[norm], eps, row, shift, flags, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("stored", [np.int16, pytest.param(np.uint16, marks=pytest.mark.slow)])
def test_halves(rng, guarded, at_end, stored):
    """float16 and bfloat16, as they travel: along both axes, streamed and not."""
    name = np.dtype(stored).name
    by_rows = kernel("fastnorm._cpu.rows:rows", "rms_norm", name).ufunc
    by_columns = kernel("fastnorm._cpu.columns:columns", "rms_norm", name).ufunc
    eps = eps_of(0.0, stored)
    for n in SIZES:
        values = rng.integers(0, 0x7000, (3, n)).astype(stored)
        x, weight = guarded.array(values, at_end), guarded.array(np.ones(n, np.float32), at_end)
        few = guarded.array(np.ones(3, np.float32), at_end)
        scratch = guarded.array(np.zeros((scratch_rows(3, False), -(-n // 64) * 64), np.float32), at_end)
        for flags in (PLAIN, STREAMING):
            out = guarded.array(np.zeros_like(values), at_end)
            by_rows(x, weight, eps, flags, out)
            by_columns(x, few, eps, scratch, flags, out)
        guarded.close()


PAIRS = [("float32", "float32"), ("int16", "float32"), ("float32", "uint16"), ("int16", "int16")]
PAIRS += [pytest.param("float64", "float64", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(("stored", "residual_stored"), PAIRS)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_sums(rng, guarded, at_end, stored, residual_stored, norm):
    """Of the two results one is over an input, or both are new; streamed and not."""
    run = kernel("fastnorm._cpu.rows:sum_rows", norm, stored, residual_stored).ufunc
    computed = np.float64 if stored == "float64" else np.float32
    eps = eps_of(0.0, stored)
    for n in SIZES:
        x, residual = (numbers(rng, (3, n), name) for name in (stored, residual_stored))
        weight = guarded.array(np.ones(n, computed), at_end)
        for over in range(3):
            arrays = [guarded.array(a, at_end) for a in (x, residual)]
            kept = arrays[1] if over == 1 else guarded.array(np.zeros_like(residual), at_end)
            out = arrays[0] if over == 2 else guarded.array(np.zeros_like(x), at_end)
            for flags in (PLAIN,) if over else (PLAIN, STREAMING):
                run(*arrays, *[weight] * NORMS[norm], eps, flags, kept, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    ("stored", "residual_stored"), [("float32", ""), ("int16", ""), ("float32", "float32"), ("uint16", "float32")]
)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_in_a_cache(rng, guarded, at_end, stored, residual_stored, norm):
    maker, both = ("sum_rows", [stored, residual_stored]) if residual_stored else ("rows", [stored])
    run = kernel(f"fastnorm._cpu.small:{maker}", norm, *both).ufunc
    eps = eps_of(0.0, stored)
    for n in SIZES:
        arrays = [guarded.array(numbers(rng, (3, n), name), at_end) for name in both]
        outs = [guarded.array(np.zeros_like(a), at_end) for a in arrays][::-1]  # what is kept comes before the result
        weight = guarded.array(np.ones(n, np.float32), at_end)
        run(*arrays, *[weight] * NORMS[norm], eps, *outs)
        run(*[a[:, ::-1] for a in arrays], *[weight[::-1]] * NORMS[norm], eps, *[out[:, ::-1] for out in outs])
        run(*arrays, *[np.broadcast_to(weight[:1], n)] * NORMS[norm], eps, *arrays[::-1])
        guarded.close()


def numbers(rng, shape, stored):
    """Numbers as kernels take them: those of 16 bits go as integers."""
    if stored in ("int16", "uint16"):
        return rng.integers(0, 0x7000, shape).astype(stored)
    return rng.standard_normal(shape).astype(stored)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    "stored", ["float32", *(pytest.param(s, marks=pytest.mark.slow) for s in ("float64", "int16", "uint16"))]
)
@pytest.mark.parametrize("by_channel", [True, False])
def test_dense_groups(rng, guarded, at_end, stored, by_channel):
    run = kernel("fastnorm._cpu.groups:dense", "layer_norm", stored, by_channel).ufunc
    computed = np.float64 if stored == "float64" else np.float32
    eps = eps_of(0.0, stored)
    for n in [64, 65, 66, 71, 80, 95, 96, 97, 100, 127, 128, 129, 130, 191, 193] if by_channel else SIZES:
        for channels in (1, 2, 3) if by_channel else (n,):
            x = guarded.array(numbers(rng, (3, channels * n if by_channel else n), stored), at_end)
            weights = [guarded.array(rng.standard_normal((3, channels)).astype(computed), at_end) for _ in range(2)]
            out = guarded.array(np.zeros_like(x), at_end)
            for flags in (PLAIN, STREAMING):
                run(x, *weights, eps, flags, out)
            run(x, *weights, eps, PLAIN, x)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("stored", ["float32", "float64", "int16"])
def test_scattered_groups(rng, guarded, at_end, stored):
    run = kernel("fastnorm._cpu.groups:scattered", "layer_norm", stored).ufunc
    computed = np.float64 if stored == "float64" else np.float32
    eps = eps_of(0.0, stored)
    for before, channels, after in itertools.product([1, 2, 7, 65], [1, 3, 8], [1, 2, 9, 33]):
        weights = [guarded.array(rng.standard_normal(channels).astype(computed), at_end) for _ in range(2)]
        whole = guarded.array(numbers(rng, (before, 2 * channels, after), stored), at_end)
        out = guarded.array(np.zeros_like(whole), at_end)
        for part in (slice(0, channels), slice(channels, None)):
            run(whole[:, part], *weights, eps, out[:, part])
            run(whole[::-1, part, ::-1], *weights, eps, out[::-1, part, ::-1])
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("stored", ["float32", "uint16"])
def test_channels_last(rng, guarded, at_end, stored):
    run = kernel("fastnorm._cpu.groups:channels_last", "layer_norm", stored).ufunc
    eps = eps_of(0.0, stored)
    for pixels, channels in itertools.product([1, 2, 7, 65], [*range(1, 10), 15, 16, 17, 63, 64, 65, 100, 513]):
        weights = [guarded.array(rng.standard_normal(channels).astype(np.float32), at_end) for _ in range(2)]
        whole = guarded.array(numbers(rng, (pixels, 2 * channels), stored), at_end)
        out = guarded.array(np.zeros_like(whole), at_end)
        for part in (slice(0, channels), slice(channels, None)):
            run(whole[:, part], *weights, eps, out[:, part])
            run(whole[::-1, part], *weights, eps, whole[::-1, part])
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("norm", ALL)
def test_the_functions_themselves(rng, guarded, at_end, norm):
    for n in SIZES:
        arrays = [guarded.array(a, at_end) for a in inputs(norm, rng, (2, n))]
        outs = [guarded.array(np.zeros_like(a), at_end) for a in arrays]
        for axis in (0, 1):
            weights = [guarded.array(p, at_end) for p in parameters(norm, arrays[0].shape[axis])]
            if norm != "group_norm" or arrays[0].shape[axis]:
                call(norm, arrays, axis, outs, weights)
                call(norm, arrays, axis, outs, weights=[None])
        guarded.close()


@pytest.mark.parametrize("shape", [(40, 40), (300, 500)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("norm", ALL)
def test_nothing_but_results_is_written(rng, norm, axis, shape):
    arrays, weights = inputs(norm, rng, shape), parameters(norm, shape[axis], np.float64)
    rooms = [np.full((shape[0] + 4, shape[1] + 4), 7, np.float32) for _ in arrays]
    kept = [a.copy() for a in (*arrays, *weights)]
    call(norm, arrays, axis, [room[2:-2, 2:-2] for room in rooms], weights)
    for array, before in zip([*arrays, *weights], kept, strict=True):
        assert (array == before).all()
    for room in rooms:
        assert not (room[2:-2, 2:-2] == 7).any()
        room[2:-2, 2:-2] = 7
        assert (room == 7).all()


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "add_layer_norm"])
def test_no_growth(rng, norm):
    """Small calls leave nothing behind."""
    import tracemalloc

    arrays, weights = inputs(norm, rng, (4, 64)), parameters(norm, 64)
    tracemalloc.start()
    try:
        for _ in range(2000):
            call(norm, arrays, weights=weights)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5000):
            call(norm, arrays, weights=weights)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000


@pytest.mark.parametrize("norm", ALL)
def test_in_place_makes_no_copy(rng, norm):
    import tracemalloc

    arrays = inputs(norm, rng, (1000, 1000))
    if norm == "group_norm":
        arrays = [arrays[0].reshape(10, 100, 1000)]
    axes = (1,) if norm == "group_norm" else (-1,) if norm.startswith("add_") else (-1, 0)
    for axis in axes:
        call(norm, arrays, axis, arrays)
    tracemalloc.start()
    try:
        for axis in axes:
            call(norm, arrays, axis, arrays)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < arrays[0].nbytes / 4


def test_the_guard_guards(tmp_path):
    """The tests above can fail: one element beyond ends the process."""
    import subprocess

    program = tmp_path / "beyond.py"
    program.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np\n"
        "from test_memory import Guarded\n"
        "x = Guarded().array(np.zeros(5, np.float32), at_end=True)\n"
        "print(x[4])\n"
        "np.lib.stride_tricks.as_strided(x, (6,))[5]\n"
    )
    import pathlib

    done = subprocess.run([sys.executable, program, pathlib.Path(__file__).parent], capture_output=True, text=True)
    assert done.stdout.strip() == "0.0"
    assert done.returncode < 0
