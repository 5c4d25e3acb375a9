"""What this installation consists of and what it found on this machine: for bug reports, and beside measurements.

Modules of the standard library that take long to import, 25 ms of 65, are imported by those who need them.
"""

import importlib.util
import pathlib
import platform
import sys

from ._cpu.threads import get_num_threads

# What decides how fast kernels can be; a processor has some eighty more.
_TELLING = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "avx512fp16", "amx-bf16", "neon", "fp16", "bf16", "sve")


def show_config(mode="stdout"):
    """Show versions, processor, threads, cache folder and GPU, as this library sees them.

    Parameters
    ----------
    mode : {"stdout", "dicts"}
        "stdout" prints; "dicts" prints nothing and returns what would have been printed.

    Returns
    -------
    dict or None
        With ``mode="dicts"``, a dict of dicts: "versions"; "processor" (name, LLVM's name of it, the features that matter for
        speed); "threads"; "cache" (the folder where compiled kernels are kept, whether it is usable, and if not, the
        reason); "gpu" (names of the devices that CuPy finds, or the reason why there are none). None otherwise.

    Raises
    ------
    ValueError
        If `mode` is something else.

    Examples
    --------
    >>> import fastnorm
    >>> sorted(fastnorm.show_config(mode="dicts"))
    ['cache', 'gpu', 'processor', 'threads', 'versions']
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"show_config: mode must be 'stdout' or 'dicts', got {mode!r}")
    config = {
        "versions": _versions(),
        "processor": _processor(),
        "threads": {"number": get_num_threads()},
        "cache": _cache(),
        "gpu": _gpu(),
    }
    if mode == "dicts":
        return config
    print("\n".join(_lines(config)))
    return None


def _lines(config):
    for title, entries in config.items():
        yield f"{title}:"
        for name, value in entries.items():
            if value not in (None, "", []):
                yield f"  {name}: {', '.join(value) if isinstance(value, list) else value}"


def _versions():
    import importlib.metadata

    from . import __version__

    found = {"fastnorm": __version__, "python": platform.python_version()}
    for name in ("numpy", "numba", "llvmlite"):
        found[name] = importlib.metadata.version(name)
    return found


def _processor():
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return {
        "name": processor_name(),
        "llvm": binding.get_host_cpu_name(),
        "features": [name for name in _TELLING if features.get(name)],
        "machine": platform.machine(),
    }


def processor_name():
    """What its maker calls the processor."""
    import subprocess

    try:
        if sys.platform == "linux":
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or "unknown"


def _cache():
    from ._compile import cache_folder

    folder = cache_folder()
    return {"folder": None if folder.path is None else str(folder.path), "usable": folder.usable, "reason": folder.reason}


def _gpu():
    """CuPy's devices. CuPy is imported here if it is installed, which is why this file is asked last of all."""
    if importlib.util.find_spec("cupy") is None:
        return {"devices": [], "reason": "CuPy is not installed"}
    try:
        import cupy

        runtime = cupy.cuda.runtime
        names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    except Exception as error:  # a broken CuPy, or one without a driver, must not keep anybody from reporting it
        return {"devices": [], "reason": f"{type(error).__name__}: {error}"}
    return {"cupy": cupy.__version__, "devices": names, "reason": "" if names else "CuPy finds no device"}
