"""Which kernels a function may need, for those who compile ahead."""

from .._math import NORMS
from .._vocabulary import COMPUTED, STORED
from .attention_layout import MATRIX_CAPABILITY, MATRIX_SIZES

FUNCTIONS = (*NORMS, "group_norm", "add_rms_norm", "add_layer_norm", "softmax", "log_softmax", "logsumexp", "rope", "attention")
_EACH_WAY = [(aligned, whole) for aligned in (True, False) for whole in (True, False)]


def kernels_for(function, dtype, capability):
    """The names of the kernels that calls of a function on arrays of a dtype may ask `launch` for, on such a device.

    All but those of rare mixtures: keys and values of 32 bits or more that differ from queries, masks of float64.
    """
    stored = STORED[dtype]
    if function == "rope":
        for aligned in (True, False):
            yield from (("fastnorm._cuda.rotate:rotate", stored, aligned, interleaved) for interleaved in (False, True))
    elif function == "attention":
        computed = COMPUTED[stored]
        for norm in ("rms_norm", "unit_norm"):  # of queries and keys
            yield from kernels_for(norm, computed, capability)
        for cached in ("int16", "uint16") if computed == "float32" else ():  # beside others a cache may be of 16 bits
            if cached != stored:
                for columns in (2, 4, 8):
                    yield "fastnorm._cuda.attend:attend", stored, cached, False, columns, False
        yield "fastnorm._cuda.attend:join", stored
        for columns in (2, 4, 8):
            yield from (("fastnorm._cuda.attend:attend", stored, stored, norm, columns, False) for norm in (False, True))
        if computed != stored and int(capability) >= MATRIX_CAPABILITY:
            for size in MATRIX_SIZES:
                yield from (
                    ("fastnorm._cuda.attend_matrix:attend_tiles", stored, size, aligned, False) for aligned in (True, False)
                )
    elif function in ("softmax", "log_softmax", "logsumexp"):
        for way in _EACH_WAY:
            yield "fastnorm._cuda.softmax_kernels:rows", function, stored, *way
        yield from (("fastnorm._cuda.softmax_kernels:short_rows", function, stored, a, True) for a in (True, False))
    else:
        makers = {"group_norm": ("groups", "layer_norm"), "add_rms_norm": ("sum_rows", "rms_norm")}
        makers["add_layer_norm"] = "sum_rows", "layer_norm"
        maker, norm = makers.get(function, ("rows", function))
        if maker == "sum_rows":  # of two dtypes: first the sum, then its norm
            yield from kernels_for(norm, dtype, capability)
        for way in _EACH_WAY:
            yield f"fastnorm._cuda.rows:{maker}", norm, stored, *way
        if maker == "rows":
            yield "fastnorm._cuda.columns:columns", norm, stored
            for what in ("sum_pieces", "join_pieces", "apply_pieces"):
                yield from ((f"fastnorm._cuda.pieces:{what}", norm, stored, aligned) for aligned in (True, False))
            for aligned in (True, False):
                yield "fastnorm._cuda.rows:short_rows", norm, stored, aligned, True
