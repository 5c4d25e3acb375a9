"""The command: what was asked and whether it can be, files that appear once they are whole, interruptions, the report."""

import contextlib
import os
import secrets
import shutil
import signal
import sys
import time

import numpy as np

from .._checks import axes_of, check_residual
from .calls import ARRAYS, NUMBERS, SEVERAL_AXES, Call, parameters_of
from .files import Source, blocks_of, fill
from .progress import shown
from .signals import held, interrupted_by


def apply(options):
    """Run the command; the exit status."""
    written = []
    try:
        with interrupted_by("SIGTERM", "SIGHUP"):
            print(_apply(options, written))
    except KeyboardInterrupt as interruption:
        print(f"fastnorm apply: interrupted, {_left(options, written) or 'nothing was written'}", file=sys.stderr)
        return 128 + (interruption.args or (signal.SIGINT,))[0]
    except (OSError, TypeError, ValueError, MemoryError) as error:
        left = _left(options, written)
        print(f"fastnorm apply: {_told(error)}{left and '; '}{left}", file=sys.stderr)
        return 2
    return 0


def _told(error):
    """An error in words, the file first."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _left(options, written):
    """What an end before its time leaves."""
    if options.in_place and written:
        return f"the first chunks of {options.input} are normalised"
    return f"wrote {' and '.join(written)}" if written else ""


def _apply(options, written):
    """Check everything, write the result, and say what was written. `written` grows by files that changed."""
    paths = _targets(options)
    sources = {name: Source.at(path) for name, path in _sources(options).items()}
    arrays = {name: source.array() for name, source in sources.items()}
    call, x = _call(options, arrays), arrays["x"]
    results = call.results(arrays)
    blocks = blocks_of(x, call.least(), max(array.itemsize for array in (x, *results)))
    begin = time.perf_counter()
    if options.in_place:
        _check_in_place(paths[0], x, results[0], len(results))
        print(f"fastnorm apply: an interruption leaves the first chunks of {paths[0]} normalised", file=sys.stderr)
        _reserve(paths[0], x.offset, x.nbytes)
        written += paths
        _run(options, call, sources, paths, blocks)
    else:
        with _appearing(paths, results, x.flags.fnc, written) as temporaries:
            _run(options, call, sources, temporaries, blocks)
    seconds = time.perf_counter() - begin
    kept = [result for result, path in zip(results, paths, strict=False) if path]
    read = sum(array.nbytes for name, array in arrays.items() if name in ("x", "residual"))
    speed = (read + sum(result.nbytes for result in kept)) / seconds / 1e9
    what = f"shape {kept[0].shape}, dtype {kept[0].dtype}"
    return f"wrote {' and '.join(written)}: {what}, {seconds:.2f} s, {speed:.2f} GB/s read and written"


def _run(options, call, sources, targets, blocks):
    with shown(len(blocks), os.path.basename(options.output or options.input)) as advance:
        if _is_shared(options):
            from .cluster import fill_by_workers

            done = fill_by_workers(call, sources, targets, blocks, options.workers, options.scheduler)
        else:
            done = fill(call, sources, targets, blocks)
        with contextlib.closing(done):
            for _ in done:
                advance()
    for target in filter(None, targets):
        with open(target, "rb+") as file:
            os.fsync(file.fileno())


# ---------------------------------------------------------------------------------------------------------- what was asked
def _is_shared(options):
    """True for --workers and --scheduler, whose address may be empty: of a shell's variable that is not set."""
    return options.workers is not None or options.scheduler is not None


def _sources(options):
    """The files that are read, by the names of their parameters."""
    given = {"x": options.input} | {name: getattr(options, name) for name in ARRAYS}
    return {name: path for name, path in given.items() if path is not None}


def _targets(options):
    """The files to write, one for each result or None; none of them is read."""
    if options.in_place == (options.output is not None):
        raise ValueError("either OUT.npy or --in-place must be given, and not both")
    if options.in_place and _is_shared(options):
        raise ValueError(
            "--in-place goes without --workers and --scheduler: a chunk that is repeated would be normalised twice"
        )
    asked = {"OUT.npy": options.input if options.in_place else options.output, "--residual-out": options.residual_out}
    paths = {name: os.path.realpath(path) for name, path in asked.items() if path is not None}
    for path in paths.values():
        _check_target(path, options)
    if len(set(paths.values())) < len(paths):
        raise ValueError(f"OUT.npy and --residual-out are both {paths['OUT.npy']}")
    return list(paths.values())


def _check_target(path, options):
    names = {name: "IN.npy" if name == "x" else f"--{name}" for name in ("x", *ARRAYS)}
    for name, source in _sources(options).items():
        if name == "x" and options.in_place:
            continue
        if os.path.exists(source) and os.path.exists(path) and os.path.samefile(source, path):
            advice = ": --in-place writes to the input itself" if name == "x" else ""
            raise ValueError(f"{path} would be overwritten, but is the file of {names[name]}{advice}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a file")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder}")
    if not os.access(path if options.in_place else folder, os.W_OK):
        raise ValueError(f"{path if options.in_place else folder} is not writeable")


def _call(options, arrays):
    """The function, its axes and its numbers."""
    name, parameters = options.function, parameters_of(options.function)
    numbers = {n: getattr(options, n) for n in NUMBERS if getattr(options, n) is not None}
    for given in (*numbers, *arrays, *(["residual_out"] if options.residual_out else [])):
        if given not in parameters:
            raise ValueError(f"{name} takes no {_flag(given)}")
    for needed in ("residual", "num_groups"):
        if needed in parameters and needed not in numbers and needed not in arrays:
            raise ValueError(f"{name} needs {_flag(needed)}")
    x = arrays["x"]
    axis = parameters["axis"].default if options.axis is None else options.axis
    axes = axes_of(name, axis, x, tuples=name in SEVERAL_AXES)
    if "residual" in arrays:
        check_residual(name, x, arrays["residual"])
    return Call(name, tuple(a - x.ndim for a in axes), numbers, x.shape)


def _flag(name):
    return f"--{name.replace('_', '-')}"


def _check_in_place(path, x, result, count):
    if count > 1:
        raise ValueError("--in-place is for functions of one array: the sum and its norm are two results")
    if result.shape != x.shape:
        raise ValueError(f"--in-place: the result has shape {result.shape}, but {path} holds {x.shape}")
    if result.dtype != x.dtype:
        raise ValueError(f"--in-place: the result has dtype {result.dtype.str}, but {path} holds {x.dtype.str}")


# --------------------------------------------------------------------------------------------------------------- writing
@contextlib.contextmanager
def _appearing(paths, results, fortran_order, written):
    """Files under temporary names, which become `paths` at the end, and are gone after an error. None, for no path."""
    temporaries = [os.path.join(os.path.dirname(path), f".fastnorm-{secrets.token_hex(8)}.npy") for path in paths]
    whole = []  # pairs of names that are about to be one
    try:
        for path, temporary, result in zip(paths, temporaries, results, strict=False):
            _create(path, temporary, result, fortran_order)
        yield temporaries + [None] * (len(results) - len(temporaries))
        for path, temporary in zip(paths, temporaries, strict=True):
            os.chmod(temporary, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~_umask())
        whole += zip(paths, temporaries, strict=True)
        for path, temporary in whole:
            os.replace(temporary, path)
        written += paths
    except BaseException:
        with held():
            written[:] = [path for path, temporary in whole if not os.path.exists(temporary)]
            for temporary in temporaries:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        raise


def _create(path, temporary, result, fortran_order):
    """An array of the right size, which only its owner reads: what it replaces may be private."""
    folder, size = os.path.dirname(path), result.nbytes
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(f"{path} needs {size:,} bytes, but {folder} has {free:,} left")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    array = np.lib.format.open_memmap(temporary, "w+", result.dtype, result.shape, fortran_order)
    _reserve(temporary, array.offset, array.nbytes)


def _reserve(path, begin, size):
    """Take room on the disk, so that a full one shows at once."""
    if size and hasattr(os, "posix_fallocate"):
        with open(path, "rb+") as file:
            os.posix_fallocate(file.fileno(), begin, size)


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
