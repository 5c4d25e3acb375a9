"""RoPE of chunks. Features are never cut: what a head has of them is little, and a pair may lie in two chunks."""

import functools

import dask.array as da
import numpy as np

import fastnorm

from .._checks import as_array, computed, result_dtype
from .._dispatch import is_lazy
from .._rotary_arguments import check_tables
from .._vocabulary import STORED
from .arguments import checked, stand_in
from .graph import member, meta_of, per_chunk


def rope_tables(positions, dim, *, base, scaling, dtype):
    """As the public function, of a Dask array. Tables of many positions are larger than a graph should be."""
    name = "rope_tables"
    checked(name, positions, {}, {}, "positions")
    options = {"dim": dim, "base": base, "scaling": scaling, "dtype": dtype}
    meta, _ = fastnorm.rope_tables(positions._meta, **options)  # which checks them all
    options["scaling"] = scaling and dict(scaling)  # the caller may change it before anything is computed
    axes, both = tuple(range(positions.ndim)), functools.partial(fastnorm.rope_tables, **options)
    new = {positions.ndim: meta.shape[-1]}
    meta = meta_of(positions, meta.dtype, positions.ndim + 1)
    pairs = da.blockwise(both, (*axes, *new), positions, axes, new_axes=new, token=f"{name}-both", dtype=meta.dtype, meta=meta)
    return member(pairs, 0, name, meta), member(pairs, 1, name, meta)


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
