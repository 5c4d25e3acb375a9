"""Schedule of attention: blocks of 16 queries; where these are few, segments of keys as well, whose states are joined.

What is a block and what a segment depends on lengths alone. Nothing waits for the device.
"""

import cupy
import numpy as np

from .._attention_options import over_batch
from .._vocabulary import COMPUTED, STORED, finite_in, name_of
from . import attention_layout as layout
from . import launch
from .norms import rms_norm, unit_norm

NORMS = {"rms": rms_norm, "unit": unit_norm}


def attention(q, k, v, options, out, lse):
    """Attention of prepared arrays: (..., heads, length, size), with the same batch axes. `lse` is contiguous."""
    over_batch(_attend, q, k, v, options, out, lse)


def _normalised(array, options, dtype):
    """Queries or keys, normalised, in the dtype of the computation."""
    wide = cupy.empty(array.shape, dtype)
    cupy.copyto(wide, array)
    NORMS[options.qk_norm](wide, (None,), options.eps, wide)
    return wide


def _attend(q, k, v, options, out, lse):
    if options.qk_norm:
        q, k = (_normalised(a, options, lse.dtype) for a in (q, k))
    n_batch, n_heads, n, head_size = q.shape
    key_heads, n_keys, value_size = v.shape[1:]
    group = n_heads // key_heads
    stored, cached, normalised = STORED[name_of(out.dtype)], STORED[name_of(v.dtype)], options.qk_norm is not None
    blocks, all_rows = -(-group * n // layout.ROWS), n_batch * n_heads * n
    segment = layout.segment_of(n_keys) if group * n <= layout.FEW else max(1, n_keys)
    segments = max(1, -(-n_keys // segment))
    columns = min(layout.MOST_COLUMNS, max(layout.LEAST_COLUMNS, 1 << max(0, -(-value_size // launch.WARP) - 1).bit_length()))
    parts, marks = [0, 0, 0], 0
    if segments > 1:
        room = cupy.empty(segments * all_rows * (value_size + 2) + all_rows, lse.dtype)
        size = room.itemsize * segments * all_rows
        parts = [room.data.ptr, room.data.ptr + size * value_size, room.data.ptr + size * (value_size + 1)]
        marks = room.data.ptr + size * (value_size + 2)
    start, starts = _same_or_each(options.starts)
    length, lengths = _same_or_each(options.lengths)
    given = [a if a is None or a.flags.c_contiguous else cupy.ascontiguousarray(a) for a in (options.slopes, options.sinks)]
    left, right = (layout.UNBOUNDED if side is None else side for side in (options.left, options.right))
    grid = n_batch * key_heads * blocks, segments, max(1, -(-value_size // (columns * launch.WARP)))
    places = [place for array in (q, k, v, out) for place in (array.data.ptr, *array.strides)]
    mask = options.mask
    masked = [0] * 6 if mask is None else [mask.data.ptr, *mask.strides, layout.MASKS[mask.dtype.name]]
    arrays = [*places, lse.data.ptr, *masked, _at(starts), _at(lengths), *map(_at, given)]
    # A cap too small for the dtype of the computation is none of 0, which stands for no cap; scores within either are equal.
    cap = lse.dtype.type(0) if options.softcap is None else max(finite_in(options.softcap, lse.dtype), np.finfo(lse.dtype).tiny)
    numbers = [start, length, left, right, finite_in(options.scale, lse.dtype), cap]
    sizes = [n, group, key_heads, head_size, value_size, blocks, segment if segments > 1 else n_keys]
    wide_mask = masked[-1] == layout.FLOAT64
    run = launch.kernel("fastnorm._cuda.attend:attend", stored, cached, normalised, columns, wide_mask)
    block, fast = (layout.THREADS,), None
    if not normalised and _suits_tensor_cores(stored, cached, group * n, max(head_size, value_size)):
        fast = cupy.empty(all_rows, lse.dtype)
        _on_tensor_cores(stored, wide_mask, (q, k, v, out), (*arrays, *numbers, layout.FIRST, fast.data.ptr, *sizes[:5]))
    # All rows, or those that tensor cores have left without a number
    run(grid, block, (*arrays, *numbers, layout.FIRST, _at(fast), *sizes, *parts))
    if segments > 1:
        _join(parts, segments, out, lse, marks)
        # Rows that left the range, which the device alone knows of: most often none, and then this is over at once.
        sizes[-1] = n_keys
        run((grid[0], 1, grid[2]), block, (*arrays, *numbers, layout.SHRUNK, marks, *sizes, 0, 0, 0))


def _suits_tensor_cores(stored, cached, rows, size):
    """True where they are worth it. Neither layout nor batch decides, as they round otherwise than `attend` does."""
    if stored != cached or COMPUTED[stored] == stored or rows <= layout.FEW or size > layout.MATRIX_SIZES[-1]:
        return False
    return int(launch.capability(cupy.cuda.runtime.getDevice())) >= layout.MATRIX_CAPABILITY


def _on_tensor_cores(stored, wide_mask, arrays, arguments):
    """Attention but for rows that end without a number, which are marked. `arguments`: of the kernel, up to the sizes."""
    q, k, v, _ = arrays
    n_batch, n_heads, n, head_size = q.shape
    key_heads = k.shape[1]
    size = next(size for size in layout.MATRIX_SIZES if size >= max(head_size, v.shape[-1]))
    wide = launch.moves_wide(number for a in arrays for number in (a.data.ptr, a.shape[-1] * a.itemsize, *a.strides[:-1]))
    aligned = wide and all(a.strides[-1] == a.itemsize for a in arrays)
    blocks = -(-(n_heads // key_heads * n) // layout.MATRIX_ROWS)
    run = launch.kernel("fastnorm._cuda.attend_matrix:attend_tiles", stored, size, aligned, wide_mask)
    run((n_batch * key_heads * blocks,), (layout.THREADS,), (*arguments, blocks, 0, 0, 0, 0))


def _join(parts, n_parts, out, lse, marks=0):
    """Put parts together, of which `parts` are the addresses: sums or means, largest scores, totals or 0."""
    *_, heads, n, size = out.shape
    run = launch.kernel("fastnorm._cuda.attend:join", STORED[name_of(out.dtype)])
    arrays = [*parts, n_parts, lse.size, out.data.ptr, *out.strides, lse.data.ptr]
    run((lse.size,), (layout.THREADS,), (*arrays, n, heads, size, marks))


def merge_attention(outs, lses, out, lse):
    """The parts joined: `outs` and `lses` in the dtype of the computation."""
    if lse.size == 0:
        return
    size, parts = out.shape[-1], len(outs)
    means, logs = cupy.empty((parts, *out.shape), lse.dtype), cupy.empty((parts, *lse.shape), lse.dtype)
    for i, (mean, log) in enumerate(zip(outs, lses, strict=True)):
        cupy.copyto(means[i], mean)
        cupy.copyto(logs[i], log)
    rows = out.reshape(1, 1, -1, size) if size else out.reshape(1, 1, lse.size, 0)
    _join((means.data.ptr, logs.data.ptr, 0), parts, rows, lse)


def _same_or_each(integers):
    """One integer for the whole batch, and None; or 0 and an array of them on the device."""
    if len(set(integers.tolist())) == 1:
        return int(integers[0]), None
    return 0, cupy.asarray(np.ascontiguousarray(integers))


def _at(array):
    """The address of an array; 0 where there is none."""
    return 0 if array is None else array.data.ptr
