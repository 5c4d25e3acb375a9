"""The interpreter: threads, scheduler, barriers, and `launch`."""

import ctypes
import struct
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from . import ops, warp
from .errors import BarrierError, PtxError, StepLimit
from .memory import (
    GLOBAL_BASE,
    GUARD,
    LOCAL_BASE,
    RAW,
    SHARED_BASE,
    SHARED_START,
    Group,
    Memory,
    RaceDetector,
    Region,
    Space,
    group_or_none,
)
from .parser import SINK, TYPE_BYTES, Imm, Instr, Mem, Not, Pair, Reg, Special, Sym, Vec, is_block_barrier, lower, parse

SHARED_LIMIT = {"sm_70": 98304, "sm_75": 65536, "sm_80": 166912, "sm_86": 101376, "sm_87": 166912, "sm_89": 101376}
DEFAULT_SHARED_LIMIT = 232448  # sm_90 and sm_100
LOCAL_START = 256
MAX_DEPTH = 64


# ---------------------------------------------------------------- operands that are not registers
class Const:
    """A value that is the same for every thread; indexable like a register array."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __getitem__(self, sel):
        return self.value


class _Discard:
    def __setitem__(self, sel, value):
        pass


class _Inverted:
    def __init__(self, arr):
        self.arr = arr

    def __getitem__(self, sel):
        return ~self.arr[sel]


class _Steps:
    """%clock and friends: scheduler steps so far."""

    def __init__(self, m, dtype):
        self.m, self.dtype = m, dtype

    def __getitem__(self, sel):
        return self.dtype(self.m.steps & 0x7FFFFFFF)


class _Narrow:
    """A 16-bit float written to a wider register: its bits, zero-extended."""

    def __init__(self, arr):
        self.arr = arr

    def __setitem__(self, sel, value):
        v = np.asarray(value)
        self.arr[sel] = v.view(RAW[v.dtype.itemsize])


# ---------------------------------------------------------------- results
@dataclass
class BufferUse:
    name: str
    nbytes: int
    bytes_read: int
    bytes_written: int


@dataclass
class Stats:
    """What a launch did.  Counts are per thread unless said otherwise."""

    instructions: int = 0
    by_class: Counter = field(default_factory=Counter)  # "int", "f32", "f64", "ld.global", "branch", ...
    by_op: Counter = field(default_factory=Counter)  # "fma.f32", "ld.global.v4.f32", ...
    global_loads: Counter = field(default_factory=Counter)  # bits -> thread accesses
    global_stores: Counter = field(default_factory=Counter)
    shared_loads: Counter = field(default_factory=Counter)
    shared_stores: Counter = field(default_factory=Counter)
    local_accesses: int = 0
    buffers: dict = field(default_factory=dict)  # name -> BufferUse
    barriers: int = 0  # block barriers completed, summed over blocks
    warp_barriers: int = 0  # bar.warp.sync, summed over warps
    f64: int = 0  # binary64 arithmetic instructions
    mma_flops: int = 0
    shared_bytes: int = 0  # static + dynamic per block
    local_bytes: int = 0  # per thread
    blocks: int = 0
    threads: int = 0
    steps: int = 0  # scheduler steps, a measure of interpretation cost only
    # with profile=True, per warp-wide access:
    global_requests: int = 0
    global_sectors: int = 0  # 32-byte sectors touched
    shared_requests: int = 0
    shared_wavefronts: int = 0  # ideal is one per 128 bytes requested
    bank_conflicts: int = 0  # wavefronts beyond that ideal


def classify(ins):
    base, types = ins.parts[0], ops.types_of(ins)
    ty = types[-1] if types else ""
    if base in ("ld", "ldu", "st", "atom", "red"):
        return f"{'atom' if base == 'red' else 'ld' if base == 'ldu' else base}.{ops.space_of(ins)}"
    if base in ("bra", "brx", "call", "ret", "exit", "trap"):
        return "branch"
    if base in ("bar", "barrier"):
        return "barrier"
    if base in ("shfl", "vote", "match", "redux", "elect", "activemask"):
        return "warp"
    if base in ("mma", "ldmatrix", "stmatrix", "movmatrix"):
        return "matrix"
    if base == "cp":
        return "cp.async"
    if base in ("mov", "cvta", "selp", "slct", "prmt"):
        return "move"
    if base == "cvt":
        return "cvt.f64" if "f64" in types else "cvt"
    if base in ("setp", "set"):
        return "compare.f64" if ty == "f64" else "compare"
    if base in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh") and "approx" in ins.parts and ty != "f64":
        return "special"
    if ty in ("f16", "f16x2", "bf16", "bf16x2"):
        return "f16"
    if ty in ("f32", "f64"):
        return ty
    return "int"


_QUIET = {"rn", "rz", "rm", "rp", "ftz", "approx", "full", "sync", "aligned", "uni", "lo", "row", "col"}


def op_name(ins):
    return ".".join(p for p in ins.parts if p not in _QUIET)


# ---------------------------------------------------------------- arguments
class ArrayArg:
    """A NumPy array passed by numba's array ABI instead of as a bare pointer."""

    def __init__(self, array):
        self.array = array


def _expand(args, prefix="arg"):
    """Flatten to [(value, name)]: ArrayArg into numba's seven-or-more parameters, tuples into their items."""
    flat = []
    for k, a in enumerate(args):
        name = f"{prefix}{k}"
        if isinstance(a, ArrayArg):
            x = a.array
            flat += [(v, name) for v in (0, 0, int(x.size), int(x.itemsize), x, *map(int, x.shape), *map(int, x.strides))]
        elif isinstance(a, (tuple, list)):
            flat += _expand(a, name + ".")
        else:
            flat.append((a, name))
    return flat


def _bounds(x):
    if x.size == 0:
        p = x.ctypes.data
        return p, p
    lo = hi = x.ctypes.data
    for n, s in zip(x.shape, x.strides):
        if s < 0:
            lo += (n - 1) * s
        else:
            hi += (n - 1) * s
    return lo, hi + x.itemsize


def _root(x):
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


class Buffers:
    """Host arrays -> regions of the fake global memory."""

    def __init__(self):
        self.blocks = []  # [host lo, host hi, root address, writable, name, keep-alive]

    def add(self, x, name):
        lo, hi = _bounds(x)
        root = _root(x).ctypes.data
        merged = [lo, hi, root, x.flags.writeable, name, [x]]
        rest = []
        for b in self.blocks:
            if lo < b[1] and b[0] < hi:  # overlaps: one region, so that aliasing is seen
                merged[0], merged[1] = min(merged[0], b[0]), max(merged[1], b[1])
                merged[3] = merged[3] or b[3]
                merged[4] = b[4] if b[4] == merged[4] else f"{b[4]}/{merged[4]}"
                merged[5] = b[5] + merged[5]
            else:
                rest.append(b)
        self.blocks = rest + [merged]

    def place(self, at):
        """Give each block a fake offset keeping its alignment relative to its own allocation."""
        for b in self.blocks:
            at = -(-(at + GUARD) // 256) * 256 + (b[0] - b[2]) % 256
            b.append(at)
            at += b[1] - b[0]
        return at

    def offset_of(self, x):
        if x.size == 0:
            return 256
        lo = x.ctypes.data
        for b in self.blocks:
            if b[0] <= lo < b[1]:
                return b[6] + lo - b[0]
        raise AssertionError

    @staticmethod
    def host_bytes(b):
        n = b[1] - b[0]
        return np.frombuffer((ctypes.c_uint8 * n).from_address(b[0]), np.uint8) if n else np.zeros(0, np.uint8)


@lru_cache(maxsize=64)
def parse_cached(text):
    return parse(text)


def _dim3(x):
    x = (x,) if isinstance(x, (int, np.integer)) else tuple(x)
    x = tuple(int(v) for v in x) + (1,) * (3 - len(x))
    if len(x) != 3 or min(x) < 1:
        raise ValueError(f"bad launch dimension {x}")
    return x


# ---------------------------------------------------------------- block barriers and async copies
class BlockBarrier:
    def __init__(self, nb):
        self.count = np.zeros(nb, np.int64)
        self.expected = np.full(nb, -1, np.int64)
        self.entries = []  # (segment, depth, thread indices, reduction or None)


class CopyQueue:
    """cp.async, made adversarial: the destination is poison from issue until the
    issuing thread's wait, and only then does the data (captured at issue) land."""

    def __init__(self, m):
        self.m = m
        self.group = np.zeros(m.T, np.int64)
        self.pending = []  # (thread indices, physical offsets, size, data, group numbers, instruction)

    def reset(self):
        self.group[:] = 0
        self.pending = []

    def issue(self, g, to, frm, size, have, ins):
        m = self.m
        shared = m.memory.shared
        data = np.zeros(g.n, RAW[size])
        full = np.flatnonzero(have == size)
        if len(full) == g.n:
            data = m.memory.load("global", frm, size, g, ins)
        elif len(full):
            data[full] = m.memory.load("global", frm[full], size, Group(g.idx[full]), ins)
        part = np.flatnonzero((have > 0) & (have < size))
        if len(part):
            raw = data.view(np.uint8).reshape(g.n, size)
            for k in range(int(have[part].max())):
                rows = part[have[part] > k]
                raw[rows, k] = m.memory.load("global", frm[rows] + k, 1, Group(g.idx[rows]), ins)
        phys = shared.locate(to, size, g, ins, m, True)
        m.memory.count("cp.async", "shared", size, g.n)
        poison = np.full(g.n * size, 0xFF, np.uint8).view(RAW[size])
        if shared.race is not None:
            shared.race.write(g, phys, size, ins, np.zeros(g.n, bool), lambda: np.zeros(g.n, bool))
        shared.scatter(phys, size, poison)
        if shared.init is not None:
            shared.mark_init(phys, size, False)
        self.pending.append((g.idx, phys, size, data, self.group[g.idx], ins))

    def commit(self, g):
        self.group[g.sel] += 1

    def wait(self, g, n, ins):
        if not self.pending:
            return
        m = self.m
        here = np.zeros(m.T, bool)
        here[g.idx] = True
        keep = []
        for idx, phys, size, data, gid, issued in self.pending:
            land = here[idx]
            if n >= 0:
                land &= gid < self.group[idx] - n
            if land.all():
                m.memory.write(m.memory.shared, phys, size, data, Group(idx), issued)
            elif land.any():
                m.memory.write(m.memory.shared, phys[land], size, data[land], Group(idx[land]), issued)
                stay = ~land
                keep.append((idx[stay], phys[stay], size, data[stay], gid[stay], issued))
            else:
                keep.append((idx, phys, size, data, gid, issued))
        self.pending = keep


class _Bound:
    __slots__ = ("seg", "ops", "sync", "sync_guard", "sync_mask", "sync_ins", "term", "count")


# ---------------------------------------------------------------- the machine
class Machine:
    def __init__(self, module, entry, grid, block, args, dynamic_shared, sm, options):
        self.module, self.entry = module, entry
        self.grid, self.block_dim = grid, block
        self.opt = options
        self.sm = sm
        self.nt = block[0] * block[1] * block[2]
        self.total_blocks = grid[0] * grid[1] * grid[2]
        limits = entry.directives
        if self.nt > 1024:
            raise PtxError(f"{self.nt} threads per block")
        for d in ("maxntid", "reqntid"):
            if d in limits and (self.nt > int(np.prod(limits[d])) or (d == "reqntid" and self.nt != int(np.prod(limits[d])))):
                raise PtxError(f"block of {self.nt} threads against .{d} {limits[d]}")
        self.guarded = {}
        self.param_store = {}
        self.reachable()
        self.memory = Memory(self)
        self.memory.uninit_raise = options["uninit_shared"] == "raise"
        self.layout(args, dynamic_shared)
        self.lanes()
        self.bind_all()

    # ------------------------------------------------------------ static analysis
    def reachable(self):
        """Functions called from the entry, the registers they use and read, and the symbols they name."""
        self.functions, self.used_regs, self.read_regs, self.symbols = [], {}, set(), {}
        self.recursive = False
        state = {}

        def visit(fn):
            state[fn] = 1
            self.functions.append(fn)
            for ins in fn.items:
                if not isinstance(ins, Instr):
                    continue
                self.scan(ins)
                if ins.parts[0] == "call":
                    callee = self.module.functions.get(ins.operands[0].target)
                    if callee is None or not callee.defined:
                        continue
                    if state.get(callee) == 1:
                        raise NotImplementedError(f"recursion through {callee.name}\n  {ins}")
                    if callee not in state:
                        visit(callee)
            state[fn] = 2

        visit(self.entry)

    def scan(self, ins):
        writes_first = ins.parts[0] not in (
            "st",
            "red",
            "cp",
            "bar",
            "barrier",
            "bra",
            "brx",
            "call",
            "stmatrix",
            "prefetch",
            "prefetchu",
        )

        def walk(o, read):
            if isinstance(o, Reg):
                self.used_regs[o] = True
                if read:
                    self.read_regs.add(o)
            elif isinstance(o, Vec):
                for x in o.items:
                    walk(x, read)
            elif isinstance(o, Pair):
                walk(o.first, read)
                walk(o.second, read)
            elif isinstance(o, Not):
                walk(o.arg, read)
            elif isinstance(o, Mem):
                walk(o.base, True)
            elif isinstance(o, Sym):
                self.symbols[o.name] = True

        for k, o in enumerate(ins.operands):
            walk(o, k > 0 or not writes_first)
        if ins.guard is not None:
            walk(ins.guard, True)

    def is_read(self, reg):
        return not isinstance(reg, Reg) or reg in self.read_regs

    # ------------------------------------------------------------ memory layout
    def layout(self, args, dynamic):
        mem = self.memory
        # shared: every static variable starts on a 128-byte line so overflows land in a gap
        shared = Space("shared", SHARED_BASE, owner=None)
        at, self.shared_at = SHARED_START, {}
        externs = []
        candidates = [v for v in self.module.variables.values() if v.name in self.symbols]
        candidates += [v for f in self.functions for v in f.variables.values()]
        static = 0
        for v in candidates:
            if v.space != "shared":
                continue
            if v.extern and v.nbytes == 0:
                externs.append(v)
                continue
            at = -(-at // max(128, v.align)) * max(128, v.align)
            self.shared_at[v] = at
            shared.add(Region(at, at + v.nbytes, v.name))
            static += v.nbytes
            at += v.nbytes + 128
        at = -(-at // 1024) * 1024 if externs else at
        for v in externs:
            self.shared_at[v] = at
        if externs and dynamic:
            shared.add(Region(at, at + dynamic, "dynamic shared memory"))
            at += dynamic
        limit = SHARED_LIMIT.get(self.sm, DEFAULT_SHARED_LIMIT)
        if static > 49152 or static + dynamic > limit:
            raise PtxError(
                f"{static} bytes of static (at most 49152) and {dynamic} of dynamic shared memory; "
                f"{self.sm} allows {limit} in all"
            )
        self.dynamic, self.static_shared = dynamic, static
        self.shared_stride = -(-(at + 128) // 128) * 128 if self.shared_at else 0
        mem.shared = shared
        # local
        local = Space("local", LOCAL_BASE)
        at, self.local_at = LOCAL_START, {}
        for f in self.functions:
            for v in f.variables.values():
                if v.space == "local":
                    at = -(-at // max(16, v.align)) * max(16, v.align)
                    self.local_at[v] = at
                    local.add(Region(at, at + v.nbytes, v.name))
                    at += v.nbytes + 32
        self.local_bytes = sum(v.nbytes for v in self.local_at)
        self.local_stride = -(-at // 32) * 32 if self.local_at else 0
        mem.local = local
        # global: buffers, module variables, kernel parameters
        flat = _expand(args)
        params = self.entry.params
        if len(flat) != len(params):
            raise TypeError(
                f"{self.entry.name} takes {len(params)} parameters ({', '.join(p.type for p in params)}), got {len(flat)}"
            )
        glob = Space("global", GLOBAL_BASE)
        self.buffers = Buffers()
        for a, name in flat:
            if isinstance(a, np.ndarray) and a.ndim and a.size:
                self.buffers.add(a, name)
        end = self.buffers.place(GUARD)
        for b in self.buffers.blocks:
            glob.add(Region(b[6], b[6] + b[1] - b[0], b[4], b[3]))
        self.global_at = {}
        for v in self.module.variables.values():
            if v.space in ("global", "const") and v.name in self.symbols:
                end = -(-(end + GUARD) // 256) * 256
                self.global_at[v] = end
                glob.add(Region(end, end + v.nbytes, v.name, v.space == "global"))
                end += v.nbytes
        self.param_at = {}
        end = -(-(end + GUARD) // 256) * 256
        first_param, blob = end, bytearray()
        for p, (a, _) in zip(params, flat):
            pad = -len(blob) % p.align
            blob += bytes(pad)
            self.param_at[p] = len(blob)
            blob += self.param_bytes(p, a)
        self.param_blob = bytes(blob)
        self.param_base = first_param
        if blob:
            glob.add(Region(first_param, first_param + len(blob), "kernel parameters", False))
        glob.allocate(end + len(blob) + GUARD)
        for b in self.buffers.blocks:
            glob.bytes[b[6] : b[6] + b[1] - b[0]] = Buffers.host_bytes(b)
        glob.bytes[first_param : first_param + len(blob)] = np.frombuffer(self.param_blob, np.uint8)
        mem.glob = glob
        for v, at in self.global_at.items():
            if v.init:
                raw = b"".join(self.init_bytes(x, v.type) for x in v.init)
                glob.bytes[at : at + len(raw)] = np.frombuffer(raw, np.uint8)

    def init_bytes(self, x, ty):
        n = TYPE_BYTES[ty]
        if isinstance(x, Sym):
            var = self.module.variables[x.name]
            return struct.pack("<Q", self.global_at[var] + GLOBAL_BASE)[:n]
        if x.bits is not None:
            return x.bits.to_bytes(x.nbytes, "little")[:n]
        if isinstance(x.value, float):
            return np.asarray(x.value, ops.DT[ty]).tobytes()
        return (x.value % (1 << 8 * n)).to_bytes(n, "little")

    def param_bytes(self, p, a):
        n = p.nbytes
        where = f"parameter {p.name} (.{p.type})"
        if isinstance(a, np.ndarray) and a.ndim:
            if n != 8 or p.type[0] == "f":
                raise TypeError(f"{where} cannot take an array")
            return struct.pack("<Q", self.buffers.offset_of(a) + GLOBAL_BASE)
        if isinstance(a, (bytes, bytearray)):
            if len(a) != n:
                raise TypeError(f"{where} takes {n} bytes")
            return bytes(a)
        if isinstance(a, (bool, int, float)) and not isinstance(a, np.generic):
            kind = "f" if p.type in ("f32", "f64") else "i"
            if isinstance(a, float) and kind == "i":
                raise TypeError(f"{where} given the Python float {a!r}")
            if kind == "f":
                return np.asarray(a, ops.DT[p.type]).tobytes()
            if not -(1 << 8 * n - 1) <= a < 1 << 8 * n:
                raise OverflowError(f"{a} does not fit {where}")
            return (int(a) % (1 << 8 * n)).to_bytes(n, "little")
        a = np.asarray(a)
        is_float = a.dtype.kind == "f" and p.type in ("f32", "f64")
        is_bits = a.dtype.kind in "iubV" or a.dtype.itemsize == 2
        if a.dtype.itemsize != n or not (is_float or (is_bits and p.type not in ("f32", "f64"))):
            raise TypeError(f"{where} cannot take a {a.dtype}")
        return a.tobytes()

    def generic_base(self, space):
        return {"shared": SHARED_BASE, "local": LOCAL_BASE}.get(space, 0)

    def symbol_address(self, sym, ins):
        v = sym.name
        if isinstance(v, str):
            for f in self.functions:
                if v in f.variables and f.variables[v].space in ("shared", "local"):
                    v = f.variables[v]
                    break
            else:
                if v not in self.module.variables:
                    raise NotImplementedError(f"symbol {v}\n  {ins}")
                v = self.module.variables[v]
        for table, base in (
            (self.shared_at, 0),
            (self.local_at, 0),
            (self.global_at, GLOBAL_BASE),
            (self.param_at, GLOBAL_BASE + self.param_base),
        ):
            if v in table:
                return table[v] + base + sym.offset
        raise NotImplementedError(f"address of {v.name}\n  {ins}")

    # ------------------------------------------------------------ threads
    def lanes(self):
        per_thread = sum(TYPE_BYTES[r.type] for r in self.used_regs) + self.local_stride + self.shared_stride * 2 / self.nt + 64
        lanes = min(self.opt["max_threads"], self.opt["max_bytes"] / per_thread)
        nb = int(max(1, min(self.total_blocks, lanes // self.nt)))
        nt, T = self.nt, nb * self.nt
        self.nb, self.T = nb, T
        t = np.arange(T, dtype=np.int64)
        in_block = t % nt
        wpb = -(-nt // 32)
        self.block = t // nt
        self.warp = self.block * wpb + in_block // 32
        self.nw = nb * wpb
        self.lane = in_block % 32
        self.lane_bit = (np.int64(1) << self.lane).astype(np.float64)
        self.warp_first = t - self.lane
        self.warp_lanes = np.minimum(32, nt - in_block // 32 * 32)
        self.ragged = nt % 32 != 0
        bx, by, _ = self.block_dim
        u = lambda x: np.asarray(x).astype(np.uint32)
        self.tables = {
            "%tid.x": u(in_block % bx),
            "%tid.y": u(in_block // bx % by),
            "%tid.z": u(in_block // (bx * by)),
            "%ctaid.x": u(t * 0),
            "%ctaid.y": u(t * 0),
            "%ctaid.z": u(t * 0),
            "%laneid": u(self.lane),
            "%warpid": u(in_block // 32),
        }
        for name, bits in (
            ("eq", 1 << self.lane),
            ("lt", (1 << self.lane) - 1),
            ("le", (2 << self.lane) - 1),
            ("gt", ~((2 << self.lane) - 1)),
            ("ge", ~((1 << self.lane) - 1)),
        ):
            self.tables["%lanemask_" + name] = (bits & 0xFFFFFFFF).astype(np.uint32)
        self.alive = np.ones(T, bool)
        self.block_epoch = np.zeros(nb, np.int32)
        self.warp_epoch = np.zeros(self.nw, np.int32)
        self.cc = np.zeros(T, bool)
        self.regs = {}
        self.ret_site = {}
        mem = self.memory
        if self.shared_stride:
            mem.shared.stride, mem.shared.owner = self.shared_stride, self.block
            mem.shared.allocate(self.shared_stride * nb, track_init=True)
        if self.local_stride:
            mem.local.stride, mem.local.owner = self.local_stride, t
            mem.local.allocate(self.local_stride * T)
        self.copies = CopyQueue(self)
        self.steps = self.barriers_done = self.warp_barriers = self.mma_flops = 0
        self.sectors = Counter()
        if self.opt["check_races"]:
            gran = min(
                [
                    TYPE_BYTES[ops.types_of(i)[-1]]
                    for f in self.functions
                    for i in f.items
                    if isinstance(i, Instr)
                    and i.parts[0] in ("ld", "st", "atom", "red")
                    and ops.types_of(i)
                    and ops.space_of(i) in ("shared", "generic")
                ]
                + [4]
            )
            if self.shared_stride:
                mem.shared.race = RaceDetector(mem.shared, len(mem.shared.bytes), gran, self)
            if self.opt["check_races"] == "global":
                mem.glob.race = RaceDetector(mem.glob, len(mem.glob.bytes), 1, self)
        if self.opt["profile"]:
            mem.profile = self.profile_access

    def thread_name(self, i):
        i = int(i)
        b, t = divmod(i, self.nt)
        b += self.first_block
        bx, by, _ = self.block_dim
        gx, gy, _ = self.grid
        return f"block ({b % gx},{b // gx % gy},{b // (gx * gy)}) thread ({t % bx},{t // bx % by},{t // (bx * by)})"

    def lane_bits(self, idx):
        """Per warp, the mask of the lanes of these threads."""
        return np.bincount(self.warp[idx], weights=self.lane_bit[idx], minlength=self.nw).astype(np.uint32)

    def present(self, g):
        return self.lane_bits(g.idx)

    # ------------------------------------------------------------ operand access for the binders
    def reg(self, r):
        a = self.regs.get(r)
        if a is None:
            if r.type == "pred":
                a = np.zeros(self.T, bool)
            else:
                a = np.empty(self.T, RAW[TYPE_BYTES[r.type]])
            self.regs[r] = a
        return a

    def src(self, o, ty):
        dt = ops.DT[ty]
        if isinstance(o, Reg):
            a = self.reg(o)
            if a.dtype == bool or ty == "pred":
                if not (a.dtype == bool and ty == "pred"):
                    raise ValueError(f"{o.name} is .{o.type}, used as .{ty}")
                return a
            k = a.dtype.itemsize // np.dtype(dt).itemsize
            if k == 0:
                raise ValueError(f"{o.name} is .{o.type}, used as .{ty}")
            return a.view(dt) if k == 1 else a.view(dt)[::k]
        if isinstance(o, Not):
            return _Inverted(self.src(o.arg, "pred"))
        if isinstance(o, Imm):
            return Const(self.constant(o, ty))
        if isinstance(o, Special):
            return self.special(o.name, dt)
        if isinstance(o, Sym):
            return Const(dt(self.symbol_address(o, o)))
        raise ValueError(f"operand {o}")

    def full(self, o, ty):
        """Like src, but always an array over all threads (for access to other threads' values)."""
        a = self.src(o, ty)
        return np.full(self.T, a.value) if isinstance(a, Const) else a

    @staticmethod
    def constant(o, ty):
        dt = np.dtype(ops.DT[ty])
        if ty == "pred":
            return np.bool_(o.value)
        if o.bits is not None:
            if dt.itemsize == o.nbytes:
                return np.array(o.bits, RAW[o.nbytes]).view(dt)[()]
            return dt.type(o.value)  # 0f.. literal in an f64 instruction or the reverse
        if dt.kind == "f":
            if dt.itemsize == 2 and isinstance(o.value, int):
                return np.array(o.value & 0xFFFF, np.uint16).view(dt)[()]
            return dt.type(o.value)
        if isinstance(o.value, float):
            raise ValueError(f"immediate {o.value} in a .{ty} operand")
        raw = RAW[dt.itemsize]
        return np.array(o.value % (1 << 8 * dt.itemsize), raw).view(dt)[()]

    def dst(self, o, ty):
        if o is SINK:
            return _Discard()
        if not isinstance(o, Reg):
            raise ValueError(f"destination {o}")
        a = self.reg(o)
        dt = np.dtype(ops.DT[ty])
        if (a.dtype == bool) != (ty == "pred"):
            raise ValueError(f"{o.name} is .{o.type}, written as .{ty}")
        if a.dtype.itemsize == dt.itemsize:
            return a.view(dt)
        if a.dtype.itemsize < dt.itemsize:
            raise ValueError(f"{o.name} is .{o.type}, written as .{ty}")
        if dt.kind == "f":
            return _Narrow(a)
        return a.view(f"{'i' if dt.kind == 'i' else 'u'}{a.dtype.itemsize}")

    def halves(self, arr, half):
        v = arr.view(ops.DT[half])
        return v[0::2], v[1::2]

    def src_halves(self, o, half):
        if isinstance(o, Reg):
            return self.halves(self.reg(o), half)
        v = np.atleast_1d(self.constant(o, "b32")).view(ops.DT[half])
        return Const(v[0]), Const(v[1])

    def dst_halves(self, o, half):
        if o is SINK:
            return _Discard(), _Discard()
        return self.halves(self.reg(o), half)

    def special(self, name, dt):
        if name in self.tables:
            a = self.tables[name]
            if np.dtype(dt).itemsize == 4:
                return a.view(dt)
            if name.startswith("%ctaid"):
                raise ValueError("block index in a register that is not 32 bits")
            return a.astype(dt)
        if name.startswith(("%clock", "%globaltimer")):
            return _Steps(self, dt)
        axis = {"x": 0, "y": 1, "z": 2}.get(name[-1]) if "." in name else None
        fixed = {
            "%nwarpid": -(-self.nt // 32),
            "%smid": 0,
            "%nsmid": 1,
            "%gridid": 0,
            "WARP_SZ": 32,
            "%dynamic_smem_size": self.dynamic,
            "%total_smem_size": self.dynamic + self.static_shared,
            "%cluster_ctarank": 0,
            "%cluster_nctarank": 1,
            "%aggr_smem_size": self.dynamic + self.static_shared,
        }
        if name[:-2] == "%ntid":
            v = self.block_dim[axis]
        elif name[:-2] == "%nctaid" or name[:-2] == "%nclusterid":
            v = self.grid[axis]
        elif name[:-2] == "%cluster_ctaid":
            v = 0
        elif name[:-2] == "%cluster_nctaid":
            v = 1
        elif name in fixed:
            v = fixed[name]
        else:
            raise ValueError(f"special register {name}")
        return Const(dt(v))

    def param_view(self, var, off, ty):
        dt = np.dtype(ops.DT[ty])
        if var in self.param_at:
            return Const(np.frombuffer(self.param_blob, dt, 1, self.param_at[var] + off)[0])
        store = self.param_store.get(var)
        if store is None:
            store = self.param_store[var] = np.zeros((self.T, -(-max(var.nbytes, 1) // 16) * 16), np.uint8)
        if off % dt.itemsize or not 0 <= off <= var.nbytes - dt.itemsize:
            raise ValueError(f"offset {off} in parameter {var.name}")
        return store.view(dt)[:, off // dt.itemsize]

    def noisy(self, y, err):
        """With approx_noise, move an approximate result by up to its documented error, sign picked by its bits."""
        if not self.opt["approx_noise"]:
            return y
        bits = np.atleast_1d(y).view(np.uint32) * np.uint32(2654435761)
        return (y * (1 + (bits.astype(np.float64) / 2**31 - 1) * err)).astype(np.float32)

    # ------------------------------------------------------------ binding
    def bind_all(self):
        self.first_block = self.first_thread = 0
        self.segments = []
        first = {}
        for fn in self.functions:
            first[fn] = len(self.segments)
            self.segments += lower(fn, len(self.segments))
        self.first_segment = first
        self.call_results = {}
        self.bound = [self.bind_segment(s) for s in self.segments]

    def bind_segment(self, seg):
        b = _Bound()
        b.seg, b.count = seg, 0
        b.sync = None
        if seg.sync is not None:
            ins = seg.sync
            plain = Instr(ins.op, ins.parts, ins.operands, None, ins.line, ins.text)
            b.sync = ops.bind(self, plain)
            b.sync_ins = ins
            b.sync_guard = None if ins.guard is None else self.src(ins.guard, "pred")
            b.sync_mask = warp.member_mask(self, ins)
        b.ops = [ops.bind(self, i) for i in seg.instrs]
        b.term = self.terminator(seg)
        return b

    def terminator(self, seg):
        ins, nxt = seg.term, seg.index + 1
        push = self.push
        if ins is None:
            return lambda depth, g: push(nxt, depth, g)
        base = ins.parts[0]
        if base == "bra":
            act = lambda depth, g, t=seg.targets[0].index: push(t, depth, g)
        elif base == "brx":
            sel, targets = self.src(ins.operands[0], "u32"), [t.index for t in seg.targets]

            def act(depth, g):
                which = np.broadcast_to(sel[g.sel], g.n)
                for k in np.unique(which):
                    if k >= len(targets):
                        raise PtxError(f"branch index {k} of {len(targets)}\n  {ins}")
                    push(targets[k], depth, Group(g.idx[which == k]))
        elif base in ("ret", "exit"):
            act = self.leave if base == "ret" else self.exit
        elif base == "trap":
            act = lambda depth, g: ops.trap(self, ins, g)
        elif base == "call":
            act = self.binder_call(seg)
        elif is_block_barrier(ins):
            act = self.binder_barrier(seg)
        else:
            ops.unsupported(ins)
        if ins.guard is None:
            return act
        p = self.src(ins.guard, "pred")

        def conditional(depth, g):
            taken = p[g.sel]
            n = int(np.count_nonzero(taken))
            if n == g.n:
                act(depth, g)
            elif n == 0:
                push(nxt, depth, g)
            else:
                push(nxt, depth, Group(g.idx[~taken]))
                act(depth, Group(g.idx[taken]))

        return conditional

    def binder_call(self, seg):
        ins = seg.term
        c = ins.operands[0]
        nxt = seg.index + 1
        callee = self.module.functions.get(c.target)
        if callee is None or not callee.defined:
            if c.target == "vprintf":
                return lambda depth, g: self.push(nxt, depth, g)
            if c.target == "__assertfail":
                return lambda depth, g: ops.trap(self, ins, g)
            raise NotImplementedError(
                f"call of {c.target}, which is not in this module: the kernel needs linking first (numba-cuda's own "
                f"float16/bfloat16 operators do); use integer views with conversions or inline PTX\n  {ins}"
            )
        if [v.nbytes for v in c.args] != [v.nbytes for v in callee.params]:
            raise PtxError(f"arguments do not match {callee.name}\n  {ins}")
        store = lambda v: (self.param_view(v, 0, "b8"), self.param_store[v])[1]
        into = [(store(a), store(p)) for a, p in zip(c.args, callee.params)]
        back = [(store(p), store(a)) for p, a in zip(callee.results, c.results)]
        self.call_results[nxt] = back
        target = self.first_segment[callee]

        def act(depth, g):
            if depth >= MAX_DEPTH:
                raise NotImplementedError(f"calls nested deeper than {MAX_DEPTH}\n  {ins}")
            site = self.ret_site.get(depth)
            if site is None:
                site = self.ret_site[depth] = np.zeros(self.T, np.int64)
            site[g.sel] = nxt
            for frm, to in into:
                n = min(frm.shape[1], to.shape[1])
                to[g.sel, :n] = frm[g.sel, :n]
            self.push(target, depth + 1, g)

        return act

    def leave(self, depth, g):
        if depth == 0:
            return self.exit(depth, g)
        site = self.ret_site[depth - 1][g.sel]
        for k in np.unique(site):
            part = g if len(site) and (site == k).all() else Group(g.idx[site == k])
            for frm, to in self.call_results[int(k)]:
                n = min(frm.shape[1], to.shape[1])
                to[part.sel, :n] = frm[part.sel, :n]
            self.push(int(k), depth - 1, part)

    # ------------------------------------------------------------ scheduler
    def push(self, index, depth, g):
        key = (-depth, index)
        have = self.ready.get(key)
        if have is None:
            self.ready[key] = [g]
            self.born[key] = self.steps
        else:
            have.append(g)

    def run_chunk(self, first_block, blocks):
        n = blocks * self.nt
        self.first_block, self.first_thread = first_block, first_block * self.nt
        b = first_block + self.block
        gx, gy, _ = self.grid
        self.tables["%ctaid.x"][:] = b % gx
        self.tables["%ctaid.y"][:] = b // gx % gy
        self.tables["%ctaid.z"][:] = b // (gx * gy)
        for a in self.regs.values():
            if a.dtype == bool:
                a.fill(False)
            else:
                a.view(np.uint8).fill(0xFF)
        mem = self.memory
        poison = 0 if self.opt["uninit_shared"] == "zero" else 0xFF
        if mem.shared.bytes is not None:
            mem.shared.bytes.fill(poison)
            mem.shared.init.fill(0)
            if mem.shared.race is not None:
                mem.shared.race.forget()
        if mem.local.bytes is not None:
            mem.local.bytes.fill(0xFF)
        self.alive[:] = False
        self.alive[:n] = True
        self.n_alive = n
        self.alive_in_block = np.bincount(self.block[:n], minlength=self.nb)
        self.alive_mask = self.lane_bits(np.arange(n))
        self.copies.reset()
        self.barriers, self.parked = {}, {}
        self.ready, self.born = {}, {}
        self.push(self.first_segment[self.entry], 0, Group(np.arange(n, dtype=np.int64)))
        ready, born, bound = self.ready, self.born, self.bound
        limit = self.opt["max_steps"]
        while ready:
            self.steps += 1
            key = min(ready) if len(ready) > 1 else next(iter(ready))
            if self.steps & 255 == 0:
                if self.steps > limit:
                    s = self.segments[key[1]]
                    raise StepLimit(f"more than {limit} steps; {s.function.name} near line {s.line} is still running")
                old = min(ready, key=born.__getitem__)  # nobody waits for ever behind a spinning loop
                if self.steps - born[old] > 4096:
                    key = old
            parts = ready.pop(key)
            g = parts[0] if len(parts) == 1 else Group(np.sort(np.concatenate([p.idx for p in parts])))
            self.execute(bound[key[1]], -key[0], g)
        if self.parked or any(x.entries for x in self.barriers.values()):
            self.deadlock()

    def execute(self, b, depth, g):
        if b.sync is not None:
            if b.sync_guard is not None:
                yes = b.sync_guard[g.sel]
                n = int(np.count_nonzero(yes))
                if n < g.n:
                    self.push(b.seg.index + 1, depth, Group(g.idx[~yes]))
                    if n == 0:
                        return
                    g = Group(g.idx[yes])
            g = self.assemble(b, depth, g)
            if g is None:
                return
            b.count += g.n
            b.sync(g)
        else:
            b.count += g.n
        for run in b.ops:
            run(g)
        b.term(depth, g)

    def assemble(self, b, depth, g):
        """Hold threads of a warp-synchronous instruction until all members of their mask are there."""
        key = (-depth, b.seg.index)
        waiting = self.parked.pop(key, None)
        if waiting is not None:
            g = Group(np.sort(np.concatenate([waiting, g.idx])))
        mask = b.sync_mask
        if mask is None:
            need = self.alive_mask[self.warp[g.sel]]
            if self.ragged or self.n_alive != self.T:
                short = need != 0xFFFFFFFF
                if short.any():
                    i = int(g.idx[np.flatnonzero(short)[0]])
                    raise BarrierError(f"needs 32 threads in the warp of {self.thread_name(i)}\n  {b.sync_ins}")
        else:
            mask = np.asarray(mask[g.sel])
            outside = (mask >> self.lane[g.sel].astype(np.uint32) & 1) == 0
            if outside.any():
                i = int(g.idx[np.flatnonzero(outside)[0]])
                raise BarrierError(f"{self.thread_name(i)} is not in its own member mask\n  {b.sync_ins}")
            if g.n == self.n_alive:
                return g
            need = mask & self.alive_mask[self.warp[g.sel]]
        if g.n == self.n_alive:
            return g
        here = self.present(g)[self.warp[g.sel]]
        ok = (need & ~here) == 0
        if ok.all():
            return g
        self.parked[key] = g.idx[~ok]
        return group_or_none(g.idx[ok])

    def exit(self, depth, g):
        self.alive[g.sel] = False
        self.n_alive -= g.n
        self.alive_in_block -= np.bincount(self.block[g.sel], minlength=self.nb)
        if self.n_alive == 0:
            return
        self.alive_mask &= ~self.present(g)
        for ident in list(self.barriers):
            self.release(ident)
        if self.parked:  # their masks may be complete now
            parked, self.parked = self.parked, {}
            for (d, index), idx in parked.items():
                self.push(index, -d, Group(idx))

    # ------------------------------------------------------------ block barriers
    def binder_barrier(self, seg):
        ins, nxt = seg.term, seg.index + 1
        p = ins.parts
        operands = list(ins.operands)
        reduce_ = None
        if "red" in p:
            how = next(x for x in p if x in ("popc", "and", "or"))
            dst = self.dst(operands.pop(0), "u32" if how == "popc" else "pred")
            reduce_ = (how, dst, self.src(operands.pop(), "pred"))
        elif "sync" not in p and "arrive" not in p:
            ops.unsupported(ins)
        arrive_only = "arrive" in p
        ident = self.src(operands[0], "u32") if operands else Const(np.uint32(0))
        count = self.src(operands[1], "u32") if len(operands) > 1 else None

        def act(depth, g):
            who = np.unique(np.asarray(ident[g.sel]))
            ids = np.broadcast_to(np.asarray(ident[g.sel]), g.n)
            for k in who:
                part = g if len(who) == 1 else Group(g.idx[ids == k])
                bb = self.barriers.setdefault(int(k), BlockBarrier(self.nb))
                blocks = self.block[part.sel]
                bb.count += np.bincount(blocks, minlength=self.nb)
                if count is not None:
                    bb.expected[blocks] = np.asarray(count[part.sel])
                if arrive_only:
                    self.push(nxt, depth, part)
                else:
                    bb.entries.append((seg, depth, part.idx, reduce_))
                self.release(int(k))

        return act

    def release(self, ident):
        bb = self.barriers[ident]
        want = np.where(bb.expected >= 0, bb.expected, self.alive_in_block)
        done = (bb.count > 0) & (bb.count >= want)
        if not done.any():
            return
        strict = self.opt["strict_barriers"]
        if strict:
            short = done & (bb.expected < 0) & (bb.count < self.nt)
            if short.any():
                k = int(np.flatnonzero(short)[0])
                seg, idx = next((s, i) for s, _, i, _ in bb.entries if (self.block[i] == k).any())
                raise BarrierError(
                    f"barrier in divergent code: {int(bb.count[k])} threads of {self.thread_name(k * self.nt)[: -len(' thread (0,0,0)')]} "
                    f"wait, the other {self.nt - int(bb.count[k])} have exited without it\n  {seg.term}"
                )
        passed, keep = [], []
        for entry in bb.entries:
            seg, depth, idx, red = entry
            go = done[self.block[idx]]
            if not go.any():
                keep.append(entry)
                continue
            if not go.all():
                keep.append((seg, depth, idx[~go], red))
            passed.append((seg, depth, idx if go.all() else idx[go], red))
        if strict and len({s.index for s, *_ in passed}) > 1:
            seen = {}
            for seg, _, idx, _ in passed:
                for k in np.unique(self.block[idx]):
                    other = seen.setdefault(int(k), seg)
                    if other is not seg:
                        raise BarrierError(
                            f"threads of one block meet at different barriers\n  {other.term}\n  {seg.term}\n"
                            f"  (strict_barriers=False allows this)"
                        )
        if passed and passed[0][3] is not None:
            how = passed[0][3][0]
            votes = np.zeros(self.nb, np.int64)
            for _, _, idx, (_, _, pred) in passed:
                g = Group(idx)
                votes += np.bincount(self.block[idx], weights=np.broadcast_to(pred[g.sel], g.n), minlength=self.nb).astype(
                    np.int64
                )
            result = {"popc": votes, "and": votes == bb.count, "or": votes > 0}[how]
        bb.count[done] = 0
        bb.expected[done] = -1
        bb.entries = keep
        self.block_epoch[done] += 1
        self.barriers_done += int(np.count_nonzero(done))
        for seg, depth, idx, red in passed:
            g = Group(idx)
            if red is not None:
                red[1][g.sel] = result[self.block[idx]]
            self.push(seg.index + 1, depth, g)

    def deadlock(self):
        lines = []
        for bb in self.barriers.values():
            for seg, _, idx, _ in bb.entries:
                lines.append(f"{len(idx)} threads, first {self.thread_name(idx[0])}, wait at {seg.term}")
        for (_, index), idx in self.parked.items():
            lines.append(
                f"{len(idx)} threads, first {self.thread_name(idx[0])}, wait for their warp at {self.segments[index].sync}"
            )
        raise BarrierError("deadlock: nobody can run\n  " + "\n  ".join(lines))

    # ------------------------------------------------------------ statistics
    def profile_access(self, what, space, off, size, g):
        c = self.sectors
        w = self.warp[g.sel]
        if space.name == "global":
            pairs = np.unique(w * (1 << 44) + (off >> 5))
            c["global_requests"] += len(np.unique(w))
            c["global_sectors"] += len(pairs)
        elif space.name == "shared":
            # 4-byte accesses are served per warp, 8-byte per half warp, 16-byte per quarter
            part = max(size // 4, 1)
            phase = w * part + self.lane[g.sel] * part // 32
            words = np.repeat(off >> 2, part) + np.tile(np.arange(part), g.n)
            key = np.unique(np.repeat(phase, part) * (1 << 24) + words)
            ph, word = key >> 24, key & 0xFFFFFF
            slot, n = np.unique(ph * 32 + word % 32, return_counts=True)
            first = np.flatnonzero(np.r_[True, np.diff(slot // 32) != 0])
            worst = np.maximum.reduceat(n, first)
            c["shared_requests"] += len(np.unique(w))
            c["shared_wavefronts"] += int(worst.sum())
            c["bank_conflicts"] += int((worst - 1).sum())

    def stats(self):
        s = Stats(
            blocks=self.total_blocks,
            threads=self.total_blocks * self.nt,
            steps=self.steps,
            barriers=self.barriers_done,
            warp_barriers=self.warp_barriers,
            mma_flops=self.mma_flops,
            shared_bytes=self.static_shared + self.dynamic,
            local_bytes=self.local_bytes,
        )
        for b in self.bound:
            for ins in [b.seg.sync, *b.seg.instrs, b.seg.term]:
                if ins is None or not b.count and ins not in self.guarded:
                    continue
                n = self.guarded[ins][0] if ins in self.guarded else b.count
                s.by_class[classify(ins)] += n
                s.by_op[op_name(ins)] += n
        s.instructions = sum(s.by_class.values())
        s.f64 = s.by_class["f64"] + s.by_class["cvt.f64"] + s.by_class["compare.f64"]
        for (what, space, bits), n in self.memory.widths.items():
            if space == "local":
                s.local_accesses += n
            elif what != "atom" and space in ("global", "shared"):
                name = f"{space}_{'loads' if what == 'ld' else 'stores'}"
                if what in ("ld", "st"):
                    getattr(s, name)[bits] += n
        for r in self.memory.glob.regions:
            if r.name != "kernel parameters":
                s.buffers[r.name] = BufferUse(r.name, r.hi - r.lo, r.read, r.written)
        for k, v in self.sectors.items():
            setattr(s, k, v)
        return s

    def copy_back(self):
        for b, r in ((b, r) for b in self.buffers.blocks for r in self.memory.glob.regions if r.lo == b[6]):
            if r.written:
                Buffers.host_bytes(b)[:] = self.memory.glob.bytes[r.lo : r.hi]


def launch(
    ptx,
    entry,
    grid,
    block,
    args,
    *,
    dynamic_shared=0,
    sm="sm_90",
    check_races=False,
    uninit_shared="raise",
    strict_barriers=True,
    profile=False,
    approx_noise=False,
    max_threads=8192,
    max_bytes=1 << 29,
    max_steps=20_000_000,
):
    """Run one kernel of a PTX module on NumPy arrays, in place, and return its Stats.

    args follow the kernel's parameters: arrays become pointers, NumPy scalars go by
    value (their type must match), ArrayArg(x) expands to numba's array ABI.
    check_races       True: shared memory; "global": also global memory
    uninit_shared     "raise", "poison" (0xFF bytes) or "zero" for reads of unwritten shared memory
    strict_barriers   also reject barriers that some threads of the block never reach
    profile           count global sectors and shared-memory bank conflicts
    approx_noise      disturb .approx results within their documented error
    max_threads       threads interpreted at once; more than the grid's total is never used
    """
    if uninit_shared not in ("raise", "poison", "zero"):
        raise ValueError(f"uninit_shared={uninit_shared!r}")
    module = parse_cached(ptx)
    options = dict(
        check_races=check_races,
        uninit_shared=uninit_shared,
        strict_barriers=strict_barriers,
        profile=profile,
        approx_noise=approx_noise,
        max_threads=max_threads,
        max_bytes=max_bytes,
        max_steps=max_steps,
    )
    with np.errstate(all="ignore"):
        m = Machine(module, module.entry(entry), _dim3(grid), _dim3(block), list(args), dynamic_shared, sm, options)
        try:
            for first in range(0, m.total_blocks, m.nb):
                m.run_chunk(first, min(m.nb, m.total_blocks - first))
        finally:
            m.copy_back()
    return m.stats()
