"""Schedules of group norm: groups that lie as rows do are rows, with weights that change from row to row."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .._compile import kernel
from .layout import LANES, SMALL
from .norms import LONG, PARALLEL, PLAIN, all_given, as_stored, both_eps, measure_row, step_of, streaming_of
from .threads import get_num_threads, share

NORM = "layer_norm"  # whose formulas a group follows


def group_norm(x, parameters, eps, out):
    """Normalise groups: `x` and `out` are of shape (batch, groups, before, channels, after), weight and bias flat, or None."""
    x, out = as_stored(x), as_stored(out)
    eps = both_eps(NORM, x.dtype, eps)
    groups, before, channels, after = x.shape[1:]
    weights = [p.reshape(groups, channels) for p in all_given(parameters, groups * channels, eps.dtype)]
    rows, out_rows = _rows(x), _rows(out)
    if rows is None or out_rows is None:
        _scattered(x, weights, eps, out)
        return
    by_channel = before == 1 and after >= LANES
    if not by_channel:
        weights = [np.broadcast_to(w[:, None, :, None], x.shape[1:]).reshape(groups, -1) for w in weights]
    weights = [np.ascontiguousarray(w) for w in weights]
    if groups == 1:  # the batch is what has many rows, all with the same weights
        rows, out_rows = rows.transpose(1, 0, 2), out_rows.transpose(1, 0, 2)
        weights = [np.broadcast_to(w, (rows.shape[1], w.shape[1])) for w in weights]
    n, count = rows.shape[2], rows.shape[0] * rows.shape[1]
    if n >= LONG and count < 2 * get_num_threads():
        for i, j in np.ndindex(rows.shape[:2]):
            _by_pieces(rows[i, j], [w[j] for w in weights], eps, out_rows[i, j], streaming_of(out, x))
    else:
        _dense(rows, weights, eps, out_rows, by_channel, streaming_of(out, x))


def _rows(x):
    """(batch, groups, n) views of groups whose elements are neighbours, in order; None if they are not."""
    expected = x.itemsize
    for length, stride in zip(x.shape[:1:-1], x.strides[:1:-1], strict=True):
        if length > 1 and stride != expected:
            return None
        expected *= length
    return as_strided(x, (*x.shape[:2], expected // x.itemsize), (*x.strides[:2], x.itemsize))


def _dense(x, weights, eps, out, by_channel, streaming):
    """Tasks are images, or groups of one image after the other."""
    run = kernel("fastnorm._cpu.groups:dense", NORM, x.dtype.name, by_channel)
    images, groups = x.shape[:2]
    if x.size < 2 * PARALLEL:
        run.ufunc(x, *weights, eps, PLAIN, out)
    elif images >= 2 * get_num_threads():
        share(run.over(None, x, *weights, eps, streaming, out), images, step_of(x))
    else:
        for image, target in zip(x, out, strict=True):
            share(run.over("r", image, *weights, eps, streaming, target), groups, step_of(image))


def _scattered(x, weights, eps, out):
    """Tasks are groups of one image after the other, each gathered block by block."""
    kind = "scattered"
    if x.shape[4] == 1 and x.strides[3] == out.strides[3] == x.itemsize:
        kind, x, out = "channels_last", x[..., 0], out[..., 0]
        weights = [np.ascontiguousarray(w) for w in weights]
    run = kernel(f"fastnorm._cpu.groups:{kind}", NORM, x.dtype.name)
    if x.size <= SMALL:
        run.ufunc(x, *weights, eps, out)
        return
    for image, target in zip(x, out, strict=True):
        each = max(1, image.size // len(image))
        share(run.over(None, image, *weights, eps, target), len(image), max(1, LONG // each))


def _by_pieces(x, weights, eps, out, streaming):
    """One large group: the statistics of its pieces, then its result, channel by channel or element by element."""
    n, channels = len(x), len(weights[0])
    row, shift, piece = measure_row(NORM, x, eps)
    run = kernel("fastnorm._cpu.pieces:apply", NORM, x.dtype.name).without_gil
    space = n // channels
    if space == 1:
        share(lambda a, b: run(x[a:b], *[w[a:b] for w in weights], eps, row, shift, streaming, out[a:b]), n, piece)
        return
    x, out = x.reshape(channels, space), out.reshape(channels, space)
    weights = [np.broadcast_to(w[:, None], (channels, space)) for w in weights]
    if space < PARALLEL:
        step = max(1, PARALLEL // space)
        share(lambda a, b: run(x[a:b], *[w[a:b] for w in weights], eps, row, shift, streaming, out[a:b]), channels, step)
        return
    for xs, outs, *ws in zip(x, out, *weights, strict=True):
        share(_piece(run, xs, ws, eps, row, shift, streaming, outs), space, piece)


def _piece(run, x, weights, eps, row, shift, streaming, out):
    return lambda a, b: run(x[a:b], *[w[a:b] for w in weights], eps, row, shift, streaming, out[a:b])
