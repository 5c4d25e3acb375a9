"""Lines that two rows have in common, or a row with what is before it: where streaming begins, and how it ends."""

from .memory import address, copy_line, itemsize, shifted, store, stream_line
from .simd import LANES, inlined

LINE = 64  # bytes: what a streaming store must be aligned to
EDGE = 2 * LANES  # elements: room for the end of a row, and for the beginning of the next


@inlined
def to_line(out, n):
    """The number of elements before the first that may be streamed."""
    head = (-address(out) % LINE) // itemsize(out)
    return head if head < n else n


@inlined
def stream_end(out, values, edge, j, n):
    """The last elements of a row, from `j` on, of the 64 `values`: whole lines are streamed. Returns how many are held back.

    A line that two rows share is streamed when both have written to it: an ordinary store would have to fetch it, and all
    later stores would wait (rows of 512: 0.45 of copy). The first half of `edge` is for the end of a row, the second for
    the beginning of the next; each takes 64 elements of which some are not needed, since whole registers are fast.
    """
    store(edge, 0, values)
    line = LINE // itemsize(out)
    while j + line <= n:
        stream_line(shifted(out, j * itemsize(out)), shifted(edge, (LANES - n + j) * itemsize(out)))
        j += line
    return n - j


@inlined
def stream_begin(out, values, edge, held):
    """The first elements of a row, in one line with those that the row before held back."""
    store(edge, LANES, values)
    stream_line(shifted(out, -held * itemsize(out)), shifted(edge, (LANES - held) * itemsize(out)))


@inlined
def stream_staged(out, room, held, n, first):
    """Stream what lies in `room`: `held` elements of the row before, then `n` of the row at `out`, up to its last whole line.

    Returns how many are held back, now at the beginning of `room`. Of the `first` row, the line that begins before it gets
    ordinary stores.
    """
    size, line = itemsize(out), LINE // itemsize(out)
    begin, total, j = shifted(out, -held * size), held + n, 0
    if first:
        j = to_line(out, n)
        copy_first(out, room, j)
    while j + line <= total:
        stream_line(shifted(begin, j * size), shifted(room, j * size))
        j += line
    copy_line(room, shifted(room, j * size))
    return total - j


@inlined
def copy_first(out, room, count):
    """Copy the first elements of what lies in `room`, less than a line."""
    for k in range(count):
        shifted(out, k * itemsize(out))[0] = shifted(room, k * itemsize(out))[0]


@inlined
def flush(edge, held, out):
    """Write what the row before `out` holds back."""
    for k in range(held):
        shifted(out, (k - held) * itemsize(out))[0] = edge[LANES - held + k]
