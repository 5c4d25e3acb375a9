"""Fake address spaces with bounds, alignment, initialisation and race checks.

Each space is one flat byte array.  Global memory is shared by everybody,
shared memory is replicated per block and local memory per thread; `Space`
turns a window offset into an index of the flat array.
"""

import bisect

import numpy as np

from .errors import MemoryFault, RaceError

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BASE = 0x0A00_0000_0000  # low 32 bits zero, as on hardware: u32(generic) == shared offset
LOCAL_BASE = 0x0B00_0000_0000
GUARD = 4096  # unmapped bytes between global buffers
SHARED_START = 1024  # sm_90 reserves the first KiB of a block's shared memory

RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
MULTI, NOBODY = -2, -1


class Group:
    """Threads that execute the same instruction; sel indexes per-thread arrays."""

    __slots__ = ("idx", "sel", "n", "dense")

    def __init__(self, idx):
        self.idx = idx
        self.n = len(idx)
        first, last = int(idx[0]), int(idx[-1]) + 1
        self.dense = last - first == self.n
        self.sel = slice(first, last) if self.dense else idx


def group_or_none(idx):
    return Group(idx) if len(idx) else None


class Region:
    __slots__ = ("lo", "hi", "name", "writable", "read", "written")

    def __init__(self, lo, hi, name, writable=True):
        self.lo, self.hi, self.name, self.writable = lo, hi, name, writable
        self.read = self.written = 0


class Space:
    def __init__(self, name, base, stride=0, copies=1, owner=None):
        self.name, self.base, self.stride, self.owner = name, base, stride, owner
        self.regions, self.starts = [], []
        self.bytes = None
        self.race = None
        self.init = None
        self.copies = copies

    def add(self, region):
        self.regions.append(region)
        self.regions.sort(key=lambda r: r.lo)
        self.starts = [r.lo for r in self.regions]

    def allocate(self, nbytes, track_init=False):
        nbytes = -(-max(nbytes, 32) // 32) * 32
        self.bytes = np.zeros(nbytes, np.uint8)
        self.v = {w: self.bytes.view(t) for w, t in RAW.items()}
        if track_init:
            self.init = np.zeros(nbytes, np.uint8)
            self.iv = {w: self.init.view(t) for w, t in RAW.items()}
            ones = np.full(16, 1, np.uint8)
            self.ones = {w: ones.view(t)[0] for w, t in RAW.items()}

    # ------------------------------------------------------------ checks
    def describe(self, off):
        k = bisect.bisect_right(self.starts, off) - 1
        near = []
        for r in self.regions[max(k, 0) : k + 2]:
            where = (
                f"{off - r.lo} bytes into"
                if r.lo <= off < r.hi
                else f"{off - r.hi} bytes past the end of"
                if off >= r.hi
                else f"{r.lo - off} bytes before"
            )
            near.append(f"{where} {r.name} ({r.hi - r.lo} bytes)")
        return "; ".join(near[:1] if near and "into" in near[0] else near) or "nothing is mapped here"

    def fault(self, what, ins, m, lane, off):
        where = off + (self.base if self.name == "global" else 0)
        raise MemoryFault(
            f"{what} {self.name} access at address {where & (2**64 - 1):#x}: {self.describe(off)}\n"
            f"  by {m.thread_name(lane)}\n  {ins}"
        )

    def locate(self, off, size, g, ins, m, write):
        """Window offsets (int64) -> indices into self.bytes, after all checks."""
        if size > 1 and int(np.bitwise_or.reduce(off)) & (size - 1):
            bad = int(np.flatnonzero(off & (size - 1))[0])
            self.fault(f"misaligned {size}-byte", ins, m, int(g.idx[bad]), int(off[bad]))
        lo, hi = int(off.min()), int(off.max())
        k = bisect.bisect_right(self.starts, lo) - 1
        r = self.regions[k] if k >= 0 else None
        if r is not None and hi + size <= r.hi:
            if write:
                if not r.writable:
                    self.fault("write to read-only", ins, m, int(g.idx[0]), int(off[0]))
                r.written += size * g.n
            else:
                r.read += size * g.n
        else:
            self._many(off, size, g, ins, m, write)
        if self.stride:
            return off + self.owner[g.sel] * self.stride
        return off

    def _many(self, off, size, g, ins, m, write):
        k = np.searchsorted(np.array(self.starts, np.int64), off, "right") - 1
        ends = np.array([r.hi for r in self.regions] or [0], np.int64)
        bad = (k < 0) | (off > ends[k] - size)
        if bad.any():
            b = int(np.flatnonzero(bad)[0])
            self.fault(f"out-of-bounds {size}-byte", ins, m, int(g.idx[b]), int(off[b]))
        for q, n in zip(*np.unique(k, return_counts=True)):
            r = self.regions[q]
            if write and not r.writable:
                b = int(np.flatnonzero(k == q)[0])
                self.fault("write to read-only", ins, m, int(g.idx[b]), int(off[b]))
            if write:
                r.written += size * int(n)
            else:
                r.read += size * int(n)

    def check_init(self, phys, size, g, ins, m):
        have = self.iv[size][phys >> (size.bit_length() - 1)]
        if size == 16:
            bad = (have.view(np.uint64).reshape(-1, 2) != 0x0101010101010101).any(axis=1)
        else:
            bad = have != self.ones[size]
        if bad.any():
            b = int(np.flatnonzero(bad)[0])
            off = int(phys[b]) % self.stride if self.stride else int(phys[b])
            self.fault(f"uninitialised (or still in flight by cp.async) {size}-byte read,", ins, m, int(g.idx[b]), off)

    def mark_init(self, phys, size, value=True):
        self.iv[size][phys >> (size.bit_length() - 1)] = self.ones[size] if value else 0

    # ------------------------------------------------------------ data
    def gather(self, phys, size):
        return self.v[size][phys >> (size.bit_length() - 1)]

    def scatter(self, phys, size, data):
        self.v[size][phys >> (size.bit_length() - 1)] = data


def _same(a, b, size):
    if size == 16:
        return (a.view(np.uint64).reshape(-1, 2) == b.view(np.uint64).reshape(-1, 2)).all(axis=1)
    return a == b


class Memory:
    """The three spaces of a launch plus the access statistics."""

    def __init__(self, machine):
        self.m = machine
        self.glob = self.shared = self.local = None
        self.uninit_raise = True
        self.widths = {}  # (what, space, bits) -> count
        self.profile = None  # a callable, see machine.Machine.profile_access

    def split(self, space, addr, g):
        """Yield (space object, window offsets, group, rows) for an address operand."""
        if space == "global" or space == "const":
            yield self.glob, addr - GLOBAL_BASE, g, None
        elif space == "shared":
            yield self.shared, addr, g, None
        elif space == "local":
            yield self.local, addr, g, None
        else:
            top = addr >> 32
            for s in (self.shared, self.local):
                if s is not None:
                    hit = top == (s.base >> 32)
                    if hit.all():
                        yield s, addr - s.base, g, None
                        return
                    if hit.any():
                        rows = np.flatnonzero(hit)
                        yield s, addr[rows] - s.base, Group(g.idx[rows]), rows
                        keep = np.flatnonzero(~hit)
                        if len(keep) == 0:
                            return
                        yield from (
                            (sp, off, gg, keep if rr is None else keep[rr])
                            for sp, off, gg, rr in self.split(space, addr[keep], Group(g.idx[keep]))
                        )
                        return
            yield self.glob, addr - GLOBAL_BASE, g, None

    def count(self, what, space, size, n):
        key = (what, space, size * 8)
        self.widths[key] = self.widths.get(key, 0) + n

    def load(self, space, addr, size, g, ins, track=True):
        out = None
        for s, off, gg, rows in self.split(space, addr, g):
            phys = s.locate(off, size, gg, ins, self.m, False)
            if s.init is not None and self.uninit_raise:
                s.check_init(phys, size, gg, ins, self.m)
            if s.race is not None and track:
                s.race.read(gg, phys, size, ins)
            self.count("ld", s.name, size, gg.n)
            if self.profile:
                self.profile("ld", s, off, size, gg)
            data = s.gather(phys, size)
            if rows is None:
                return data
            if out is None:
                out = np.empty(g.n, RAW[size])
            out[rows] = data
        return out

    def store(self, space, addr, size, data, g, ins, track=True):
        for s, off, gg, rows in self.split(space, addr, g):
            phys = s.locate(off, size, gg, ins, self.m, True)
            self.count("st", s.name, size, gg.n)
            if self.profile:
                self.profile("st", s, off, size, gg)
            d = data if rows is None else data[rows]
            self.write(s, phys, size, d, gg, ins, track)

    def write(self, s, phys, size, data, g, ins, track=True):
        """Scatter with the shadow updates; no bounds checks."""
        if s.race is not None and track:
            before = _same(s.gather(phys, size), data, size)
            s.scatter(phys, size, data)
            s.race.write(g, phys, size, ins, before, lambda: _same(s.gather(phys, size), data, size))
        else:
            s.scatter(phys, size, data)
        if s.init is not None:
            s.mark_init(phys, size)

    def atomic(self, space, addr, size, g, ins, update):
        """update(space object, indices in elements, rows) performs the read-modify-write."""
        for s, off, gg, rows in self.split(space, addr, g):
            phys = s.locate(off, size, gg, ins, self.m, True)
            if s.init is not None and self.uninit_raise and "exch" not in ins.parts:
                s.check_init(phys, size, gg, ins, self.m)
            if s.race is not None:
                s.race.write(gg, phys, size, ins, None, None, atomic=True)
            self.count("atom", s.name, size, gg.n)
            update(s, phys >> (size.bit_length() - 1), slice(None) if rows is None else rows)
            if s.init is not None:
                s.mark_init(phys, size)


class RaceDetector:
    """Happens-before by barrier intervals.

    Two accesses to the same unit of `gran` bytes by different threads, at least
    one a write and not both atomic, must be separated by a block barrier, or by
    a bar.warp.sync if both threads are in the same warp.  Accesses by different
    blocks are never ordered.  Threads writing the value that is already there
    are let off.
    """

    def __init__(self, space, nbytes, gran, m):
        self.space, self.m, self.gran = space, m, gran
        n = -(-nbytes // gran)
        full = lambda v, t: np.full(n, v, t)
        self.w_t, self.r_t = full(NOBODY, np.int64), full(NOBODY, np.int64)
        self.w_b, self.w_w, self.r_b, self.r_w = (full(NOBODY, np.int32) for _ in range(4))
        self.w_be, self.w_we, self.r_be, self.r_we = (full(0, np.int32) for _ in range(4))
        self.w_line, self.r_line = full(0, np.int32), full(0, np.int32)
        self.w_atomic = full(False, bool)

    def forget(self):
        self.w_t[:] = NOBODY
        self.r_t[:] = NOBODY

    def units(self, g, phys, size):
        k = max(size // self.gran, 1)
        u = phys // self.gran
        i = g.idx
        if k > 1:
            u = (u[:, None] + np.arange(k)).ravel()
            i = np.repeat(i, k)
        m = self.m
        return (
            u,
            i + m.first_thread,
            m.block[i] + m.first_block,
            m.warp[i],
            m.block_epoch[m.block[i]],
            m.warp_epoch[m.warp[i]],
            k,
        )

    def _clash(self, which, u, t, b, w, be, we):
        """Units whose recorded access is by somebody else and not ordered before this one."""
        p = "r_" if which == "read" else "w_"
        pt = getattr(self, p + "t")[u]
        other = (pt != NOBODY) & (pt != t)
        if not other.any():
            return None
        ordered = (getattr(self, p + "b")[u] == b) & (
            (getattr(self, p + "be")[u] < be) | ((getattr(self, p + "w")[u] == w) & (getattr(self, p + "we")[u] < we))
        )
        return other & ~ordered

    def _report(self, kind, j, u, t, k, ins, line, who):
        off = int(u[j]) * self.gran
        s = self.space
        window = off % s.stride if s.stride else off
        other = "several threads" if who == MULTI else self.m.thread_name(int(who) - self.m.first_thread)
        raise RaceError(
            f"{kind} race in {s.name} memory, {s.describe(window)}\n"
            f"  {self.m.thread_name(int(t[j]) - self.m.first_thread)} at {ins}\n"
            f"  {other} at line {line}\n  with no barrier between them"
        )

    def read(self, g, phys, size, ins):
        u, t, b, w, be, we, k = self.units(g, phys, size)
        bad = self._clash("write", u, t, b, w, be, we)
        if bad is not None and bad.any():
            j = int(np.flatnonzero(bad)[0])
            self._report("read-after-write", j, u, t, k, ins, self.w_line[u[j]], self.w_t[u[j]])
        pt, pb, pw = self.r_t[u], self.r_b[u], self.r_w[u]
        stale = (pt == NOBODY) | ((pb == b) & ((self.r_be[u] < be) | ((pw == w) & (self.r_we[u] < we))))
        nt = np.where(stale | (pt == t), t, MULTI)
        nb = np.where(stale | (pb == b), b, MULTI)
        nw = np.where(stale | (pw == w), w, MULTI)
        for arr, val in ((self.r_t, nt), (self.r_b, nb), (self.r_w, nw)):
            arr[u] = val
            lost = arr[u] != val
            if lost.any():
                arr[u[lost]] = MULTI
        self.r_be[u], self.r_we[u], self.r_line[u] = be, we, ins.line

    def write(self, g, phys, size, ins, before, after, atomic=False):
        u, t, b, w, be, we, k = self.units(g, phys, size)
        bad = self._clash("write", u, t, b, w, be, we)
        if bad is not None:
            if atomic:
                bad &= ~self.w_atomic[u]
            if before is not None:
                bad &= ~np.repeat(before, k)
            if bad.any():
                j = int(np.flatnonzero(bad)[0])
                self._report("write-after-write", j, u, t, k, ins, self.w_line[u[j]], self.w_t[u[j]])
        bad = self._clash("read", u, t, b, w, be, we)
        if bad is not None:
            if before is not None:
                bad &= ~np.repeat(before, k)
            if bad.any():
                j = int(np.flatnonzero(bad)[0])
                self._report("write-after-read", j, u, t, k, ins, self.r_line[u[j]], self.r_t[u[j]])
        self.w_t[u] = t
        if not atomic:
            lost = self.w_t[u] != t
            if lost.any() and after is not None:
                lost &= ~np.repeat(after(), k)
                if lost.any():
                    j = int(np.flatnonzero(lost)[0])
                    self._report("write-after-write", j, u, t, k, ins, ins.line, self.w_t[u[j]])
        self.w_b[u], self.w_w[u], self.w_be[u], self.w_we[u] = b, w, be, we
        self.w_line[u], self.w_atomic[u] = ins.line, atomic
        self.r_t[u] = NOBODY
