"""Which kernels a function may need, for those who compile ahead."""

from .._math import NORMS
from .._vocabulary import COMPUTED, STORED

_FORMULAS = {"add_rms_norm": "rms_norm", "add_layer_norm": "layer_norm", "group_norm": "layer_norm"}
_NORMS = (*NORMS, "group_norm", "add_rms_norm", "add_layer_norm")
_SOFTMAX = ("softmax", "log_softmax", "logsumexp")
FUNCTIONS = (*_NORMS, *_SOFTMAX, "rope", "attention")


def kernels_for(function, dtype):
    """The names of all kernels that calls of a function on arrays of a dtype may ask `_compile` for."""
    norm, stored = _FORMULAS.get(function, function), STORED[dtype]
    if function not in _NORMS:
        yield from _others(function, stored)
        return
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


def _others(function, stored):
    """Those of all functions but the norms."""
    if function == "attention":
        yield "fastnorm._cpu.attend:attend", stored, stored  # keys and values of the dtype of the queries
    elif function == "rope":
        yield "fastnorm._cpu.rotate:rotate", stored
    elif function == "logsumexp":
        yield "fastnorm._cpu.softmax_kernels:sums", stored
    else:
        yield "fastnorm._cpu.softmax_kernels:rows", stored
        yield "fastnorm._cpu.softmax_kernels:pieces", stored
        yield "fastnorm._cpu.softmax_columns:columns", stored


def _pieces(norm, stored):
    if NORMS[norm].centred:
        yield "fastnorm._cpu.pieces:guess", stored
    yield "fastnorm._cpu.pieces:measure", norm, stored
    yield "fastnorm._cpu.pieces:join", norm, COMPUTED[stored]
    yield "fastnorm._cpu.pieces:apply", norm, stored
