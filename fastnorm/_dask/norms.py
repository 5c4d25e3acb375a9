"""The norms of chunks. A cut axis takes three steps: the statistics of each chunk, joined in a tree, and applied.

Each chunk measures its elements from a shift of its own, near its mean, and `join_shifted` moves two to the mean of both.
A shift common to all chunks would have to come from one of them, for which all others would wait, and would be a bad one if
that chunk is unlike the rest.
"""

import functools

import numpy as np

import fastnorm

from .. import _math
from .._checks import NO_OFFSET, axes_of, computed, eps_of, named, result_dtype
from .._vocabulary import RANGES
from .arguments import checked, is_cut, lazy_parameters, whole_if_short
from .graph import cut_as, in_pairs, joined, per_chunk
from .tiles import from_matrix, matrix, of_rows, put, stacked, tiles, widened

BOUNDS = RANGES["float64"]
SHORT = 8  # up to here rows are summed exactly where they are whole, so these are never cut
FIRST = 64  # elements from which the mean is guessed


def rms_norm(x, weight=None, *, eps, axis, weight_offset, out):
    """As the public function, of a Dask array."""
    return _norm("rms_norm", x, (weight,), eps, axis, weight_offset, out)


def layer_norm(x, weight=None, bias=None, *, eps, axis, out):
    """As the public function, of a Dask array."""
    return _norm("layer_norm", x, (weight, bias), eps, axis, NO_OFFSET, out)


def unit_norm(x, weight=None, *, eps, axis, out):
    """As the public function, of a Dask array."""
    return _norm("unit_norm", x, (weight,), eps, axis, NO_OFFSET, out)


def _norm(function, x, parameters, eps, axis, weight_offset, out):
    arrays = checked(function, x, named(parameters), {"out": out})
    axes = axes_of(function, axis, x, tuples=function != "unit_norm")
    dtype = result_dtype(x.dtype)
    eps = eps_of(function, eps, computed(dtype))
    rows = whole_if_short(x, axes, SHORT)
    given = lazy_parameters(function, parameters, axis, axes, rows, computed(dtype), weight_offset, arrays)
    others = [(p, axes) for p in given]
    if is_cut(rows, axes):
        return in_three_steps(function, rows, others, eps, axes, dtype, function)
    axis = axes if len(axes) > 1 else axes[0] - x.ndim  # -1 is the public functions' shortest way
    y = per_chunk(getattr(fastnorm, function), rows, *others, token=function, dtype=dtype, eps=eps, axis=axis)
    return cut_as(y, x.chunks)


def in_three_steps(norm, x, others, eps, axes, dtype, token):
    """A norm along axes that are cut; `others` are weight and bias, with their axes."""
    parts = per_chunk(statistics_of, x, token=f"{token}-statistics", dtype=np.float64, norm=norm, eps=eps, axes=axes)
    factors = joined(parts, axes, functools.partial(join, norm=norm, eps=eps), f"{token}-factors")
    others = [(factors, tuple(range(x.ndim))), *others]
    return per_chunk(apply, x, *others, token=token, dtype=dtype, norm=norm, axes=axes, stored=dtype)


# --------------------------------------------------------------------------------------------------------- in tasks
@np.errstate(all="ignore")
def statistics_of(x, norm, eps, axes):
    """What a chunk knows of its rows; None if it has nothing of them."""
    return statistics(matrix(x, axes), norm, eps)


def statistics(rows, norm, eps):
    """The statistics of the rows of a matrix; None if they are empty."""
    if not rows.shape[1]:
        return None
    formulas = _math.NORMS[norm]
    measure = _moments if formulas.centred else _power
    lifted_eps = formulas.lift_eps(eps, BOUNDS)
    return stacked(
        [
            in_pairs(_joining(norm, eps), [measure(widened(rows[top, left]), lifted_eps) for left in lefts])
            for top, lefts in tiles(rows)
        ]
    )


def _joining(norm, eps):
    formulas = _math.NORMS[norm]
    if not formulas.centred:
        return formulas.join
    return lambda a, b: _math.join_shifted(a, b, formulas.lift_eps(eps, BOUNDS), BOUNDS)


def _power(x, lifted_eps):
    """The `Power` of each row."""
    squares = (x * x).sum(-1)
    scale = _math.rescue_scale(squares, lifted_eps, BOUNDS)
    if (scale != BOUNDS.one).any():
        x = x * scale[:, None]
        squares = (x * x).sum(-1)
    return _math.Power(scale, np.float64(x.shape[1]), squares, np.zeros_like(squares))


def _moments(x, lifted_eps):
    """The `Shifted` moments of each row, about a guess of its mean, or a better one where that was bad."""
    first, few = x[:, 0], x[:, :FIRST]
    near = _math.scaled_distance(few, first[:, None], BOUNDS.fraction, BOUNDS).sum(-1)
    shift = _math.guess_mean(first, near, np.float64(few.shape[1]), BOUNDS)
    row = _about(x, shift, lifted_eps)
    off = _math.is_off_centre(row, BOUNDS)
    if off.any():
        shift = np.where(off, _math.better_guess(row, shift, BOUNDS), shift)
        row = _about(x, shift, lifted_eps)
    return _math.Shifted(*row, shift)


def _about(x, shift, lifted_eps):
    """The `Moments` of each row about a shift."""
    distances = x - shift[:, None]
    squares = (distances * distances).sum(-1)
    scale = _math.rescue_scale(squares, lifted_eps, BOUNDS)
    if (scale != BOUNDS.one).any():
        distances = _math.scaled_distance(x, shift[:, None], scale[:, None], BOUNDS)
        squares = (distances * distances).sum(-1)
    return _math.Moments(scale, np.float64(x.shape[1]), distances.sum(-1), squares, np.zeros_like(squares))


@np.errstate(all="ignore")
def join(parts, last, norm, eps):
    """The statistics of some chunks together; of all of them, what follows for their rows."""
    row = in_pairs(_joining(norm, eps), parts)
    if row is None or not last:
        return row
    formulas = _math.NORMS[norm]
    shift = row.shift if formulas.centred else BOUNDS.zero
    return formulas.settle(row, shift, np.float64(eps), formulas.lift_eps(eps, BOUNDS), BOUNDS)


@np.errstate(all="ignore")
def apply(x, factors, *parameters, norm, axes, stored):
    """The result of a chunk."""
    rows = matrix(x, axes)
    flat = [None if p is None else p.reshape(-1) for p in parameters]
    y = applied(rows, factors, lambda top, left: [None if p is None else p[left] for p in flat], norm, stored)
    return from_matrix(y, x.shape, axes)


def applied(rows, factors, parameters_at, norm, stored):
    """The result of the rows of a matrix, given their factors, and a function that gives weight and bias of a tile."""
    y = np.empty_like(rows, dtype=stored, order="C")
    for top, lefts in tiles(rows) if rows.size else ():
        known = of_rows(factors, top)
        for left in lefts:
            given = [None if p is None else p.astype(np.float64) for p in parameters_at(top, left)]
            put(_result(widened(rows[top, left]), known, _math.NORMS[norm], *given), y[top, left])
    return y


def _result(x, row, formulas, weight=None, bias=None):
    """The result of a tile; elements of common rows, beside ordinary weights, take the shorter formula."""
    ordinary = weight is None or not formulas.wary or bool(_math.is_ordinary(weight, BOUNDS).all())
    weight = BOUNDS.one if weight is None else weight
    bias = BOUNDS.zero if bias is None else bias
    if ordinary and row.common.all():
        return formulas.apply_common(x, row, weight, bias)
    return formulas.apply_any(x, row, weight, bias, BOUNDS)
