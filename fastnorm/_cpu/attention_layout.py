"""What the schedule of attention and its kernel must agree on: names of the numbers that pass between them, and room.

Free of numba, like `layout`.
"""

from typing import Any, NamedTuple

KEYS = 64  # of a tile: the lanes of a register
SEGMENT = 1024  # keys, in whole tiles: segments are joined in order, by one thread or after several
BLOCK = 192  # rows of queries that share a reading of the keys, which are then turned over once for 32 tiles of scores
FEW = 6  # rows up to which keys are read where they are: turning them over would cost more than the products

# What is done with a task: all segments one after the other; one of them, kept as a part; or the parts joined.
WHOLE, PART, JOIN = range(3)
# Rows that end without a number are computed again: with smaller weights, if their values were large; with scores kept small,
# if these were; with both.
FIRST, SHRUNK, LIFTED, BOTH = range(4)
NO_MASK, BOOLEAN, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = range(6)
MASKS = {"bool": BOOLEAN, "float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64}
NO_NORM, RMS, UNIT = range(3)
NORMS = {None: NO_NORM, "rms": RMS, "unit": UNIT}
UNBOUNDED = 1 << 62  # keys to the left or right

# Where the integers of a call stand in `plan`, and its other numbers in `numbers`.
ROWS, BLOCKS, SEGMENTS, STEP, ATTEMPT, LEFT, RIGHT, MASK, NORM, HAS_CAP, HAS_SLOPES, HAS_SINKS = range(12)
POWER, SCALE, CAP, EPS, LIFTED_EPS, EXCESS, SHRINK = range(7)


class Call(NamedTuple):
    """What all tasks of a call share."""

    q: Any
    k: Any
    v: Any
    mask: Any
    slopes: Any
    sinks: Any
    plan: Any
    given: Any


class Seen(NamedTuple):
    """Of rows of queries: the first key that each may see, the end of the last, and where the query stands."""

    first: Any
    end: Any
    position: Any


class Block(NamedTuple):
    """Which rows of queries a task is about: `count` of them from `start` on, in batch element `b`, of key head `head`."""

    b: Any
    head: Any
    start: Any
    count: Any


class Room(NamedTuple):
    """Scratch of a task, as places in one array: numbers of the dtype of the computation."""

    queries: int  # rows x head size, padded, scaled
    keys: int  # 64 x head size, padded: as read, converted or normalised
    turned: int  # head size, padded, x 64
    values: int  # 64 x head size of values, padded
    scores: int  # 6 x 64
    biases: int  # 6 x 64
    steps: int  # a few rows' largest scores, what scores are compared with, factors
    lifts: int  # of scores: the first for each row, the second; then of what is capped
    outputs: int  # a state: rows x head size of values, padded, then the rows' largest scores and totals
    more: int  # another, of a segment
    size: int


def padded(n, multiple=KEYS):
    """The next multiple."""
    return -(-n // multiple) * multiple


def state_size(rows, value_size):
    """Numbers that a state of so many rows takes: outputs, largest scores, totals."""
    return padded(rows * (padded(value_size) + 2))


def room_of(rows, head_size, value_size, segments):
    """Where everything goes; `rows` is a multiple of six."""
    sizes = [
        rows * padded(head_size),
        KEYS * padded(head_size),
        KEYS * padded(head_size, 16),
        KEYS * padded(value_size),
        6 * KEYS,
        6 * KEYS,
        3 * KEYS,
        4 * BLOCK,
        state_size(rows, value_size),
        state_size(rows, value_size) if segments > 1 else 0,
    ]
    places = [0]
    for size in sizes:
        places.append(places[-1] + padded(size))
    places[-1] += KEYS  # to begin at a line
    return Room(*places)


def block_rows(rows, n_keys, head_size, value_size):
    """Rows of a block: enough to share the keys among, few enough that a task is over within a fifth of a second."""
    most = 8e9 / max(1, n_keys * (head_size + value_size))
    return min(padded(rows, 6), BLOCK, max(24, int(most) // 6 * 6))
