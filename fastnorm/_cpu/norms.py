"""Schedules: how a norm of prepared NumPy arrays is cut up, which kernel takes the pieces, on how many threads.

All of them follow the order of summation of `blocks`: which one runs shows in the clock alone.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._compile import kernel
from .._math import NORMS
from .._vocabulary import COMPUTED, RANGES, STORED, name_of
from .layout import LANES, SLOTS, SMALL, are_dense, planes, row_count, scratch_rows, slab_width, tasks
from .threads import get_num_threads, share

PARALLEL = 1 << 19  # elements a task should have at least, so that another thread can pay: 90 us of work, awake within 30
TASK = 1 << 22  # elements a task should have at most: taking one costs 10 us, and Ctrl-C waits for its end
STREAM = 1 << 25  # bytes moved from which streaming stores pay: nothing written will be found in a cache again
LONG = 1 << 17  # elements from which a row may be cut among threads
ENDLESS = 1 << 24  # elements from which a row is cut in any case, for Ctrl-C's sake

PLAIN, STREAMING = np.array([False]), np.array([True])


def _normalise(norm, x, parameters, eps, out):
    """Choose the schedule. `parameters`: the weight, and the bias of a norm that has one; None for one that is not given."""
    x, out = as_stored(x), as_stored(out)
    eps = both_eps(norm, x.dtype, eps)
    parameters = all_given(parameters, x.shape[-1], eps.dtype)
    if x.size <= SMALL or (x.size < 2 * PARALLEL and are_dense(x, out)):
        if x.ndim == 1:
            x, out = x[None], out[None]
        small_rows(norm, x.dtype)(x, *parameters, eps, out)
    else:
        _normalise_large(norm, x, parameters, eps, out)


class SmallPlan(NamedTuple):
    """What a small call needs besides its arrays: ``ufunc(x, weight[, bias], eps, out)``."""

    ufunc: np.ufunc
    eps: np.ndarray
    no_weight: Callable  # of a length and a dtype: the weight of a call without one
    no_bias: Callable | None  # None: the norm has none


def small_plan(norm, dtype, eps):
    """The plan for all small calls of a norm, dtype and eps."""
    makers = "fastnorm._cpu.small:rows", norm, dtype.name
    if norm.startswith("add_"):
        norm = norm.removeprefix("add_")
        makers = "fastnorm._cpu.small:sum_rows", norm, dtype.name, dtype.name
    return SmallPlan(kernel(*makers).ufunc, both_eps(norm, dtype, eps), _ones, _zeros if NORMS[norm].biased else None)


def _normalise_large(norm, x, parameters, eps, out):
    streaming = streaming_of(out, x)
    view = planes(x, out)
    if view is None:  # strides beyond description
        if x.size > TASK:
            for one, target in zip(x, out, strict=True):
                _normalise_large(norm, one, parameters, eps, target)
        else:
            small_rows(norm, x.dtype)(x, *parameters, eps, out)  # the ufunc finds its way, on one thread
    elif view.by_columns:
        _by_columns(norm, view, parameters, eps, streaming)
    elif x.shape[-1] >= ENDLESS or (x.shape[-1] >= LONG and row_count(x) < 2 * get_num_threads()):
        for xs, outs in zip(*view.arrays, strict=True):
            for row, target in zip(xs, outs, strict=True):
                _by_pieces(norm, row, parameters, eps, target, streaming)
    else:
        _by_rows(norm, view, parameters, eps, streaming)


def as_stored(array):
    """An array as kernels take it: 16-bit floats go by the names of integers."""
    return array.view(STORED[name_of(array.dtype)]) if array.itemsize == 2 else array


def streaming_of(out, *others):
    """The flag of kernels that says whether the result goes past the caches; `others` are read, or written beside it."""
    apart = not any(np.may_share_memory(out, one) for one in others)
    return STREAMING if apart and out.nbytes + sum(one.nbytes for one in others) >= STREAM else PLAIN


def _by_rows(norm, view, parameters, eps, streaming):
    """Tasks are rows of a plane, or planes if there are several."""
    (x, out), dimension = tasks(view)
    if are_dense(x, out):
        run = kernel("fastnorm._cpu.rows:rows", norm, x.dtype.name)
        run = run.over(dimension, x, *as_neighbours(parameters), eps, streaming, out)
    else:
        run = kernel("fastnorm._cpu.small:rows", norm, x.dtype.name).over(dimension, x, *parameters, eps, out)
    share(run, len(x), step_of(x))


def as_neighbours(parameters):
    """Weight and bias as the kernels over rows of neighbours take them: neighbours, too, or one number for all."""
    return [p if p.strides[0] in (0, p.itemsize) else np.ascontiguousarray(p) for p in parameters]


def step_of(x, least=PARALLEL):
    """Items of the first axis a task: about eight tasks a thread, within the sizes that make sense."""
    each = x.size // len(x)
    best = min(max(least, x.size // (8 * get_num_threads())), TASK)
    return max(1, best // each)


def _by_pieces(norm, x, parameters, eps, out, streaming):
    """One long row: the statistics of its pieces, then its result."""
    n = len(x)
    row, shift, piece = measure_row(norm, x, eps)
    run = kernel("fastnorm._cpu.pieces:apply", norm, x.dtype.name).without_gil
    share(lambda a, b: run(x[a:b], *[p[a:b] for p in parameters], eps, row, shift, streaming, out[a:b]), n, piece)


def measure_row(norm, x, eps):
    """Statistics of a long row and the shift they are about, as kernels take them; and the length of a piece."""
    dtype = x.dtype.name
    n = len(x)
    piece = min(max(LONG // 2, 1 << (n // 32).bit_length()), TASK)
    statistics, row = np.empty((-(-n // piece), SLOTS), eps.dtype), np.empty(SLOTS, eps.dtype)
    shift = np.zeros(1, eps.dtype)
    measure = kernel("fastnorm._cpu.pieces:measure", norm, dtype).without_gil
    join = kernel("fastnorm._cpu.pieces:join", norm, eps.dtype.name).without_gil
    if NORMS[norm].centred:
        kernel("fastnorm._cpu.pieces:guess", dtype).without_gil(x[:LANES], shift)

    def measure_about(shift):
        share(lambda a, b: measure(x[a:b], shift, eps, statistics[a // piece]), n, piece)
        better = shift.copy()
        join(statistics, better, row)
        return better

    better = measure_about(shift)
    if better[0] != shift[0]:  # the first guess of the mean was a bad one; the second is taken as it is
        shift = better
        measure_about(shift)
    return row, shift, piece


def _by_columns(norm, view, parameters, eps, streaming):
    """Tasks are planes, or columns of a plane where there are fewer planes than threads. The kernel cuts them into slabs."""
    x, out = view.arrays
    n_planes, n, n_columns = x.shape
    run = kernel("fastnorm._cpu.columns:columns", norm, x.dtype.name).without_gil
    shape = scratch_rows(n, NORMS[norm].centred), slab_width(n, n_columns, x.itemsize)

    def some_planes(a, b):
        run(x[a:b], *parameters, eps, np.empty(shape, eps.dtype), streaming, out[a:b])

    def some_columns(a, b):
        run(x[:, :, a:b], *parameters, eps, np.empty(shape, eps.dtype), streaming, out[:, :, a:b])

    threads = get_num_threads()
    if n_planes >= threads or n * n_columns < 2 * PARALLEL:
        share(some_planes, n_planes, max(1, min(-(-n_planes // threads), TASK // (n * n_columns))))
    else:
        share(some_columns, n_columns, -(-n_columns // (threads * LANES)) * LANES)


rms_norm = functools.partial(_normalise, "rms_norm")
unit_norm = functools.partial(_normalise, "unit_norm")
layer_norm = functools.partial(_normalise, "layer_norm")


def small_rows(norm, dtype):
    """The ufunc over rows in a cache, or of any strides."""
    return kernel("fastnorm._cpu.small:rows", norm, dtype.name).ufunc


@functools.lru_cache(maxsize=256)
def both_eps(norm, dtype, eps):
    """Eps, and eps as a lifted row sees it: lifted before underflow can take it."""
    computed = COMPUTED[name_of(dtype)]
    with np.errstate(all="ignore"):
        return np.array([eps, NORMS[norm].lift_eps(np.float64(eps), RANGES[computed])]).astype(computed)


def all_given(parameters, n, dtype):
    """Weight and bias, with the ones and zeros that those mean which were not given."""
    return [absent(n, dtype) if p is None else p for p, absent in zip(parameters, (_ones, _zeros), strict=False)]


@functools.lru_cache(maxsize=256)
def _ones(n, dtype):
    """The weight that is not there: one number, n times."""
    return np.broadcast_to(np.ones(1, dtype), n)


@functools.lru_cache(maxsize=256)
def _zeros(n, dtype):
    """The bias that is not there."""
    return np.broadcast_to(np.zeros(1, dtype), n)
