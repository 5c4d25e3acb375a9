"""Devices for tests of the GPU backend: an interpreter of PTX over fake memory, and a real one.

Both take NumPy arrays and give them back, with real CuPy arrays in between: `fastnorm.rms_norm(device.array(x))` goes through
every line of the library on either. Interpreted, every access to memory is checked and counted.
"""

import contextlib
import mmap
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("NVIDIA's compilers come with the tests' dependencies on Linux alone", allow_module_level=True)

import cupy
import ptxrun

from fastnorm._cuda import launch


class Launch(NamedTuple):
    """One launch as the library asked for it, and what it did."""

    entry: str
    ptx: str
    grid: tuple
    block: tuple
    arguments: tuple
    stats: Any


class Interpreted:
    """A device of compute capability 9.0 that NumPy emulates."""

    def __init__(self, check_races=False):
        self.launches, self.check_races, self._buffers = [], check_races, []

    def allocate(self, nbytes):
        """A memory allocator for CuPy. The memory is exactly as long as asked for, at the beginning of a page."""
        buffer = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
        self._buffers.append(buffer)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(buffer.ctypes.data, nbytes, buffer, device_id=0), 0)

    def array(self, values):
        """A CuPy array of these values."""
        array = cupy.ndarray(values.shape, values.dtype, self.allocate(values.nbytes))
        self.host(array)[...] = values
        return array

    def host(self, array):
        """The memory of a CuPy array as a NumPy array."""
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        buffer, offset = self._find(array.data.ptr)
        return np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)

    def load(self, entry, ptx):
        """In place of `launch.load`: a function that runs the kernel in the interpreter."""
        text = ptx.decode()

        def run(grid, block, arguments):
            values = [self._value(a) for a in arguments]
            stats = ptxrun.launch(text, entry, grid, block, values, check_races=self.check_races)
            self.launches.append(Launch(entry, text, grid, block, arguments, stats))

        return run

    def _value(self, argument):
        if not isinstance(argument, int):
            return argument
        found = self._find(argument)
        if found is None:
            return np.int64(argument)
        # Points to the address, and reaches back to the beginning of the buffer: rows may have negative strides.
        buffer, offset = found
        reach = (2, len(buffer) - offset), (-offset, 1)
        return np.lib.stride_tricks.as_strided(buffer[offset:], *reach)

    def _find(self, address):
        for buffer in self._buffers:
            if 0 <= address - buffer.ctypes.data < len(buffer):
                return buffer, address - buffer.ctypes.data
        return None

    # Of CuPy, what would launch a kernel of its own
    def ascontiguousarray(self, array):
        return array if array.flags.c_contiguous else self.array(self.host(array))

    def asarray(self, array):
        if isinstance(array, cupy.ndarray):
            return array
        seen = getattr(array, "__cuda_array_interface__", None)
        if seen is None:
            return self.array(np.asarray(array))
        buffer, offset = self._find(seen["data"][0])
        memory = cupy.cuda.UnownedMemory(buffer.ctypes.data, len(buffer), array, device_id=0)
        return cupy.ndarray(seen["shape"], np.dtype(seen["typestr"]), cupy.cuda.MemoryPointer(memory, offset), seen["strides"])

    def copyto(self, target, source):
        self.host(target)[...] = self.host(source)

    class Properties:
        """In place of `cupy.cuda.Device`."""

        compute_capability = "90"

        def __init__(self, number):
            assert number == 0


@contextlib.contextmanager
def interpreted(**options):
    """An `Interpreted` device, in the place of CuPy's current one."""
    device, allocator = Interpreted(**options), cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(device.allocate)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "_functions", {})
            patch.setattr(launch, "load", device.load)
            patch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
            patch.setattr(cupy.cuda, "Device", device.Properties)
            patch.setattr(cupy, "ascontiguousarray", device.ascontiguousarray)
            patch.setattr(cupy, "copyto", device.copyto)
            patch.setattr(cupy, "asarray", device.asarray)
            yield device
    finally:
        cupy.cuda.set_allocator(allocator)


class Real:
    """CuPy's current device."""

    array = staticmethod(cupy.asarray)
    host = staticmethod(cupy.asnumpy)


@contextlib.contextmanager
def real():
    """A `Real` device, if there is one."""
    if not cupy.is_available():
        pytest.skip("CuPy finds no device")
    yield Real()
