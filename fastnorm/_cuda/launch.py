"""numba compiles, CuPy launches: the one home of both, and of the size of a launch.

numba-cuda's own launch of a kernel over three CuPy arrays takes 88 us. Kernels here take bare pointers and numbers, so their
PTX is all there is to them: it is kept on disk, loaded by CuPy, and launched on CuPy's current stream in a few us. A process
whose kernels are all on disk imports no numba, and numba never touches the driver.

A kernel is named by a maker and its parameters, as in `_compile`.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import os
import pathlib
import re
import threading
from typing import Any, NamedTuple

import cupy

from .. import _compile

WARP = 32
LOAD = 16  # bytes of the widest load and store, whose address is a multiple of it
HELD = 64  # bytes of a row that a thread holds: four loads of 128 bits under way at once; kernels take 48 to 64 registers
SHORT_ROWS = 4  # of a block, where a warp holds a row: 128 threads, for which every device has room several times
MOST_THREADS = 1024  # of a block, by CUDA
HALF = MOST_THREADS // 2  # of a block whose threads need more than 64 registers
PIECE = 4 * HELD * MOST_THREADS  # bytes of a long row that a block takes, in the dtype of the computation: 256 KiB
LONG = 4 * PIECE  # and of a row that is cut into pieces, at least
MOST_BLOCKS = 2**31 - 1  # of a grid, by CUDA

_lock = threading.RLock()
_functions: dict[tuple, Any] = {}


class Source(NamedTuple):
    """What a maker returns: a kernel before it is compiled."""

    function: Any  # a Python function over pointers and numbers
    types: tuple  # numba's types of its arguments
    threads: Any  # that a block may have, hence how many registers one of them; or these and how many blocks run side by side


def moves_wide(numbers):
    """True if 128 bits can move at once: addresses, strides and lengths of rows, in bytes, are all multiples of 16."""
    return not any(number % LOAD for number in numbers)


def block_size(n, itemsize):
    """Threads for a row of n elements: enough to hold it in registers, in whole warps. They set the order of summation."""
    threads = -(-n * itemsize // HELD)
    return min(-(-threads // WARP) * WARP, MOST_THREADS)


def kernel(maker, *parameters):
    """The kernel of this name on the current device: ``kernel(...)(grid, block, arguments)`` launches it, and does not wait.

    Arguments are addresses and sizes as integers, and NumPy scalars of a kernel's dtype.
    """
    name = (maker, *parameters)
    device = cupy.cuda.runtime.getDevice()
    found = _functions.get((device, name))
    if found is None:
        with _lock:
            found = _functions.get((device, name))
            if found is None:
                found = _functions[device, name] = load(entry_of(name), program(name, capability(device)))
    return found


def capability(device):
    """The compute capability of a device, such as "90"."""
    return cupy.cuda.Device(device).compute_capability


def load(entry, ptx):
    """Hand PTX to the driver, which compiles it for the current device and keeps the result in a cache of its own."""
    module = cupy.cuda.function.Module()
    module.load(ptx)
    return module.get_function(entry)  # keeps the module alive


# -------------------------------------------------------------------------------------------------------- programs
def program(name, capability):
    """The PTX of a kernel for devices of a compute capability ("90"): made ahead, from the cache, or from the compiler."""
    ptx = _made_ahead(name, capability)
    if ptx is not None:
        return ptx
    folder = _compile.cache_folder(_versions)
    path = folder.usable and folder.path / _compile.file_name((*name, f"sm_{capability}"))
    if path:
        try:
            _, (ptx, _) = _compile.read(path)
            return ptx
        except (OSError, ValueError):  # not there, or not whole: compile
            pass
    ptx = compile_ptx(name, capability)
    if path:
        _compile.write(path, {"name": entry_of(name)}, (ptx,))
    return ptx


def write_ahead(folder, wanted):
    """Write PTX to a folder, for machines that have CuPy and no compiler: of each name and capability. The number of files."""
    folder = pathlib.Path(folder) / _source()
    folder.mkdir(parents=True, exist_ok=True)
    for name, capability in wanted:
        (folder / f"{entry_of(name)}.sm_{capability}.ptx").write_bytes(program(name, capability))
    return len(wanted)


def _made_ahead(name, capability):
    """What `write_ahead` has left in ``FASTNORM_PTX_DIR`` for this source: the newest code that the device can run."""
    folder = os.environ.get("FASTNORM_PTX_DIR")
    if not folder:
        return None
    found = {}
    for file in pathlib.Path(folder, _source()).glob(f"{entry_of(name)}.sm_*.ptx"):
        number = file.name.split(".sm_")[1].removesuffix(".ptx")
        if number.isdigit() and int(number) <= int(capability):
            found[int(number)] = file
    return found[max(found)].read_bytes() if found else None


@functools.cache
def _source():
    """What tells this source from any other."""
    return _compile._key("ptx")


def entry_of(name):
    """The kernel's name in PTX, which is what profilers show: ``fastnorm_rows_rms_norm_float32_True_True``."""
    maker, *parameters = name
    return "_".join(map(str, ("fastnorm", maker.split(":")[1], *parameters)))


def compile_ptx(name, capability):
    """Ask the maker for the source and compile it. No GPU is needed."""
    maker, *parameters = name
    module, function = maker.split(":")
    source = getattr(importlib.import_module(module), function)(*parameters)
    from numba import cuda

    target = int(capability[:-1]), int(capability[-1])
    with _compiling_for(target):
        ptx, _ = cuda.compile(source.function, source.types, device=False, abi="numba", cc=target, launch_bounds=source.threads)
    entry = re.search(r"\.entry\s+([\w$]+)", ptx).group(1)
    ptx = re.sub(r"^\.common .*NumbaEnv.*\n", "", ptx, flags=re.MULTILINE)  # for exceptions, which our kernels never raise
    # Rounded as it stands: what NVVM left as a product and a sum, the driver's assembler might make one of, here and not there.
    ptx = re.sub(r"\b(add|sub|mul)\.(f32|f64)\b", r"\1.rn.\2", ptx)
    return ptx.replace(entry, entry_of(name)).rstrip("\0").encode()


@contextlib.contextmanager
def _compiling_for(capability):
    """Let numba take a device of this capability for the current one.

    Although `cuda.compile` is given the capability, it compiles what a kernel calls for the current device, for which it
    would ask the driver and make a context of its own.
    """
    from numba.cuda import dispatcher
    from numba.cuda.core.compiler_lock import global_compiler_lock

    class Device:
        compute_capability = capability

    with global_compiler_lock:
        ask_driver = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: Device
        try:
            yield
        finally:
            dispatcher.get_current_device = ask_driver


def _versions():
    """What decides, besides the package's source, how PTX comes out. Read without importing any of it."""
    return tuple(map(_version, ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "numpy")))


@functools.cache
def _version(distribution):
    try:
        return distribution, importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # from elsewhere: conda, or a system's CUDA
        return distribution, None
