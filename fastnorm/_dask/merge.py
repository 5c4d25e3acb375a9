"""Results of attention over parts of the keys, joined chunk by chunk."""

import dask

import fastnorm

from .._attention_arguments import check_parts
from .._checks import as_array, computed, result_dtype
from .._vocabulary import STORED
from .arguments import checked, lazy_too
from .graph import in_places, lazy, meta_of, two_of


def merge_attention(outs, lses):
    """As the public function, of lists of Dask arrays."""
    name = "merge_attention"
    given = {f"{what}[{i}]": a for what, many in (("outs", outs), ("lses", lses)) for i, a in enumerate(many)}
    for argument, value in given.items():
        lazy_too(name, argument, value, "outs[0]")
    arrays = checked(name, outs[0], given, {}, "outs[0]")
    for argument, value in given.items():
        as_array(name, argument, value._meta, arrays, tuple(STORED))
    check_parts(outs, lses)
    chunks = (*outs[0].chunks[:-1], outs[0].shape[-1:])
    outs, lses = [one.rechunk(chunks) for one in outs], [one.rechunk(chunks[:-1]) for one in lses]
    token = dask.base.tokenize([one.name for one in (*outs, *lses)])
    both = f"{name}-both-{token}"
    layer = {
        (both, *place): (_merge, [(one.name, *place, 0) for one in outs], [(one.name, *place) for one in lses])
        for place in in_places(outs[0].numblocks[:-1])
    }
    dtype = result_dtype(outs[0].dtype)
    both = lazy(both, layer, [*outs, *lses], chunks[:-1], meta_of(lses[0], dtype))
    return two_of(both, name, chunks, dtype, computed(dtype), token)


def _merge(outs, lses):
    return fastnorm.merge_attention(outs, lses)
