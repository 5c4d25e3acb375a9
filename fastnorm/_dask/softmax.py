"""Softmax of chunks. Along a cut axis: the largest score of each chunk and the sum over it, joined in a tree, and applied."""

import functools
import itertools
import operator
from typing import Any, NamedTuple

import dask
import numpy as np

import fastnorm

from .. import _math
from .._checks import axes_of, check_flag, finite_of, result_dtype
from .._vocabulary import EXPONENTIALS, RANGES, finite_in
from .arguments import checked, is_cut, whole_if_short
from .graph import cut_as, in_pairs, joined, lazy, meta_of, per_chunk
from .tiles import from_matrix, matrix, of_rows, put, stacked, tiles, widened

NUMBERS, FRACTION = EXPONENTIALS["float64"], RANGES["float64"].fraction


def softmax(x, *, axis, scale, out):
    """As the public function, of a Dask array."""
    return _softmax("softmax", x, axis, scale, out)


def log_softmax(x, *, axis, scale, out):
    """As the public function, of a Dask array."""
    return _softmax("log_softmax", x, axis, scale, out)


def _softmax(function, x, axis, scale, out):
    checked(function, x, {}, {"out": out})
    axes = axes_of(function, axis, x, tuples=False)
    scale, dtype = finite_of(function, "scale", scale), result_dtype(x.dtype)
    rows = whole_if_short(x, axes, 0)
    if not is_cut(rows, axes):
        options = {"axis": axes[0] - x.ndim, "scale": scale}
        return cut_as(per_chunk(getattr(fastnorm, function), rows, token=function, dtype=dtype, **options), x.chunks)
    known = (_sums(function, x, axes, scale), tuple(range(x.ndim)))
    options = {"axes": axes, "scale": scale, "logarithm": function == "log_softmax", "stored": dtype}
    return per_chunk(_apply, x, known, token=function, dtype=dtype, **options)


def logsumexp(x, *, axis, keepdims):
    """As the public function, of a Dask array."""
    function = "logsumexp"
    check_flag(function, "keepdims", keepdims)
    checked(function, x, {}, {})
    axes = axes_of(function, axis, x, tuples=False)
    dtype = result_dtype(x.dtype)
    rows = whole_if_short(x, axes, 0)
    if is_cut(rows, axes):
        rows, task = _sums(function, x, axes, 1.0), functools.partial(_logarithm, stored=dtype)
    else:
        task = functools.partial(fastnorm.logsumexp, axis=axes[0] - x.ndim)
    task = functools.partial(_with_axis, task, axes[0]) if keepdims else task
    left = [a for a in range(x.ndim) if a not in axes or keepdims]
    name = f"{function}-{dask.base.tokenize(rows.name, task)}"
    places = itertools.product(*map(range, rows.numblocks))
    layer = {(name, *(place[a] for a in left)): (task, (rows.name, *place)) for place in places}
    chunks = tuple((1,) if a in axes else x.chunks[a] for a in left)
    return lazy(name, layer, [rows], chunks, meta_of(x, dtype, len(left)))


def _sums(function, x, axes, scale):
    """What `_apply` compares each row with."""
    parts = per_chunk(_scores_of, x, token=f"{function}-sums", dtype=np.float64, axes=axes, scale=scale)
    return joined(parts, axes, functools.partial(_join, scale=scale), f"{function}-sum")


# --------------------------------------------------------------------------------------------------------- in tasks
class Scores(NamedTuple):
    """What a chunk knows of the scores in its part of a row, times the sign of the scale."""

    largest: Any
    smallest: Any
    total: Any  # of the exponentials of the scaled distances from the largest


def _compared(scores, scale):
    """How elements are compared with that of the largest score."""
    sign = np.float64(-1 if scale < 0 else 1)
    return _math.comparison(scores.largest, scores.smallest, sign, np.float64(finite_in(scale, "float64")), FRACTION, NUMBERS)


def _weights(x, how):
    """The exponentials of scaled distances. NumPy's own: the formula's needs a multiply-add of one rounding, and time."""
    return np.exp(_math.scaled_difference(x, how))


@np.errstate(all="ignore")
def _scores_of(x, axes, scale):
    """The `Scores` of the rows of a chunk; None if it has nothing of them."""
    rows = matrix(x, axes)
    if not rows.shape[1]:
        return None
    scores = stacked([_join([_measure(rows[top, left], scale) for left in lefts], scale=scale) for top, lefts in tiles(rows)])
    others = [n for a, n in enumerate(x.shape) if a not in axes]
    return Scores(*(field.reshape(others) for field in scores))


def _measure(x, scale):
    add_up = _sum if result_dtype(x.dtype) == np.float64 else functools.partial(np.sum, axis=-1)
    x = widened(x)
    signed = -x if scale < 0 else x
    scores = Scores(signed.max(-1), signed.min(-1), None)
    return scores._replace(total=add_up(_weights(x, of_rows(_compared(scores, scale), slice(None)))))


def _sum(values):
    """The sum of each row, by halves, in place. NumPy's begins with chains: of 70 numbers it was off by up to 7 roundings."""
    n = values.shape[-1]
    while n > 1:
        half = (n + 1) // 2
        values[..., : n - half] += values[..., half:n]
        n = half
    return values[..., 0]


@np.errstate(all="ignore")
def _join(parts, last=False, *, scale):
    """The `Scores` of some parts of a row together, all compared with the largest at once: a factor for each, and no second."""
    parts = [part for part in parts if part is not None]
    if not parts:
        return None
    largest, smallest, totals = zip(*parts, strict=True)
    both = Scores(functools.reduce(np.maximum, largest), functools.reduce(np.minimum, smallest), None)
    how, sign = _compared(both, scale), -1 if scale < 0 else 1
    shares = [total * _weights(own * sign, how) for own, total in zip(largest, totals, strict=True)]
    return both._replace(total=in_pairs(operator.add, shares))


@np.errstate(all="ignore")
def _logarithm(scores, stored):
    """The logarithm of a sum; infinity where one of the scores is."""
    y = np.where(scores.largest == np.inf, np.inf, _math.log_sum(_math.Weights(scores.largest, scores.total), NUMBERS))
    result = np.empty_like(y, dtype=stored)
    put(y, result)
    return result


def _with_axis(task, axis, chunk):
    """What a task gives, with an axis of length 1."""
    return np.expand_dims(task(chunk), axis)


@np.errstate(all="ignore")
def _apply(x, scores, axes, scale, logarithm, stored):
    """The probabilities of a chunk, or their logarithms."""
    rows = matrix(x, axes)
    y = np.empty_like(rows, dtype=stored, order="C")
    for top, lefts in tiles(rows) if rows.size else ():
        known = of_rows(Scores(*(field.reshape(-1) for field in scores)), top)
        how = _compared(known, scale)
        nothing = known.total == 0
        for left in lefts:
            part = widened(rows[top, left])
            if logarithm:
                put(_math.scaled_difference(part, how) - np.where(nothing, 0, np.log(known.total)), y[top, left])
            else:
                put(_weights(part, how) / np.where(nothing, 1, known.total), y[top, left])
    return from_matrix(y, x.shape, axes)
