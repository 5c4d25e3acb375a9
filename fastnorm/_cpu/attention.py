"""Schedule: how attention is cut into tasks, and who takes them.

Rows of queries that share a head of keys are cut into blocks, keys into segments. Blocks and segments depend on lengths and
sizes alone; whether the segments of a block are taken by one thread, or by several and joined afterwards, shows in the
clock alone.
"""

import functools
import math

import numpy as np

from .._attention_options import over_batch
from .._compile import Scratch, kernel
from .._vocabulary import COMPUTED, EXPONENTIALS, name_of
from ..consistency import attention_scale
from . import attention_layout as layout
from .norms import as_stored, both_eps
from .threads import get_num_threads, share

TASK = 1e7  # products that a piece of work should have at least: 100 to 200 us
READING = 24  # products that take as long as reading one number from memory
PARTS = 1 << 25  # bytes that parts may take


def attention(q, k, v, options, out, lse):
    """Attention of prepared arrays: (..., heads, length, size), with the same batch axes."""
    over_batch(_attend, *map(as_stored, (q, k, v)), options, as_stored(out), lse)


def small_attention(q, k, v, is_causal):
    """Attention without other options, of (batch, heads, length, size), in one call of the ufunc; None if that is not all.

    The same kernel with the same plan as below, but what a call needs besides its arrays is made once for all calls of its
    sizes: 12 us for few keys, instead of 75.
    """
    n_batch, n_heads, n_queries, head_size = q.shape
    n_key_heads, n_keys, value_size = v.shape[1:]
    if n_batch * n_key_heads * max(n_heads // n_key_heads * n_queries, READING) * n_keys * (head_size + value_size) > TASK:
        return None  # more than one piece of work, for threads to share
    segments = -(-n_keys // layout.SEGMENT)
    sizes = n_batch, n_heads, n_queries, head_size, n_key_heads, value_size, segments
    ufunc, scratch, integers, given = _small_plan(q.dtype, *sizes, is_causal)
    mask = np.ndarray((n_batch, n_heads, n_queries, n_keys), np.uint8, _NO_MASK, 0, (0, 0, 0, 0))
    lengths = np.array([n_keys] * n_batch, np.int64)
    room, parts = np.empty(scratch, q.dtype), np.empty(1, q.dtype)
    out, lse = np.empty((n_batch, n_heads, n_queries, value_size), q.dtype), np.empty(q.shape[:3], q.dtype)
    ufunc(q, k, v, mask, lengths - n_queries, lengths, *given, room, np.empty(integers, np.int64), parts, out, lse)
    return None if np.isnan(lse).any() else out  # rows that left the range go the long way


@functools.lru_cache(maxsize=256)
def _small_plan(dtype, n_batch, n_heads, n_queries, head_size, n_key_heads, value_size, segments, is_causal):
    """The ufunc, the sizes of its scratch, and what it is given between the lengths and that."""
    rows = layout.block_rows(n_heads // n_key_heads * n_queries, 1, head_size, value_size)
    blocks = -(-(n_heads // n_key_heads * n_queries) // rows)
    right = 0 if is_causal else layout.UNBOUNDED
    bounds_and_options = layout.UNBOUNDED, right, layout.NO_MASK, layout.NO_NORM, False, False, False
    plan = np.array([rows, blocks, segments, layout.WHOLE, layout.FIRST, *bounds_and_options], np.int64)
    numbers = _numbers(attention_scale(head_size), None, None, 0.0, dtype, layout.FIRST)
    places, of_heads = _places(rows, head_size, value_size, segments), np.zeros(n_heads, dtype)
    tasks = np.arange(n_batch * n_key_heads * blocks - 1, -1, -1)
    ufunc = kernel("fastnorm._cpu.attend:attend", dtype.name, dtype.name).ufunc
    return ufunc, int(places[-1]), 3 * rows, (of_heads, of_heads, plan, numbers, places, tasks)


def _attend(q, k, v, options, out, lse):
    n_batch, n_heads, n_queries, head_size = q.shape
    n_key_heads, n_keys, value_size = v.shape[1:]
    group = n_heads // n_key_heads
    computed = np.dtype(COMPUTED[name_of(q.dtype)])
    rows = layout.block_rows(group * n_queries, n_keys, head_size, value_size)
    blocks = -(-group * n_queries // rows)
    segments = max(1, -(-n_keys // layout.SEGMENT))
    tasks = n_batch * n_key_heads * blocks
    part_size = layout.state_size(rows, value_size)
    apart = segments > 1 and tasks < 4 * get_num_threads() and tasks * segments * part_size * computed.itemsize <= PARTS

    plan = [rows, blocks, segments, layout.WHOLE, layout.FIRST, *_plan(options)]
    places = _places(rows, head_size, value_size, segments)
    parts = np.empty(tasks * segments * part_size if apart else 1, computed)
    scratch = [Scratch(int(places[-1]), computed), Scratch(3 * rows, np.int64)]
    of_heads = [np.zeros(n_heads, computed) if a is None else a for a in (options.slopes, options.sinks)]
    arrays = [q, k, v, _first_bytes(options.mask, lse, n_keys), options.starts, options.lengths, *of_heads]
    run = kernel("fastnorm._cpu.attend:attend", name_of(q.dtype), name_of(k.dtype))

    def take(step, n, keys):
        """All tasks of a step, the last block of queries first: where a mask is causal, it has most to do."""
        plan[layout.STEP] = step
        numbers = _numbers(options.scale, options.softcap, options.qk_norm, options.eps, computed, plan[layout.ATTEMPT])
        given = np.array(plan, np.int64), numbers, places, np.arange(n - 1, -1, -1)
        each = max(min(rows, group * n_queries), READING) * keys * (head_size + value_size)
        work = run.over("t", *arrays, *given, *scratch, parts, out, lse)
        share(work, n, max(1, int(TASK / max(1, each))))

    if apart:
        take(layout.PART, tasks * segments, layout.SEGMENT)
        take(layout.JOIN, tasks, segments)
    else:
        take(layout.WHOLE, tasks, n_keys)
    for attempt in (layout.SHRUNK, layout.LIFTED, layout.BOTH):
        if not np.isnan(lse).any():  # no row left the range, or has no number to give
            break
        plan[layout.ATTEMPT] = attempt
        take(layout.WHOLE, tasks, n_keys)


@functools.lru_cache(maxsize=256)
def _places(*sizes):
    return np.array(layout.room_of(*sizes), np.int64)


_NO_MASK = np.zeros(1, np.uint8)


def _first_bytes(mask, lse, n_keys):
    """A mask as the kernel takes it, of whatever dtype: the first byte of each element."""
    if mask is None:
        return np.ndarray((*lse.shape, n_keys), np.uint8, _NO_MASK, 0, (0, 0, 0, 0))
    if mask.itemsize == 1:
        return mask.view(np.uint8)
    return mask.view([("first", np.uint8), ("others", f"V{mask.itemsize - 1}")])["first"]


def _plan(options):
    """The kernel's plan from `attention_layout.LEFT` on."""
    bounds = [layout.UNBOUNDED if side is None else side for side in (options.left, options.right)]
    mask = layout.NO_MASK if options.mask is None else layout.MASKS[options.mask.dtype.name]
    given = [value is not None for value in (options.softcap, options.slopes, options.sinks)]
    return *bounds, mask, layout.NORMS[options.qk_norm], *given


@functools.lru_cache(maxsize=256)
def _numbers(scale, softcap, qk_norm, eps, computed, attempt):
    """What the kernel takes as `given`. The scale is a power of two, for the queries, times the rest of it, for the scores.

    Where scores are kept small, of the rest what exceeds 2 belongs to their lift. Shrunk weights leave room for sums over 2**40
    keys.
    """
    largest, smallest = float(np.finfo(computed).max), float(np.finfo(computed).tiny)
    power = rest = excess = 1.0
    if scale and math.isfinite(scale):
        power = min(max(2.0 ** (math.frexp(scale)[1] - 1), smallest), 2.0 ** float(EXPONENTIALS[computed.name].sharpest))
    with np.errstate(all="ignore"):
        rest = min(max(scale / power, -largest), largest) if math.isfinite(scale) else scale
    if attempt >= layout.LIFTED and 2 <= abs(rest) < math.inf:
        excess = 2.0 ** (math.frexp(rest)[1] - 1)
        rest /= excess
    shrink = EXPONENTIALS[computed.name].shrink if attempt in (layout.SHRUNK, layout.BOTH) else 1.0
    both = both_eps("unit_norm" if qk_norm == "unit" else "rms_norm", computed, eps)
    with np.errstate(all="ignore"):
        return np.array([power, rest, softcap or 0.0, *both, excess, shrink], computed)
