"""RoPE of chunks. Features are never cut: what a head has of them is little, and a pair may lie in two chunks."""

import dask.array as da
import numpy as np

import fastnorm

from .._checks import as_array, computed, result_dtype
from .._dispatch import is_lazy
from .._rotary_arguments import check_tables
from .._vocabulary import STORED
from .arguments import checked, stand_in
from .graph import per_chunk


def rope(x, cos, sin, *, interleaved, out):
    """As the public function, of a Dask array."""
    name = "rope"
    arrays = checked(name, x, {"cos": cos, "sin": sin}, {"out": out})
    tables = {"cos": cos, "sin": sin}
    stand_ins = [as_array(name, n, stand_in(table, arrays), arrays, tuple(STORED)) for n, table in tables.items()]
    check_tables(x, *stand_ins, interleaved)
    x = x.rechunk({x.ndim - 1: -1})
    others = []
    for table, alike in zip(tables.values(), stand_ins, strict=True):
        axes = tuple(range(x.ndim - alike.ndim, x.ndim))
        chunks = tuple(x.chunks[a] if alike.shape[i] == x.shape[a] else (1,) for i, a in enumerate(axes[:-1]))
        chunks += ((alike.shape[-1],),)
        if is_lazy(table):
            table = table.rechunk(chunks)
        else:
            with np.errstate(all="ignore"):
                table = da.from_array(alike.astype(computed(result_dtype(x.dtype))), chunks, asarray=False)
        others.append((table, axes))
    return per_chunk(fastnorm.rope, x, *others, token=name, dtype=result_dtype(x.dtype), interleaved=bool(interleaved))
