"""Optional wrappers around NVIDIA's compilers: Python -> PTX, PTX -> resources and SASS.

Only pip packages are needed (numba-cuda with CUDA wheels); no driver, no GPU.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass


def compile_ptx(pyfunc, signature, cc=(9, 0), fastmath=False, **options):
    """Compile a kernel written for numba-cuda; returns (ptx, entry name)."""
    import numpy as np

    if not hasattr(np, "row_stack"):  # numba-cuda 0.30 still names it, NumPy 2.5 dropped it
        np.row_stack = np.vstack
    from numba import cuda
    from numba.cuda import dispatcher

    class Device:
        compute_capability = tuple(cc)

    # device functions ask for the current device even though cc is given
    saved = getattr(dispatcher, "get_current_device", None)
    dispatcher.get_current_device = lambda: Device
    try:
        pyfunc = getattr(pyfunc, "py_func", pyfunc)
        ptx, _ = cuda.compile(pyfunc, signature, device=False, abi="numba", cc=tuple(cc), fastmath=fastmath, **options)
    finally:
        dispatcher.get_current_device = saved
    if isinstance(ptx, bytes):
        ptx = ptx.decode()
    return ptx, re.search(r"\.entry\s+([\w$]+)", ptx).group(1)


def _tool(name):
    found = os.environ.get(f"PTXRUN_{name.upper()}")
    if found:
        return found
    for root in sys.path:
        for path in glob.glob(os.path.join(root, "nvidia", "*", "bin", name)):
            if os.access(path, os.X_OK):
                return path
    return shutil.which(name)


@dataclass
class Resources:
    registers: int
    spill_stores: int  # bytes
    spill_loads: int
    stack: int
    shared: int  # static, bytes
    log: str


def _assemble_ptxas(ptxas, ptx, arch, folder):
    src, out = os.path.join(folder, "k.ptx"), os.path.join(folder, "k.cubin")
    with open(src, "w") as f:
        f.write(ptx)
    r = subprocess.run([ptxas, f"-arch={arch}", "-v", src, "-o", out], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"ptxas failed:\n{r.stdout}{r.stderr}")
    with open(out, "rb") as f:
        return f.read(), r.stderr + r.stdout


def _assemble_nvjitlink(ptx, arch):
    from cuda.bindings import nvjitlink as nj

    h = nj.create(2, [f"-arch={arch}", "-verbose"])
    data = ptx.encode() + b"\0"
    try:
        nj.add_data(h, nj.InputType.PTX, data, len(data), "k")
        nj.complete(h)
    except nj.nvJitLinkError as e:
        raise RuntimeError(f"nvJitLink failed: {e}") from e
    cubin = bytearray(nj.get_linked_cubin_size(h))
    nj.get_linked_cubin(h, cubin)
    log = bytearray(nj.get_info_log_size(h))
    nj.get_info_log(h, log)
    nj.destroy(h)
    return bytes(cubin), log.decode(errors="replace").rstrip("\0")


def assemble(ptx, arch="sm_90"):
    """PTX -> (cubin, log), by ptxas or else nvJitLink."""
    ptxas = _tool("ptxas")
    if ptxas:
        with tempfile.TemporaryDirectory() as folder:
            return _assemble_ptxas(ptxas, ptx, arch, folder)
    try:
        return _assemble_nvjitlink(ptx, arch)
    except ImportError as e:
        raise RuntimeError(
            "no ptxas (pip: nvidia-cuda-nvcc) and no nvJitLink (pip: nvidia-nvjitlink, cuda-bindings) "
            "found; set PTXRUN_PTXAS to use another ptxas"
        ) from e


def resources(ptx, arch="sm_90"):
    """Registers, spills, stack and static shared memory of the first kernel in the module."""
    _, log = assemble(ptx, arch)
    number = lambda pattern: int(m.group(1)) if (m := re.search(pattern, log)) else 0
    return Resources(
        number(r"[Uu]sed (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes stack"),
        number(r"(\d+) bytes smem"),
        log,
    )


def sass(ptx, arch="sm_90"):
    """The machine code as text."""
    nvdisasm = _tool("nvdisasm")
    if not nvdisasm:
        raise RuntimeError("no nvdisasm (pip: nvidia-cuda-nvdisasm) found; set PTXRUN_NVDISASM to use another one")
    cubin, _ = assemble(ptx, arch)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "k.cubin")
        with open(path, "wb") as f:
            f.write(cubin)
        r = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"nvdisasm failed:\n{r.stderr}")
    return r.stdout
