"""Attention of chunks: each chunk of queries meets each chunk of keys that it may see, and what comes of it is merged.

A pair of chunks is a call of the public function, with positions and lengths as the pair sees them. A pair of which causality,
window or lengths leave nothing is no task.
"""

import functools

import dask
import dask.array as da
import numpy as np

import fastnorm

from .._attention_arguments import asked
from .._checks import as_array, computed, result_dtype
from .._dispatch import describe, is_lazy
from .._vocabulary import STORED
from .arguments import checked, lazy_too, stand_in
from .graph import in_places, lazy, meta_of, plant, tree_width, two_of

NAME = "attention"


def attention(
    q, k, v, *, mask, is_causal, q_start, window, kv_lengths, scale, softcap, alibi_slopes, sinks, qk_norm, eps, return_lse, out
):
    """As the public function, of Dask arrays."""
    lazy_too(NAME, "k", k, "q")
    lazy_too(NAME, "v", v, "q")
    of_heads = {"alibi_slopes": alibi_slopes, "sinks": sinks}
    for name, value in of_heads.items():
        if is_lazy(value):
            raise TypeError(f"{NAME}: {name} must be a NumPy or CuPy array beside Dask arrays, got {describe(value)}")
    arrays = checked(NAME, q, {"k": k, "v": v, "mask": mask, **of_heads}, {"out": out}, "q")
    for name, value in (("k", k), ("v", v)):
        as_array(NAME, name, value._meta, arrays, tuple(STORED))
    dtype = result_dtype(q.dtype)
    alike = [arrays.broadcast_to(arrays.empty((), result_dtype(a.dtype)), a.shape) for a in (q, k, v)]
    given = is_causal, q_start, window, kv_lengths, scale, softcap, alibi_slopes, sinks, qk_norm, eps, return_lse
    *_, options, _ = asked(NAME, arrays, *alike, stand_in(mask, arrays), *given)

    own = {"is_causal": bool(is_causal), "window": window, "scale": scale, "softcap": softcap, "qk_norm": qk_norm, "eps": eps}
    heads = q.chunks[-3:-2]
    sizes, inputs = _aligned(q, k, v, mask, options, arrays)
    names = [a if a is None else a.name for a in inputs]
    token = dask.base.tokenize(names, own, options.starts, options.lengths, tree_width())
    name, part = f"{NAME}-both-{token}", f"{NAME}-part-{token}"
    layer = _layer(inputs, sizes, options, own, dtype, name, part)
    chunks = (*sizes, *inputs[0].chunks[-3:-1])
    both = lazy(name, layer, [a for a in inputs if a is not None], chunks, meta_of(q, dtype, len(chunks)))
    out, lse = two_of(both, NAME, (*chunks, v.shape[-1:]), dtype, computed(dtype), token)
    if heads:
        out, lse = out.rechunk({out.ndim - 3: heads[0]}), lse.rechunk({lse.ndim - 2: heads[0]})
    return (out, lse) if return_lse else out


# --------------------------------------------------------------------------------------------------- chunks that fit
def _aligned(q, k, v, mask, options, arrays):
    """All with chunks that fit: a chunk of queries needs one of the heads of keys, whole features, its part of the rest."""
    q, k, v = (a.rechunk({a.ndim - 1: -1}) for a in (q, k, v))
    batch, one_head = options.lengths.ndim, q.ndim == 2
    labels = [[*range(batch - max(a.ndim - 3, 0), batch), *rest] for a, rest in ((q, "hqd"), (k, "gkd"), (v, "gkf"))]
    if one_head:
        labels = [[one for one in own if one not in ("h", "g")] for own in labels]
    sizes, (q, k, v) = da.core.unify_chunks(q, labels[0], k, labels[1], v, labels[2], warn=False)
    if not one_head:
        own, others = _fitting_heads(q.chunks[-3], k.chunks[-3])
        q = q.rechunk({q.ndim - 3: own})
        k, v = (a.rechunk({a.ndim - 3: others}) for a in (k, v))
    sizes = tuple(sizes[i] for i in range(batch))
    full = (*sizes, *q.chunks[-3:-1], k.chunks[-2])
    n_heads = ((1,),) if one_head else q.chunks[-3:-2]
    slopes, sinks = (None if a is None else da.from_array(a, n_heads, asarray=False) for a in (options.slopes, options.sinks))
    return sizes, (q, k, v, _cut_mask(mask, full, arrays), slopes, sinks)


def _fitting_heads(own, others):
    """Chunks of the heads of q and k, such that one of q reads one of k, in groups that are whole or lie in one head."""
    n, m = sum(own), sum(others)
    group = max(1, n // max(m, 1))
    edges, other_edges = {0, *np.cumsum(own).tolist()}, {0, *np.cumsum(others).tolist()}
    other_edges |= {place // group for place in edges} | {-(-place // group) for place in edges}
    edges |= {place * group for place in other_edges}
    return tuple(np.diff(sorted(edges)).tolist()) or own, tuple(np.diff(sorted(other_edges)).tolist()) or others


def _cut_mask(mask, full, arrays):
    """A mask as a Dask array that is cut as scores are, where it is not one number for all."""
    if mask is None:
        return None
    shape = np.shape(mask)
    own = full[len(full) - len(shape) :]
    chunks = tuple((n,) if n == 1 else sizes for n, sizes in zip(shape, own, strict=True))
    return mask.rechunk(chunks) if is_lazy(mask) else da.from_array(arrays.asarray(mask), chunks, asarray=False)


# ------------------------------------------------------------------------------------------------------- the graph
def _layer(arrays, sizes, options, own, dtype, name, part):
    """The tasks whose results are pairs: a tree for each chunk of queries, of what comes of it and a chunk of keys."""
    q, k, v, mask, slopes, sinks = arrays
    n_heads = 0 if q.ndim == 2 else len(q.chunks[-3])
    edges = [np.cumsum([0, *chunks]) for chunks in sizes]
    query_edges, key_edges = (np.cumsum([0, *a.chunks[-2]]) for a in (q, k))
    reads = _heads_read(q, k)
    layer, pair = {}, functools.partial(_pair, **own)
    joining = functools.partial(_join, stored=dtype)
    for at in in_places([len(chunks) for chunks in sizes]):
        here = tuple(slice(edge[i], edge[i + 1]) for edge, i in zip(edges, at, strict=True))
        starts, lengths = options.starts[here], options.lengths[here]
        for i, n_queries in enumerate(q.chunks[-2]):
            views = [
                (j, view)
                for j, n_keys in enumerate(k.chunks[-2])
                if (view := _view(starts + query_edges[i], lengths, n_queries, key_edges[j], n_keys, options)) is not None
            ]
            wide = np.float32 if len(views) > 1 and dtype.itemsize == 2 else None  # parts are rounded once, when joined
            for h in range(max(n_heads, 1)):
                heads, key_heads = ([h], [reads[h]]) if n_heads else ([], [])
                index = (*at, *heads, i)
                own_sinks = None if sinks is None else (sinks.name, h)
                parts = []
                for j, view in views:
                    places = (*at, *heads, i, 0), (*at, *key_heads, j, 0), (*at, *heads, i, j)
                    blocks = [_block(a, places[which]) for a, which in ((q, 0), (k, 1), (v, 1), (mask, 2))]
                    heads_own = None if slopes is None else (slopes.name, h), None if parts else own_sinks
                    parts.append((part, *index, j))
                    layer[parts[-1]] = (pair, *blocks, *heads_own, *view, wide)
                if not parts:
                    shape = tuple(int(edge[i + 1] - edge[i]) for edge, i in zip(edges, at, strict=True))
                    layer[name, *index] = (_nothing, _block(q, (*at, *heads, i, 0)), own_sinks, shape, v.shape[-1])
                elif len(parts) == 1:
                    layer[name, *index] = layer.pop(parts[0])
                else:
                    plant(layer, name, index, parts, joining)
    return layer


def _heads_read(q, k):
    """For each chunk of heads of q that of k."""
    if q.ndim == 2:
        return [0]
    group = max(1, q.shape[-3] // max(k.shape[-3], 1))
    first, edges = np.cumsum([0, *q.chunks[-3]])[:-1], np.cumsum([0, *k.chunks[-3]])
    return (np.searchsorted(edges[:-1], first // group, "right") - 1).tolist()


def _view(starts, lengths, n_queries, first_key, n_keys, options):
    """Positions and lengths as a chunk of keys sees them; None if no query of the chunk may see any of its keys."""
    starts, lengths = starts - first_key, np.clip(lengths - first_key, 0, n_keys)
    first = 0 if options.left is None else np.maximum(starts - options.left, 0)
    stop = lengths if options.right is None else np.minimum(lengths, starts + (n_queries + options.right))
    if not (n_queries and np.any(first < stop)):
        return None
    return _one_for_all(starts), _one_for_all(lengths)


def _one_for_all(numbers):
    """An integer, where an array has but one."""
    return int(numbers.flat[0]) if (numbers == numbers.flat[0]).all() else numbers


def _block(array, place):
    """The key of the chunk of an array at a place of the result: axes that it has not, or only once, are left out."""
    if array is None:
        return None
    own = place[len(place) - array.ndim :]
    return (array.name, *(i if n > 1 else 0 for i, n in zip(own, array.numblocks, strict=True)))


# --------------------------------------------------------------------------------------------------------- in tasks
@np.errstate(all="ignore")
def _pair(q, k, v, mask, slopes, sinks, q_start, kv_lengths, wide, **own):
    """A chunk of queries, a chunk of keys: the result and its logarithms."""
    q = q if wide is None else q.astype(wide)
    arrays = {"mask": mask, "alibi_slopes": slopes, "sinks": sinks}
    return fastnorm.attention(q, k, v, q_start=q_start, kv_lengths=kv_lengths, return_lse=True, **arrays, **own)


def _nothing(q, sinks, batch, value_size):
    """What queries get that see no key."""
    q = np.broadcast_to(q, (*batch, *q.shape[-3:])) if q.ndim > 2 else q
    k, v = (np.empty_like(q, shape=(*q.shape[:-2], 0, n)) for n in (q.shape[-1], value_size))
    return fastnorm.attention(q, k, v, sinks=sinks, return_lse=True)


@np.errstate(all="ignore")
def _join(parts, last, stored):
    """Some results over disjoint keys, joined; of all of them, in the dtype of the result."""
    out, lse = fastnorm.merge_attention(*zip(*parts, strict=True))
    return out.astype(stored, copy=False) if last else out, lse
