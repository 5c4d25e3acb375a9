"""Chunks of files: how arrays are cut, and how a chunk is read, computed and written, in this process or in a worker.

A chunk is read from a mapping of the file and, where it is one stretch of the file, written by plain writes: a full disk is an
error of those, while it ends a process that wrote to a mapping. Where the normalised axis comes before one that has to be cut,
a chunk is spread over the file, and goes to a mapping after all. Room is therefore reserved when a file is made.
"""

import contextlib
import dataclasses
import itertools
import math
import mmap
import os
import stat

import numpy as np

CHUNK = 64 << 20  # bytes; a chunk is at least one row


@dataclasses.dataclass(frozen=True)
class Source:
    """A file that is read, as it was when the command began."""

    path: str
    size: int
    modified: int

    @classmethod
    def at(cls, path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a file, which alone can be mapped")
        return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns)

    def check(self):
        """Complain if there is another file by now, or on this machine."""
        if Source.at(self.path) != self:
            raise OSError(f"{self.path} is not the file that it was when the command began, or on the machine of the command")

    def array(self):
        """The array in it, mapped to be read. Nothing is ever unpickled."""
        try:
            array = np.lib.format.open_memmap(self.path, "r")
        except OSError:
            raise
        except Exception as error:  # a damaged header fails in many ways: those of literals and of dtypes among them
            raise ValueError(f"{self.path} is not a .npy file of numbers, or not all of one: {error}") from None
        if array.dtype == "V2":
            name = f"{self.path} has dtype V2"
            raise TypeError(f"{name}: bfloat16 is saved so, but nothing in the file says that it is; save float32")
        return array


# --------------------------------------------------------------------------------------------------------------- chunks
def blocks_of(x, least, itemsize):
    """Slices of chunks of `x`, in the order of memory, which keep together so many indices of each axis."""
    if not x.size:
        return [tuple(slice(0, n) for n in x.shape)]
    most, steps = CHUNK // itemsize, list(x.shape)
    for axis in range(x.ndim)[:: -1 if x.flags.fnc else 1]:
        fitting = most * steps[axis] // math.prod(steps)
        steps[axis] = min(x.shape[axis], max(1, fitting // least[axis]) * least[axis])
    ranges = [range(0, n, step) for n, step in zip(x.shape, steps, strict=True)]
    if x.flags.fnc:
        ordered = (starts[::-1] for starts in itertools.product(*ranges[::-1]))
    else:
        ordered = itertools.product(*ranges)
    return [
        tuple(slice(start, min(start + step, n)) for start, step, n in zip(starts, steps, x.shape, strict=True))
        for starts in ordered
    ]


def fill(call, sources, targets, blocks):
    """Do some chunks, and yield after each. `targets` are files of the right size; None, where a result is not kept."""
    arrays = {name: source.array() for name, source in sources.items()}
    order = "F" if arrays["x"].flags.fnc else "C"
    dtypes = [result.dtype for result in call.results(arrays)]
    with contextlib.ExitStack() as stack:
        outputs = [path and stack.enter_context(_Output(path)) for path in targets]
        results = []
        for block in blocks:
            place = call.place(block)
            shape = tuple(cut.stop - cut.start for cut in place)
            if not results or results[0].shape != shape:
                results = [np.empty(shape, dtype, order) for dtype in dtypes]
            parts = {name: _read(array, block) if name in ("x", "residual") else array for name, array in arrays.items()}
            call.on_chunk(parts, block, results)
            for output, result in zip(outputs, results, strict=True):
                if output:
                    output.write(place, result)
            del parts
            for array in arrays.values():
                let_go(array.base)
            yield


def in_stretches(call, targets, blocks):
    """True if each chunk's results are one stretch of their files."""
    arrays = [np.lib.format.open_memmap(path, "r") for path in targets if path]
    return all(array[(*call.place(block), ...)].flags.forc for array in arrays for block in blocks)


class _Output:
    """A file that is there already, to be written to in blocks of its array."""

    def __init__(self, path):
        self._array = np.lib.format.open_memmap(path, "r+")
        self._file = open(path, "rb+")  # noqa: SIM115 - closed by __exit__

    def write(self, block, values):
        part = self._array[(*block, ...)]
        if part.flags.forc:
            self._file.seek(self._array.offset + part.ctypes.data - self._array.ctypes.data)
            self._file.write(values.ravel("K"))
        else:
            _copy(values, part, part, self._array.base)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


def _read(array, block):
    part = array[block]
    if part.flags.forc:
        return part
    held = np.empty_like(part, subok=False)
    _copy(part, held, part, array.base)
    return held


def _copy(source, target, mapped, mapping):
    """Copy, with no more than a chunk's bytes of the mapping in memory at a time."""
    axis = max(range(mapped.ndim), key=lambda a: mapped.strides[a] * (mapped.shape[a] > 1))
    rows = max(1, CHUNK // mapped.strides[axis])
    for start in range(0, mapped.shape[axis], rows):
        slab = (slice(None),) * axis + (slice(start, start + rows),)
        target[slab] = source[slab]
        let_go(mapping)


def let_go(mapping):
    """Give mapped pages back: they stay in the system's cache, and what was written to them will be in the file."""
    if hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED)
