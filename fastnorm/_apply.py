"""``fastnorm apply``: a function of an array in a ``.npy`` file, chunk by chunk, in memory that does not grow with the file.

A chunk is read from a mapping of the file and, where it is one stretch of the file, written by plain writes: a full disk is an
error of those, while it ends a process that wrote to a mapping. Where the normalised axis comes before one that has to be cut,
a chunk is spread over the file, and goes to a mapping after all. Room is therefore reserved first.
"""

import contextlib
import functools
import importlib.util
import itertools
import math
import mmap
import os
import secrets
import shutil
import signal
import sys
import time

import numpy as np

from . import layer_norm, log_softmax, rms_norm, softmax, unit_norm
from ._checks import axes_of

CHUNK = 64 << 20  # bytes; a chunk is at least one row
FUNCTIONS = {
    "rms_norm": (rms_norm, ("weight", "eps")),
    "layer_norm": (layer_norm, ("weight", "bias", "eps")),
    "unit_norm": (unit_norm, ("weight", "eps")),
    "softmax": (softmax, ()),
    "log_softmax": (log_softmax, ()),
}


def apply(options):
    """Run the command; the exit status."""
    try:
        with _interrupted_by("SIGTERM", "SIGHUP"):
            print(_apply(options))
    except KeyboardInterrupt as interruption:
        left = f"the first chunks of {options.input} are normalised" if options.in_place else "nothing was written"
        print(f"fastnorm apply: interrupted, {left}", file=sys.stderr)
        return 128 + (interruption.args or (signal.SIGINT,))[0]
    except (OSError, TypeError, ValueError, MemoryError) as error:
        print(f"fastnorm apply: {error}", file=sys.stderr)
        return 2
    return 0


def _apply(options):
    """Check everything, write the result, and say what was written."""
    path = _target(options)
    x = _opened(options.input)
    function = _function(options)
    (axis,) = axes_of(options.function, options.axis, x, tuples=False)
    dtype = function(np.moveaxis(x, axis, -1)[None][:0], axis=-1).dtype  # no row at all: complains of whatever is wrong
    begin = time.perf_counter()
    if options.in_place:
        if dtype != x.dtype:
            raise ValueError(f"--in-place: the result has dtype {dtype.str}, but {path} holds {x.dtype.str}")
        print(f"fastnorm apply: an interruption leaves the first chunks of {path} normalised", file=sys.stderr)
        _fill(function, axis, x, np.lib.format.open_memmap(path, "r+"), path)
    else:
        _write(function, axis, x, dtype, path)
    seconds = time.perf_counter() - begin
    speed = (x.nbytes + x.size * dtype.itemsize) / seconds / 1e9
    return f"wrote {path}: shape {x.shape}, dtype {dtype}, {seconds:.2f} s, {speed:.2f} GB/s read and written"


# ---------------------------------------------------------------------------------------------------------- what was asked
def _target(options):
    """The file to write, which is none of those that are read."""
    if options.in_place == (options.output is not None):
        raise ValueError("either OUT.npy or --in-place must be given, and not both")
    path = os.path.realpath(options.input if options.in_place else options.output)
    sources = {"IN.npy": not options.in_place and options.input, "--weight": options.weight, "--bias": options.bias}
    for name, source in sources.items():
        if source and os.path.exists(source) and os.path.exists(path) and os.path.samefile(source, path):
            advice = ": --in-place writes to the input itself" if name == "IN.npy" else ""
            raise ValueError(f"{path} would be overwritten, but is the file of {name}{advice}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a file")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder}")
    if not os.access(path if options.in_place else folder, os.W_OK):
        raise ValueError(f"{path if options.in_place else folder} is not writeable")
    return path


def _function(options):
    """The function with what was given besides the array and the axis."""
    function, allowed = FUNCTIONS[options.function]
    given = {name: getattr(options, name) for name in ("weight", "bias", "eps") if getattr(options, name) is not None}
    for name in given:
        if name not in allowed:
            raise ValueError(f"{options.function} takes no --{name}")
    return functools.partial(function, **{n: value if n == "eps" else _opened(value) for n, value in given.items()})


def _opened(path):
    """The array of a file, mapped to be read. Nothing is ever unpickled."""
    try:
        array = np.lib.format.open_memmap(path, "r")
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is not a .npy file of numbers, or not all of one: {error}") from None
    if array.dtype == "V2":
        raise TypeError(f"{path} has dtype V2: bfloat16 is saved so, but nothing in the file says that it is; save float32")
    return array


# --------------------------------------------------------------------------------------------------------------- writing
def _write(function, axis, x, dtype, path):
    """The result, to a file that takes its name only once it is whole."""
    folder, size = os.path.dirname(path), x.size * dtype.itemsize
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(f"{path} needs {size:,} bytes, but {folder} has {free:,} left")
    temporary = os.path.join(folder, f".fastnorm-{secrets.token_hex(8)}.npy")
    try:
        _fill(function, axis, x, _created(temporary, dtype, x), temporary)
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _created(path, dtype, x):
    return np.lib.format.open_memmap(path, "w+", dtype, x.shape, fortran_order=x.flags.fnc)


def _fill(function, axis, x, y, path):
    """Normalise `x` into `y`, both mapped. `path` is the file of `y`, written to wherever a chunk is one stretch of it."""
    mappings, begin, title = (x.base, y.base), y.offset, os.path.basename(path)
    if x.flags.fnc:  # the order of the file is the other one: the same for the mirrored arrays
        x, y, axis = x.T, y.T, x.ndim - 1 - axis
    blocks = _blocks(x.shape, axis, CHUNK // max(x.itemsize, y.itemsize))
    room = np.empty(max((y[block].nbytes for block in blocks[:1]), default=0), np.uint8)
    with open(path, "rb+") as file:
        if blocks and hasattr(os, "posix_fallocate"):  # a full disk shows at once
            os.posix_fallocate(file.fileno(), begin, y.nbytes)
        for block in _shown(blocks, title):
            part, target = x[block], y[block]
            result = room[: target.nbytes].view(y.dtype).reshape(target.shape)
            if target.flags.c_contiguous:
                function(part, axis=axis, out=result)
                file.seek(begin + sum(s.start * stride for s, stride in zip(block, y.strides, strict=True)))
                file.write(room[: target.nbytes])
                _let_go(mappings)
            else:
                rows = max(1, CHUNK // max(x.strides[axis], y.strides[axis]))
                held = np.empty(part.shape, x.dtype)
                _copy(part, held, axis, rows, mappings)
                function(held, axis=axis, out=result)
                _copy(result, target, axis, rows, mappings)
        file.flush()
        os.fsync(file.fileno())


def _blocks(shape, axis, most):
    """Slices of chunks of at most so many elements, in the order of memory, which never cut `axis`."""
    if not math.prod(shape):
        return []
    steps = list(shape)
    for a in range(len(shape)):
        if a != axis:
            steps[a] = max(1, min(shape[a], most * steps[a] // math.prod(steps)))
    ranges = [range(0, n, step) for n, step in zip(shape, steps, strict=True)]
    return [tuple(map(slice, starts, map(sum, zip(starts, steps, strict=True)))) for starts in itertools.product(*ranges)]


def _copy(source, target, axis, rows, mappings):
    """Copy, with no more than so many indices of `axis` in mapped pages at a time."""
    for start in range(0, source.shape[axis], rows):
        slab = (slice(None),) * axis + (slice(start, start + rows),)
        target[slab] = source[slab]
        _let_go(mappings)


def _let_go(mappings):
    """Give mapped pages back: they stay in the system's cache, and what was written to them will be in the file."""
    for mapping in mappings:
        if hasattr(mapping, "madvise"):
            mapping.madvise(mmap.MADV_DONTNEED)


def _shown(blocks, title):
    """The blocks, with a bar on a terminal that shows how many are done."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import track

        return track(blocks, title, console=Console(stderr=True))
    return blocks


@contextlib.contextmanager
def _interrupted_by(*names):
    """Let these signals interrupt as Ctrl-C does, unless they are ignored."""

    def interrupt(number, frame):
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
