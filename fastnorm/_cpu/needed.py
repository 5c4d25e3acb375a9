"""Which kernels a function may need, for those who compile ahead."""

from .._vocabulary import COMPUTED, STORED

_FORMULAS = {"add_rms_norm": "rms_norm", "add_layer_norm": "layer_norm", "group_norm": "layer_norm"}
FUNCTIONS = ("rms_norm", "unit_norm", "layer_norm", "group_norm", "add_rms_norm", "add_layer_norm")


def kernels_for(function, dtype):
    """The names of all kernels that calls of a function on arrays of a dtype may ask `_compile` for."""
    norm, stored = _FORMULAS.get(function, function), STORED[dtype]
    if function == "group_norm":
        yield "fastnorm._cpu.groups:dense", norm, stored, True
        yield "fastnorm._cpu.groups:dense", norm, stored, False
        yield "fastnorm._cpu.groups:channels_last", norm, stored
        yield "fastnorm._cpu.groups:scattered", norm, stored
        yield from _pieces(norm, stored)
        return
    if function.startswith("add_"):
        for residual in dict.fromkeys((stored, COMPUTED[stored])):  # of 16 bits, x often has a residual of float32
            yield "fastnorm._cpu.small:sum_rows", norm, stored, residual
            yield "fastnorm._cpu.rows:sum_rows", norm, stored, residual
    yield "fastnorm._cpu.small:rows", norm, stored
    yield "fastnorm._cpu.rows:rows", norm, stored
    yield "fastnorm._cpu.columns:columns", norm, stored
    yield from _pieces(norm, stored)


def _pieces(norm, stored):
    if norm == "layer_norm":
        yield "fastnorm._cpu.pieces:guess", stored
    yield "fastnorm._cpu.pieces:measure", norm, stored
    yield "fastnorm._cpu.pieces:join", norm, COMPUTED[stored]
    yield "fastnorm._cpu.pieces:apply", norm, stored
