"""Schedules of softmax, its logarithm, and the logarithm of its sum; as `norms` for the norms."""

from typing import NamedTuple

import numpy as np

from .._compile import Scratch, kernel
from .._math import add_totals, is_outweighed
from .._vocabulary import COMPUTED, EXPONENTIALS, finite_in
from .layout import (
    APART,
    KEPT,
    LANES,
    LARGEST,
    LOGARITHM,
    PROBABILITY,
    RESULT,
    SUM,
    planes,
    row_count,
    slab_width,
    softmax_scratch_rows,
    tasks,
)
from .norms import ENDLESS, LONG, PLAIN, TASK, as_stored, step_of, streaming_of
from .threads import get_num_threads, share

WIDEST = 512  # columns of a slab: what is kept of each shall stay in a cache
PARALLEL = 1 << 17  # elements a task should have at least: an exponential is more work than the rest of a norm


class SmallPlan(NamedTuple):
    """What a small call needs besides its arrays: ``ufunc(x, given, flags, kept, out)``, of matrices."""

    ufunc: np.ufunc
    given: np.ndarray
    flags: np.ndarray
    stored: np.dtype  # as which the kernel takes x and out


def small_softmax(function, dtype):
    """The plan for all small calls of `softmax` or `log_softmax` with a scale of 1."""
    stored = as_stored(np.empty(0, dtype)).dtype
    what = PROBABILITY if function == "softmax" else LOGARITHM
    ufunc = kernel("fastnorm._cpu.softmax_kernels:rows", stored.name).ufunc
    return SmallPlan(ufunc, _given(1.0, stored), np.array([False, what], np.int64), stored)


def softmax(x, scale, out):
    """Softmax of prepared arrays, along the last axis."""
    _each(as_stored(x), scale, PROBABILITY, as_stored(out))


def log_softmax(x, scale, out):
    """The logarithm of softmax."""
    _each(as_stored(x), scale, LOGARITHM, as_stored(out))


def logsumexp(x, out):
    """The logarithm of the sum of exponentials; `out` is of the shape of `x` without its last axis."""
    if x.size:
        _sums(as_stored(x), as_stored(out))
    else:
        out[...] = -np.inf


def _sums(x, out):
    if x.ndim == 1:
        x, out = x[None], out[None]
    if x.ndim > 2 and not (x.flags.c_contiguous and out.flags.c_contiguous):
        for one, target in zip(x, out, strict=True):
            _sums(one, target)
    else:
        x = x.reshape(-1, x.shape[-1])
        run = kernel("fastnorm._cpu.softmax_kernels:sums", x.dtype.name)
        given = _given(1.0, x.dtype)
        share(run.over("r", x, given, _kept(x.shape[1], given), out.reshape(-1)), len(x), step_of(x, PARALLEL))


def _each(x, scale, what, out):
    if not x.size:
        return
    if x.ndim == 1:
        x, out = x[None], out[None]
    given, streaming = _given(scale, x.dtype), int(streaming_of(out, x) is not PLAIN)
    view = planes(x, out)
    if view is None:
        for one, target in zip(x, out, strict=True):
            _each(one, scale, what, target)
    elif view.by_columns:
        _by_columns(view, given, np.array([streaming, what], np.int64))
    elif x.shape[-1] >= ENDLESS or (x.shape[-1] >= LONG and row_count(x) < 2 * get_num_threads()):
        for xs, outs in zip(*view.arrays, strict=True):
            for row, target in zip(xs, outs, strict=True):
                _by_pieces(row, given, np.array([streaming, what, LARGEST], np.int64), target)
    else:
        (x, out), dimension = tasks(view)
        run = kernel("fastnorm._cpu.softmax_kernels:rows", x.dtype.name)
        run = run.over(dimension, x, given, np.array([streaming, what], np.int64), _kept(x.shape[-1], given), out)
        share(run, len(x), step_of(x, PARALLEL))


def _given(scale, stored):
    """The numbers of a call, in the dtype of the computation: the sign of the scale, and the scale, which stays finite."""
    computed = np.dtype(COMPUTED[stored.name])
    return np.array([-1.0 if scale < 0 else 1.0, finite_in(scale, computed)], computed)


def _kept(n, given):
    """Room for the exponentials of a row."""
    return Scratch(n if n <= KEPT else 1, given.dtype)


def _by_pieces(x, given, flags, out):
    """One long row: the largest of its pieces, their sums, the result."""
    n = len(x)
    piece = min(max(LONG // 2, 1 << (n // 32).bit_length()), TASK)  # whole blocks, and a power of two of them
    found = np.empty((-(-n // piece), 2), given.dtype)
    known = np.zeros(3, given.dtype)  # the largest, the smallest, the sum
    run = kernel("fastnorm._cpu.softmax_kernels:pieces", x.dtype.name).without_gil

    def take(step):
        step = np.array([*flags[:2], step], np.int64)
        share(lambda a, b: run(x[a:b], given, known, step, out[a:b], found[a // piece]), n, piece)

    with np.errstate(all="ignore"):
        take(LARGEST)
        known[:2] = np.fmax.reduce(found[:, 0]), np.fmin.reduce(found[:, 1])
        take(SUM)
        known[2] = _joined(list(found[:, 0]))
        if is_outweighed(known[2], EXPONENTIALS[given.dtype.name]):
            take(APART)
            known[2] = found[:, 1].sum() + _joined(list(found[:, 0]))
        take(RESULT)


def _joined(sums):
    """The sum of sums, in the order of a row's blocks: neighbours, then pairs of neighbours; what is left over last."""
    tree = []
    for index, total in enumerate(sums):
        while index & 1:
            total = add_totals(tree.pop(), total)
            index >>= 1
        tree.append(total)
    total = tree.pop()
    while tree:
        total = add_totals(tree.pop(), total)
    return total


def _by_columns(view, given, flags):
    """Tasks are planes, or columns of a plane where there are fewer planes than threads."""
    x, out = view.arrays
    n_planes, n, n_columns = x.shape
    width = min(slab_width(n, n_columns, x.itemsize), WIDEST)
    flags = np.array([*flags, width], np.int64)
    room = Scratch(softmax_scratch_rows(n) * width, given.dtype)
    run = kernel("fastnorm._cpu.softmax_columns:columns", x.dtype.name)
    if n_planes >= get_num_threads():
        share(run.over(None, x, given, flags, room, out), n_planes, max(1, TASK // (n * n_columns)))
    else:
        for one, target in zip(x, out, strict=True):
            work = run.over("m", one, given, flags, room, target)
            share(work, n_columns, -(-n_columns // (get_num_threads() * LANES)) * LANES)
