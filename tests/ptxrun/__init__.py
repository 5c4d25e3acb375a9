"""Interpret the PTX of CUDA kernels with NumPy, without a GPU.  See README.md."""

from .errors import BarrierError, KernelTrap, MemoryFault, PtxError, PtxSyntaxError, RaceError, StepLimit
from .machine import ArrayArg, BufferUse, Stats, launch
from .toolchain import compile_ptx, resources, sass

__all__ = [
    "launch",
    "Stats",
    "BufferUse",
    "ArrayArg",
    "compile_ptx",
    "resources",
    "sass",
    "PtxError",
    "PtxSyntaxError",
    "MemoryFault",
    "RaceError",
    "BarrierError",
    "KernelTrap",
    "StepLimit",
]
