"""Group norm of chunks. Where channels or space are cut, groups are measured in bands, joined, and applied.

A band is what has one set of chunks: the whole groups in a chunk of channels, or one group that lies in several.
"""

import functools
import itertools
import math

import dask
import numpy as np

import fastnorm

from .._arguments import as_grouped
from .._checks import NO_OFFSET, axes_of, computed, eps_of, groups_of, named, result_dtype
from .arguments import checked, is_cut, lazy_parameters
from .graph import lazy, meta_of, per_chunk, plant, tree_width
from .norms import applied, join, statistics


def group_norm(x, num_groups, weight=None, bias=None, *, eps, axis, out):
    """As the public function, of a Dask array."""
    function, parameters = "group_norm", (weight, bias)
    arrays = checked(function, x, named(parameters), {"out": out})
    (axis,) = axes_of(function, axis, x, tuples=False)
    dtype, size = result_dtype(x.dtype), x.shape[axis] // groups_of(function, num_groups, x.shape[axis])
    eps = eps_of(function, eps, computed(dtype))
    given = lazy_parameters(function, parameters, axis, (axis,), x, computed(dtype), NO_OFFSET, arrays)
    space = [a for a in range(1, x.ndim) if a != axis]
    if is_cut(x, space) or any(n % max(size, 1) for n in x.chunks[axis]):
        return _in_three_steps(x, size, given, eps, axis, dtype)
    others = [(p, (axis,)) for p in given]
    return per_chunk(_whole, x, *others, token=function, dtype=dtype, size=size, eps=eps, channels=axis)


def _whole(x, weight, bias, size, eps, channels):
    """The norm of a chunk of whole groups of `size` channels."""
    n_groups = max(1, x.shape[channels] // max(size, 1))
    return fastnorm.group_norm(x, n_groups, weight, bias, eps=eps, axis=channels)


def pieces_of(chunks, size):
    """For each chunk of channels its bands: the first group, how many there are, and from where to where in the chunk."""
    found, offset = [], 0
    for n in chunks:
        own, start = [], 0
        while start < n:
            group, within = divmod(offset + start, size)
            whole = 0 if within else (n - start) // size
            stop = start + whole * size if whole else min(n, start + size - within)
            own.append((group, max(whole, 1), start, stop))
            start = stop
        found.append(own)
        offset += n
    return found


def _in_three_steps(x, size, given, eps, axis, dtype):
    """The statistics of each band in each chunk, joined over chunks of channels and of space, and applied."""
    token = dask.base.tokenize(x.name, size, [None if p is None else p.name for p in given], eps, axis, tree_width())
    name, measured, known = (f"group_norm{part}-{token}" for part in ("", "-statistics", "-factors"))
    pieces = pieces_of(x.chunks[axis], size)
    joining = functools.partial(join, norm="layer_norm", eps=eps)
    applying = functools.partial(_apply, axis=axis, stored=dtype)
    layer, bands = {}, {}
    for index in itertools.product(*map(range, x.numblocks)):
        batch = index[0] if axis else 0
        for group, n_groups, start, stop in pieces[index[axis]]:
            key = (measured, group, *index)
            layer[key] = (_measure, (x.name, *index), n_groups, start, stop, axis, eps)
            bands.setdefault((batch, group), []).append(key)
        factors = [(known, batch, group) for group, *_ in pieces[index[axis]]]
        parameters = [None if p is None else (p.name, index[axis]) for p in given]
        layer[name, *index] = (applying, (x.name, *index), factors, pieces[index[axis]], *parameters)
    for index, keys in bands.items():
        plant(layer, known, index, keys, joining)
    return lazy(name, layer, [x, *(p for p in given if p is not None)], x.chunks, meta_of(x, dtype))


# --------------------------------------------------------------------------------------------------------- in tasks
def _band(x, n_groups, start, stop, axis):
    """Some channels of a chunk as (batch, groups, before, channels, after)."""
    return as_grouped(x[(slice(None),) * axis + (slice(start, stop),)], axis, n_groups)


def _rows(grouped):
    """A matrix with a row for each group of each element of the batch."""
    return grouped.reshape(math.prod(grouped.shape[:2]), math.prod(grouped.shape[2:]))


@np.errstate(all="ignore")
def _measure(x, n_groups, start, stop, axis, eps):
    """The statistics of a band in a chunk."""
    return statistics(_rows(_band(x, n_groups, start, stop, axis)), "layer_norm", eps)


@np.errstate(all="ignore")
def _apply(x, factors, pieces, weight, bias, axis, stored):
    """The result of a chunk, band after band."""
    y = np.empty_like(x, dtype=stored, order="C")
    for known, (_, n_groups, start, stop) in zip(factors, pieces, strict=True):
        band = _band(x, n_groups, start, stop, axis)
        own = [None if p is None else p[start:stop].reshape(n_groups, -1) for p in (weight, bias)]
        at = functools.partial(_parameters_at, own, band.shape)
        result = applied(_rows(band), known, at, "layer_norm", stored)
        _band(y, n_groups, start, stop, axis)[...] = result.reshape(band.shape)
    return y


def _parameters_at(parameters, shape, top, left):
    """Weight and bias, of one number a channel, for the elements of a tile."""
    batch, n_groups, before, channels, after = shape
    group = np.arange(batch * n_groups)[top] % n_groups
    channel = np.arange(left.start, min(left.stop, before * channels * after)) // after % channels
    return [None if p is None else p[group[:, None], channel] for p in parameters]
