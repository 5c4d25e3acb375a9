"""No kernel touches memory outside its arrays, and none writes to anything but `out`."""

import ctypes
import mmap
import sys

import numpy as np
import pytest

import fastnorm
from fastnorm._compile import kernel
from fastnorm._cpu import norms as schedules
from fastnorm._cpu.layout import scratch_rows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mprotect is a POSIX call")

PAGE = mmap.PAGESIZE
SIZES = range(131)
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
    return schedules._ready("rms_norm", np.dtype(dtype), eps)[1]


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
            run(x[:, ::-1], *[weight[::-1]] * parameters, eps, flags, out[:, ::-1])
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
        statistics = guarded.array(np.zeros((1, 4), dtype), at_end)
        row, shift = guarded.array(np.zeros(4, dtype), at_end), guarded.array(np.zeros(1, dtype), at_end)
        if n:
            kernel("fastnorm._cpu.pieces:guess", name).ufunc(x[:64], shift)
            measure(x, shift, eps, statistics[0])
            join(statistics, shift, row)
            for flags in (PLAIN, STREAMING):
                apply(x, *[weight] * NORMS[norm], eps, row, shift, flags, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("stored", [np.int16, np.uint16])
def test_halves(rng, guarded, at_end, stored):
    """float16 and bfloat16, as they travel: along both axes, streamed and not, in registers and element by element."""
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
            by_rows(x[:, ::-1], weight[::-1], eps, flags, out[:, ::-1])
            by_columns(x, few, eps, scratch, flags, out)
        guarded.close()


@pytest.mark.parametrize("at_end", [False, True])
def test_the_function_itself(rng, guarded, at_end):
    for n in SIZES:
        x = guarded.array(rng.standard_normal((2, n)).astype(np.float32), at_end)
        out = guarded.array(np.zeros_like(x), at_end)
        for axis in (0, 1):
            fastnorm.rms_norm(x, guarded.array(np.ones(x.shape[axis], np.float32), at_end), axis=axis, out=out)
            fastnorm.rms_norm(x, axis=axis)
        guarded.close()


@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_but_out_is_written(rng, axis):
    x, weight = rng.standard_normal((40, 40)).astype(np.float32), rng.standard_normal(40)
    room = np.full((44, 44), 7, np.float32)
    kept = x.copy(), weight.copy()
    fastnorm.rms_norm(x, weight, axis=axis, weight_offset=1.0, out=room[2:-2, 2:-2])
    assert (x == kept[0]).all()
    assert (weight == kept[1]).all()
    room[2:-2, 2:-2] = 7
    assert (room == 7).all()


def test_no_growth(rng):
    """Small calls leave nothing behind."""
    import tracemalloc

    x = rng.standard_normal((4, 64)).astype(np.float32)
    for _ in range(100):
        fastnorm.rms_norm(x)
    tracemalloc.start()
    try:
        fastnorm.rms_norm(x)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20_000):
            fastnorm.rms_norm(x)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2000


def test_in_place_makes_no_copy(rng):
    import tracemalloc

    x = rng.standard_normal((1000, 1000)).astype(np.float32)
    fastnorm.rms_norm(x, out=x)
    tracemalloc.start()
    try:
        fastnorm.rms_norm(x, out=x)
        fastnorm.rms_norm(x, axis=0, out=x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 4


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
