"""What the schedule of attention and its kernels must agree on. Free of numba."""

from .._cpu.attention_layout import BFLOAT16, BOOLEAN, BOTH, FIRST, FLOAT16, FLOAT64, LIFTED, MASKS, NO_MASK, SHRUNK, UNBOUNDED

KEYS = 32  # of a tile: the lanes of a warp
WARP_ROWS = 4  # queries of a warp
ROWS = 16  # of a block
THREADS = 128  # of a block: a warp for each four rows
CHUNK = 32  # features that are in shared memory at once
LEAST_COLUMNS, MOST_COLUMNS = 2, 8  # times 32 columns of values that a warp holds the sums of
SEGMENT, MOST_SEGMENTS = 512, 65535  # keys, where queries are few; how many such, by CUDA
FEW = 16  # rows that are: one block

# On tensor cores
MATRIX_ROWS = 64  # of a block: 16 a warp
MATRIX_BLOCKS = 2  # side by side: told to have a third, ptxas would keep registers in memory
MATRIX_KEYS = 64  # of a tile: with as many values, 34 of the 48 KiB of shared memory that every device gives a block
MATRIX_SIZES = (64, 128)  # features and columns that a block has room for
MATRIX_CAPABILITY = 80  # of a device, at least


def segment_of(n_keys):
    """How many keys a segment has: as many as are so few that a grid can have all segments."""
    segment = SEGMENT
    while n_keys > segment * MOST_SEGMENTS:
        segment *= 2
    return segment


__all__ = [
    "BFLOAT16",
    "BOOLEAN",
    "BOTH",
    "CHUNK",
    "FEW",
    "FIRST",
    "FLOAT16",
    "FLOAT64",
    "KEYS",
    "LEAST_COLUMNS",
    "LIFTED",
    "MASKS",
    "MATRIX_BLOCKS",
    "MATRIX_CAPABILITY",
    "MATRIX_KEYS",
    "MATRIX_ROWS",
    "MATRIX_SIZES",
    "MOST_COLUMNS",
    "MOST_SEGMENTS",
    "NO_MASK",
    "ROWS",
    "SEGMENT",
    "SHRUNK",
    "THREADS",
    "UNBOUNDED",
    "WARP_ROWS",
    "segment_of",
]
