"""The one home of compiling: kernels are made on first use, under a lock, and kept on disk.

A kernel is named by a maker (``"fastnorm._cpu.rows:rows"``) and its parameters (``"rms_norm", "float32"``). If the cache
folder has it, its machine code is loaded and the maker's module is never imported. Otherwise the maker is called, and
`_numba` compiles what it returns.

Why not numba's own disk cache: it looks at the kernel's file alone, so an edited formula in another file would go unseen; it
cannot keep kernels made by functions, which is how one schedule serves all norms; and it rebuilds the wrapper of a ufunc
in every process (0.26 s, against 0.01 s here).

Cached code is executed, so it is read only from a folder that belongs to this user and that nobody else may write to.
"""

import ctypes
import importlib
import json
import os
import pathlib
import platform
import stat
import sys
import tempfile
import threading
from typing import Any, NamedTuple

import numpy as np

IS_X86 = platform.machine().lower() in {"x86_64", "amd64"}

compiling = threading.RLock()  # held while kernels, or what makes them, come to be; forks wait for it
_kernels: dict[tuple, "Kernel"] = {}


def _hold():
    """Let no fork happen while a thread compiles, here or in numba: the child would have its locks, and not the thread."""
    compiling.acquire()
    numbas = sys.modules.get("numba.core.compiler_lock")
    _held.append(getattr(numbas, "global_compiler_lock", None))
    if _held[-1] is not None:
        _held[-1].acquire()


def _release():
    numbas = _held.pop()
    if numbas is not None:
        numbas.release()
    compiling.release()


_held: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


class Source(NamedTuple):
    """What a maker returns: a kernel before it is compiled."""

    function: Any  # a Python function over one core slice of each operand, which writes only to `writable`
    layout: str  # a gufunc signature whose operands are all inputs, outputs too: NumPy never copies them behind our back
    types: str  # the operands' numba types
    writable: tuple[str, ...]


class Scratch(NamedTuple):
    """In the place of an array of `Kernel.over`: room for so many numbers, new for each run, since threads run side by side."""

    size: int
    dtype: Any


class Kernel:
    """A compiled kernel, in two forms of the same machine code.

    `ufunc` is a NumPy ufunc, with all its checks and broadcasting, for calls that are over soon. Its operands are all inputs,
    so that NumPy never copies the one written to. NumPy holds the GIL for fewer than 500 rows however long they are, so
    `over` and `without_gil` call the ufunc's inner loop themselves.
    """

    def __init__(self, code, address, library):
        # _internal makes np.ufunc objects of addresses; the ufunc keeps `library` alive.
        from numba.np.ufunc import _internal

        layout = code["layout"]
        operands = layout.count("(")
        ufunc = _internal.fromfunc(
            code["name"],
            None,
            [address],
            [[np.dtype(dtype).num for dtype in code["dtypes"]]],
            operands,
            0,
            [None],
            [library],
            _internal.PyUFunc_None,
            layout,
            tuple(code["writable"]),
        )
        self.ufunc = ufunc if IS_X86 else np.errstate(all="ignore")(ufunc)  # on x86 it leaves the flags as they were
        self._loop = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)
        self._cores = [core.split(",") for core in layout[1:-1].split("),(")]
        self._names = names = list(dict.fromkeys(name for core in self._cores for name in core))
        self._sizes = [  # for each name, where to read its size
            next((i, core.index(name)) for i, core in enumerate(self._cores) if name in core) for name in names
        ]
        self._addresses = ctypes.c_void_p * operands
        self._dims = ctypes.c_ssize_t * (1 + len(names))
        self._steps = ctypes.c_ssize_t * (operands + sum(map(len, self._cores)))

    def without_gil(self, *arrays):
        """Run over the rows of prepared arrays: the ufunc's dtypes, aligned, each of its core rank or with one axis of rows."""
        self.over(None, *arrays)(0, self._rows(arrays))

    def _rows(self, arrays):
        """Length of the axis of rows; 1 if no array has one."""
        return max((a.shape[0] for a, core in zip(arrays, self._cores, strict=True) if a.ndim > len(core)), default=1)

    def over(self, name, *arrays):
        """A function of (start, stop) that runs `without_gil` over part of the dimension `name`: None is the axis of rows.

        What does not change from part to part is looked up once, since asking an array for its address takes 1 us.
        """
        outer, core, moves, shapes = [], [], [], []
        rooms = [(i, one) for i, one in enumerate(arrays) if type(one) is Scratch]
        arrays = [np.empty(one.size, one.dtype) if type(one) is Scratch else one for one in arrays]
        for array, names in zip(arrays, self._cores, strict=True):
            extra = array.ndim - len(names)
            shapes.append(array.shape[extra:])
            outer.append(array.strides[0] if extra else 0)
            core += array.strides[extra:]
            moves.append(array.strides[extra + names.index(name)] if name in names else outer[-1] if name is None else 0)
        addresses = [_address(array) for array in arrays]
        dims = [self._rows(arrays), *[shapes[i][axis] for i, axis in self._sizes]]
        place = 0 if name is None else 1 + self._names.index(name)
        steps = self._steps(*outer, *core)

        def run(start, stop):
            size = self._dims(*dims)
            size[place] = stop - start
            here = self._addresses(*[a + start * m for a, m in zip(addresses, moves, strict=True)])
            own = [np.empty(*room) for _, room in rooms]
            for (i, _), array in zip(rooms, own, strict=True):
                here[i] = _address(array)
            self._loop(here, size, steps, None)

        run.arrays = arrays  # addresses are good for as long as these live
        return run


def _address_asked(array):
    return array.__array_interface__["data"][0]


def _address_read(array):
    return _pointer_at(id(array) + _HEAD).value or 0


# NumPy's arrays begin, after what all Python objects begin with, with the address of their data, by its stable C interface.
# Asking for it takes 1.1 us, a tenth of a small call; reading it 0.14.
_pointer_at, _HEAD = ctypes.c_void_p.from_address, object.__basicsize__
_example = np.empty(1)
_address = _address_read if _address_read(_example) == _address_asked(_example) else _address_asked


def kernel(maker, *parameters):
    """The compiled kernel of this name, from memory, from disk or from the compiler, in this order."""
    name = (maker, *parameters)
    found = _kernels.get(name)
    if found is None:
        with compiling:
            found = _kernels.get(name)
            if found is None:
                found = _kernels[name] = _load(name) or _compile(name)
    return found


# -------------------------------------------------------------------------------------------- compiling
def _compile(name):
    """Ask the maker for the source, compile it, and keep the result on disk if there is a place for it."""
    from . import _numba

    maker, *parameters = name
    module, function = maker.split(":")
    with _numba.undisturbed():
        source = getattr(importlib.import_module(module), function)(*parameters)
    code, library = _numba.compiled("_".join((function, *map(str, parameters))), source)
    folder = cache_folder()
    if folder.usable and _signature() == _IMPORTED:  # else it may have been compiled of a source that was edited meanwhile
        write(folder.path / file_name(name), code, _numba.binaries(library))
    return Kernel(code, library.get_pointer_to_function(code["entry"]), library)


def processor_features():
    """What LLVM is told that this processor has, as ``+this,-that``."""
    from . import _numba

    return _numba.codegen().magic_tuple()[2]


# ---------------------------------------------------------------------------------------------- the cache on disk
class Folder(NamedTuple):
    """Where machine code is kept, or why it is not."""

    path: pathlib.Path | None
    usable: bool
    reason: str


def _load(name):
    folder = cache_folder()
    if not folder.usable:
        return None
    try:
        from . import _numba

        code, binaries = read(folder.path / file_name(name))
        library = _numba.loaded(code, binaries)
        return Kernel(code, library.get_pointer_to_function(code["entry"]), library)
    except Exception:  # not there, not whole, or not to be understood: compile
        return None


def file_name(name):
    return "-".join(map(str, name)).replace(":", "-") + ".kernel"


def write(path, code, binaries):
    """Write to a temporary name, then rename: a reader sees all of it or none, whoever is killed meanwhile."""
    header = dict(code, sizes=[len(b) for b in binaries])
    content = b"\n".join([json.dumps(header).encode(), b"".join(binaries)])
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_sha256(content).hexdigest().encode() + b"\n" + content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        pass  # a full disk costs the next process a compilation, and this one nothing


def read(path):
    """Header and machine code of a cache file; ValueError if it is not exactly what was written."""
    digest, _, content = path.read_bytes().partition(b"\n")
    if _sha256(content).hexdigest().encode() != digest:
        raise ValueError(f"{path} is damaged")
    header, _, payload = content.partition(b"\n")
    code = json.loads(header)
    size = code["sizes"][0]
    return code, (payload[:size], payload[size:])


def cache_folder(target=None):
    """The folder of this source, processor and set of versions; every other combination has its own.

    `target` returns what decides in the processor's place: a backend that compiles for something else brings its own.
    """
    folder = _folders.get(target)
    if folder is None:
        folder = _find_folder(target or _processor)
        if folder.usable:  # what was in the way may be gone next time
            _folders[target] = folder
    return folder


_folders: dict[Any, Folder] = {}


def _find_folder(target):
    try:
        root = _root()
        path = root / _key(*target())
        root.parent.mkdir(parents=True, exist_ok=True)
        for owned in (root, path):
            owned.mkdir(mode=0o700, exist_ok=True)
            _refuse_strangers(owned)
        if not os.access(path, os.W_OK):
            return Folder(path, False, "it cannot be written to")
    except FileExistsError as error:
        return Folder(None, False, f"{error.filename} is not a folder")
    except (OSError, RuntimeError) as error:
        return Folder(None, False, str(error))
    return Folder(path, True, "")


def _root():
    """Absolute, since what is safe in one working directory may not be in another."""
    chosen = os.environ.get("FASTNORM_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        home = pathlib.Path.home() / "Library" / "Caches"
    else:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home).absolute() / "fastnorm"


def _sources():
    """The files that this package consists of: its texts, or what was compiled of them, or the archive that it is in."""
    package = pathlib.Path(__file__).parent
    for suffix in ("py", "pyc"):
        files = sorted(package.rglob(f"*.{suffix}"))
        if files:
            return files
    return [parent for parent in package.parents if parent.is_file()]


def _sha256(content=b""):
    import hashlib  # here, as it takes 3 ms of the 50 of importing this library

    return hashlib.sha256(content)


def _signature():
    """What changes when somebody edits the source."""
    return [(file, (status := file.stat()).st_mtime_ns, status.st_size) for file in _sources()]


_IMPORTED = _signature()


def _key(*versions):
    """Digest of all that decides what the compiler writes."""
    from . import __version__

    digest, signature = _sha256(), _signature()
    if signature != _IMPORTED or not signature:
        raise RuntimeError("the source of this process cannot be read, or was edited since")
    for file, *_ in signature:
        digest.update(file.read_bytes())
    digest.update(repr((__version__, *versions)).encode())
    return digest.hexdigest()[:24]


def _processor():
    """What decides for kernels of this processor."""
    import llvmlite
    import numba

    from . import _numba

    machine = _numba.codegen().magic_tuple()  # triple, processor, features
    return (sys.version, numba.__version__, llvmlite.__version__, np.__version__, platform.machine(), *machine)


def _refuse_strangers(path):
    """What is read from here is executed: the folder must be ours, and writable by nobody else."""
    if not hasattr(os, "geteuid"):
        return  # Windows: a profile's folders are private by default
    status = os.stat(path)
    if {status.st_uid, os.lstat(path).st_uid} != {os.geteuid()}:
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written to by others")
