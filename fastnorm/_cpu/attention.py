"""Schedule: how attention is cut into tasks, and who takes them.

Rows of queries that share a head of keys are cut into blocks, keys into segments. Blocks and segments depend on lengths and
sizes alone; whether the segments of a block are taken by one thread, or by several and joined afterwards, shows in the
clock alone.
"""

import math
from typing import NamedTuple

import numpy as np

from .._compile import Scratch, kernel
from .._vocabulary import COMPUTED
from . import attention_layout as layout
from .norms import as_stored, both_eps
from .threads import get_num_threads, share

TASK = 1e7  # products that a piece of work should have at least: 200 us
PARTS = 1 << 25  # bytes that parts may take


def attention(q, k, v, options, out, lse):
    """Attention of prepared arrays of four axes: (batch, heads, length, size)."""
    q, k, v, out = map(as_stored, (q, k, v, out))
    n_batch, n_heads, n_queries, head_size = q.shape
    n_key_heads, n_keys, value_size = v.shape[1:]
    group = n_heads // n_key_heads
    computed = np.dtype(COMPUTED[q.dtype.name])
    rows = layout.block_rows(group * n_queries, n_keys, head_size, value_size)
    blocks = -(-group * n_queries // rows)
    segments = max(1, -(-n_keys // layout.SEGMENT))
    tasks = n_batch * n_key_heads * blocks
    part_size = layout.state_size(rows, value_size)
    apart = segments > 1 and tasks < 4 * get_num_threads() and tasks * segments * part_size * computed.itemsize <= PARTS

    plan = [rows, blocks, segments, layout.WHOLE, *options.plan]
    places = np.array(layout.room_of(rows, head_size, value_size, segments), np.int64)
    parts = np.empty(tasks * segments * part_size if apart else 1, computed)
    scratch = [Scratch(int(places[-1]), computed), Scratch(3 * rows, np.int64)]
    arrays = [q, k, v, options.mask, options.starts, options.lengths, options.slopes, options.sinks]
    run = kernel("fastnorm._cpu.attend:attend", q.dtype.name, k.dtype.name)

    def take(step, n, keys):
        """All tasks of a step, the last block of queries first: where a mask is causal, it has most to do."""
        plan[layout.STEP] = step
        given = np.array(plan, np.int64), options.numbers(computed), places, np.arange(n - 1, -1, -1)
        each = rows * keys * (head_size + value_size)
        work = run.over("t", *arrays, *given, *scratch, parts, out, lse)
        share(work, n, max(1, min(int(TASK / max(1, each)), -(-n // (4 * get_num_threads())))))

    if apart:
        take(layout.PART, tasks * segments, layout.SEGMENT)
        take(layout.JOIN, tasks, segments)
    else:
        take(layout.WHOLE, tasks, n_keys)


class Options(NamedTuple):
    """What was asked for besides q, k and v."""

    mask: np.ndarray  # the first byte of each element, of shape (batch, heads, queries, keys)
    starts: np.ndarray  # int64, for each batch element: where its first query stands
    lengths: np.ndarray  # int64, for each batch element: its keys
    slopes: np.ndarray  # for each head, in the dtype of the computation; of any content if there are none
    sinks: np.ndarray
    plan: tuple[int, ...]  # from `attention_layout.LEFT` on
    scale: float
    cap: float
    norm: str | None
    eps: float

    def numbers(self, computed):
        """What the kernel takes as `given`. The scale is a power of two, for the queries, times what is left, for the scores."""
        fraction, exponent = math.frexp(self.scale)
        exponent = min(max(exponent - 1, -100), 100) if fraction and math.isfinite(fraction) else 0
        power = 2.0**exponent
        both = both_eps("unit_norm" if self.norm == "unit" else "rms_norm", computed, self.eps)
        with np.errstate(all="ignore"):
            return np.array([power, self.scale / power, self.cap, *both], computed)
