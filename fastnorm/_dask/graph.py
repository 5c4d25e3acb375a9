"""Lazy arrays of tasks: a layer of a graph, and the tree in which parts are joined."""

import itertools
import operator

import dask
import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph


def lazy(name, layer, dependencies, chunks, meta):
    """The array whose chunks are the tasks of a layer."""
    graph = HighLevelGraph.from_collections(name, layer, dependencies=dependencies)
    return da.Array(graph, name, chunks, dtype=meta.dtype, meta=meta)


def meta_of(x, dtype, ndim=None):
    """An empty array of the library of the chunks of `x`."""
    return np.empty_like(x._meta, shape=(0,) * (x.ndim if ndim is None else ndim), dtype=dtype)


def per_chunk(function, x, *others, token, dtype, **options):
    """`function` of each chunk of `x` and of those of `others`: pairs of an array, or None, and the axes of x that it has."""
    axes = tuple(range(x.ndim))
    pairs = [part for array, own in others for part in (array, None if array is None else own)]
    meta = meta_of(x, dtype)
    return da.blockwise(function, axes, x, axes, *pairs, token=token, dtype=dtype, meta=meta, align_arrays=False, **options)


def cut_as(array, chunks):
    """An array in these chunks. Dask's own `rechunk` leaves one without elements in others."""
    if array.chunks == chunks:
        return array
    return array.rechunk(chunks) if array.size else da.empty_like(array, chunks=chunks)


def member(pairs, i, token, meta):
    """Of an array whose chunks are tuples, that of the i-th members."""
    axes = tuple(range(pairs.ndim))
    options = {"dtype": meta.dtype, "meta": meta, "align_arrays": False}
    return da.blockwise(operator.getitem, axes, pairs, axes, i, None, token=token, **options)


def joined(parts, axes, join, token):
    """One chunk where `parts` have several along some axes: `join` of a list of them, and of such results, last of all.

    ``join(list, last)`` is called with True for the root of each tree.
    """
    name = f"{token}-{dask.base.tokenize(parts.name, axes, join, tree_width())}"
    layer = {}
    for index in itertools.product(*(range(1 if a in axes else n) for a, n in enumerate(parts.numblocks))):
        places = itertools.product(*(range(n) if a in axes else [index[a]] for a, n in enumerate(parts.numblocks)))
        plant(layer, name, index, [(parts.name, *place) for place in places], join)
    chunks = tuple((1,) if a in axes else sizes for a, sizes in enumerate(parts.chunks))
    return lazy(name, layer, [parts], chunks, parts._meta)


def tree_width():
    """How many parts a task joins: as many as in Dask's own reductions. It belongs in names, since it changes bits."""
    return max(2, dask.config.get("split_every", None) or 16)


def plant(layer, name, index, keys, join):
    """Put the tree that joins some tasks into a layer."""
    width, level = tree_width(), 0
    while len(keys) > width:
        groups = [keys[i : i + width] for i in range(0, len(keys), width)]
        keys = [(f"{name}-join", level, i, *index) for i in range(len(groups))]
        layer.update((key, (join, group, False)) for key, group in zip(keys, groups, strict=True))
        level += 1
    layer[name, *index] = (join, keys, True)


def in_pairs(join, parts):
    """All parts joined, neighbours first, so that no sum is a long chain; None if there is none."""
    parts = [part for part in parts if part is not None]
    while len(parts) > 1:
        parts = [join(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0] if parts else None


def in_places(numblocks):
    """Where the chunks are of an array that has so many along its axes."""
    return itertools.product(*map(range, numblocks))


def two_of(both, function, chunks, dtype, kind, token):
    """Attention's two results, of an array whose chunks are pairs of them: of `chunks`, and of these without features."""
    outs, lses = f"{function}-{token}", f"{function}-lse-{token}"
    out_layer = {(outs, *place, 0): (operator.getitem, (both.name, *place), 0) for place in in_places(both.numblocks)}
    lse_layer = {(lses, *place): (operator.getitem, (both.name, *place), 1) for place in in_places(both.numblocks)}
    out = lazy(outs, out_layer, [both], chunks, meta_of(both, dtype, both.ndim + 1))
    return out, lazy(lses, lse_layer, [both], chunks[:-1], meta_of(both, kind))
