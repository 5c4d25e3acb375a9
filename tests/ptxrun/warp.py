"""Warp-wide instructions: shuffles, votes, matrix fragments.

They are registered in ops.BIND like any other instruction, but the scheduler
only runs them once all threads named by the member mask have arrived.
"""

import numpy as np

from . import numerics as nu
from .memory import Group
from .ops import DT, address, op, types_of, unsupported
from .parser import SINK, Pair, Reg, Vec

FULL = 0xFFFFFFFF


def member_mask(m, ins):
    """The member-mask operand (None for the .aligned matrix instructions: every thread of the warp)."""
    base = ins.parts[0]
    if base == "bar":
        return m.src(ins.operands[0], "b32")
    if base in ("mma", "ldmatrix", "stmatrix", "movmatrix"):
        return None
    if "sync" not in ins.parts:
        unsupported(ins, "warp instructions without .sync")
    return m.src(ins.operands[-1], "b32")


def _pair(o):
    return (o.first, o.second) if isinstance(o, Pair) else (o, SINK)


@op("shfl")
def shfl(m, ins):
    kind = ins.parts[2]
    first, second = _pair(ins.operands[0])
    d, p = m.dst(first, "b32"), m.dst(second, "pred")
    value = ins.operands[1]
    src = m.reg(value).view(np.uint32) if isinstance(value, Reg) else None
    const = m.src(value, "b32") if src is None else None
    b, c, mask = (m.src(o, "b32") for o in ins.operands[2:5])

    def run(g):
        s = g.sel
        lane = m.lane[s]
        bv = (np.asarray(b[s]) & 31).astype(np.int64)
        cv = np.asarray(c[s]).astype(np.int64)
        seg, clamp = (cv >> 8) & 31, cv & 31
        low = lane & seg
        high = low | (clamp & ~seg & 31)
        if kind == "up":
            j = lane - bv
            ok = j >= high
        elif kind == "down":
            j = lane + bv
            ok = j <= high
        elif kind == "bfly":
            j = lane ^ bv
            ok = j <= high
        else:
            j = low | (bv & ~seg & 31)
            ok = j <= high
        j = np.where(ok, j, lane)
        if src is None:
            r = np.broadcast_to(const[s], g.n)
        else:
            j_in = np.minimum(j, m.warp_lanes[s] - 1)
            r = src[m.warp_first[s] + j_in]
            mk = np.asarray(mask[s])
            if g.n != m.T or m.ragged or not (mk == FULL).all():
                # reading from a thread that does not take part is undefined: give poison
                here = (m.present(g)[m.warp[s]] & mk) >> j.astype(np.uint32) & 1
                r = np.where(here != 0, r, np.uint32(FULL))
        d[s] = r
        p[s] = ok

    return run


@op("vote")
def vote(m, ins):
    kind = ins.parts[2]
    d = m.dst(ins.operands[0], "b32" if kind == "ballot" else "pred")
    a, mask = m.src(ins.operands[1], "pred"), m.src(ins.operands[2], "b32")

    def run(g):
        s = g.sel
        yes = np.broadcast_to(np.asarray(a[s]), g.n)
        w = m.warp[s]
        mk = np.asarray(mask[s])
        everyone = m.present(g)[w] & mk
        votes = m.lane_bits(g.idx[yes])[w] & mk
        d[s] = {
            "ballot": lambda: votes,
            "all": lambda: votes == everyone,
            "any": lambda: votes != 0,
            "uni": lambda: (votes == everyone) | (votes == 0),
        }[kind]()

    return run


def _teams(m, g, mask, value=None):
    """Number threads by (warp, member mask[, value])."""
    key = m.warp[g.sel].astype(np.uint64) << np.uint64(32) | np.asarray(mask[g.sel]).astype(np.uint64)
    _, team = np.unique(key, return_inverse=True)
    if value is not None:
        _, v = np.unique(value, return_inverse=True)
        _, team = np.unique(team.astype(np.int64) * (len(value) + 1) + v, return_inverse=True)
    return team


@op("match")
def match(m, ins):
    ty = types_of(ins)[-1]
    first, second = _pair(ins.operands[0])
    d, p = m.dst(first, "b32"), m.dst(second, "pred")
    a, mask = m.src(ins.operands[1], ty), m.src(ins.operands[2], "b32")
    every = "all" in ins.parts

    def run(g):
        s = g.sel
        value = np.broadcast_to(a[s], g.n)
        team = _teams(m, g, mask, value)
        bits = np.bincount(team, weights=m.lane_bit[s]).astype(np.uint32)[team]
        if every:
            same = bits == (m.present(g)[m.warp[s]] & np.asarray(mask[s]))
            d[s] = np.where(same, bits, 0)
            p[s] = same
        else:
            d[s] = bits

    return run


@op("redux")
def redux(m, ins):
    ty = types_of(ins)[-1]
    f = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[ins.parts[2]]
    d, a, mask = m.dst(ins.operands[0], ty), m.src(ins.operands[1], ty), m.src(ins.operands[2], "b32")

    def run(g):
        team = _teams(m, g, mask)
        order = np.argsort(team, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(team[order]) != 0])
        total = f.reduceat(np.broadcast_to(a[g.sel], g.n)[order], starts, dtype=DT[ty])
        d[g.sel] = total[team]

    return run


@op("elect")
def elect(m, ins):
    first, second = _pair(ins.operands[0])
    d, p = m.dst(first, "b32"), m.dst(second, "pred")
    mask = m.src(ins.operands[1], "b32")

    def run(g):
        team = _teams(m, g, mask)
        lead = np.full(team.max() + 1, 32, np.int64)
        np.minimum.at(lead, team, m.lane[g.sel])
        d[g.sel] = lead[team]
        p[g.sel] = lead[team] == m.lane[g.sel]

    return run


@op("bar", "barrier")
def bar_warp(m, ins):
    def run(g):
        here = m.present(g)
        m.warp_epoch[(here == m.alive_mask) & (here != 0)] += 1
        m.warp_barriers += int(np.count_nonzero(here))

    return run


# ---------------------------------------------------------------- matrix fragments
_LANE = np.arange(32)
_G, _T = _LANE >> 2, _LANE & 3


def _warps(m, g, ins):
    if g.n % 32:
        unsupported(ins, "needs full warps")
    return g.idx.reshape(-1, 32)


def _elements(raw, ty):
    """(W, 32) registers -> (W, 32, elements per register) in binary64."""
    raw = np.ascontiguousarray(raw)
    w = raw.shape[0]
    if ty == "f16":
        return raw.view(np.float16).reshape(w, 32, 2).astype(np.float64)
    if ty == "bf16":
        return nu.bf16_to_f32(raw.view(np.uint16)).reshape(w, 32, 2).astype(np.float64)
    if ty == "tf32":  # the hardware ignores the low 13 bits
        return (raw & np.uint32(0xFFFFE000)).view(np.float32).reshape(w, 32, 1).astype(np.float64)
    if ty in ("s8", "u8"):
        return raw.view(DT[ty]).reshape(w, 32, 4).astype(np.float64)
    raise KeyError(ty)


@op("mma")
def mma(m, ins):
    shape = next((p for p in ins.parts if p.startswith("m16n8k")), None)
    dty, aty, bty, cty = types_of(ins)[-4:]
    if shape is None or "row" not in ins.parts or "col" not in ins.parts or "sp" in ins.parts:
        unsupported(ins)
    K = int(shape[6:])
    per = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}
    if aty not in per or bty not in per or per[aty] != per[bty] or dty not in ("f32", "f16", "s32"):
        unsupported(ins)
    e = per[aty]
    D, A, B, C = (list(o.items) if isinstance(o, Vec) else [o] for o in ins.operands[:4])
    nc = 2 if dty == "f16" else 4
    if (len(A), len(B), len(C), len(D)) != (K // (2 * e), K // (4 * e), nc, nc):
        unsupported(ins, "fragment sizes")
    dregs = [m.dst(x, "b32") for x in D]
    read = lambda items: [m.full(x, "b32") for x in items]
    aregs, bregs, cregs = read(A), read(B), read(C)
    i = np.arange(e)
    # register r of A holds rows g (+8 if r is odd), of B column g; k runs over 4e values per register (pair)
    a_row = [np.broadcast_to((_G + 8 * (r & 1))[:, None], (32, e)) for r in range(len(A))]
    a_k = [_T[:, None] * e + i + 4 * e * (r >> 1) for r in range(len(A))]
    b_k = [_T[:, None] * e + i + 4 * e * r for r in range(len(B))]
    b_n = np.broadcast_to(_G[:, None], (32, e))
    c_row = [_G, _G, _G + 8, _G + 8]
    c_col = [2 * _T, 2 * _T + 1] * 2
    satfinite = "satfinite" in ins.parts

    def run(g):
        w = _warps(m, g, ins)
        n = len(w)
        a, b, c = np.zeros((n, 16, K)), np.zeros((n, K, 8)), np.zeros((n, 16, 8))
        for r, x in enumerate(aregs):
            a[:, a_row[r], a_k[r]] = _elements(x[w], aty)
        for r, x in enumerate(bregs):
            b[:, b_k[r], b_n] = _elements(x[w], bty)
        if cty == "f16":
            for r, x in enumerate(cregs):
                v = _elements(x[w], "f16")
                c[:, c_row[2 * r], c_col[0]] = v[:, :, 0]
                c[:, c_row[2 * r], c_col[1]] = v[:, :, 1]
        else:
            for r, x in enumerate(cregs):
                c[:, c_row[r], c_col[r]] = np.ascontiguousarray(x[w]).view(DT[cty])
        out = a @ b + c
        flat = w.ravel()
        if dty == "f16":
            h = out.astype(np.float16).view(np.uint16).astype(np.uint32)
            for r, d in enumerate(dregs):
                lo, hi = h[:, c_row[2 * r], c_col[0]], h[:, c_row[2 * r], c_col[1]]
                d[flat] = (lo | hi << np.uint32(16)).ravel()
        else:
            if dty == "s32":
                out = out.astype(np.int64)
                out = (np.clip(out, -(2**31), 2**31 - 1) if satfinite else out).astype(np.int32)
            else:
                out = out.astype(np.float32)
            for r, d in enumerate(dregs):
                d[flat] = np.ascontiguousarray(out[:, c_row[r], c_col[r]]).view(np.uint32).ravel()
        m.mma_flops += 2 * 16 * 8 * K * n

    return run


def _matrix_count(ins):
    if "b16" not in ins.parts or "m8n8" not in ins.parts:
        unsupported(ins)
    return next(int(p[1:]) for p in ins.parts if p in ("x1", "x2", "x4"))


@op("ldmatrix")
def ldmatrix(m, ins):
    n = _matrix_count(ins)
    dst = ins.operands[0]
    outs = [m.dst(x, "b32") for x in (dst.items if isinstance(dst, Vec) else [dst])]
    at, trans = address(m, ins.operands[1], ins), "trans" in ins.parts

    def run(g):
        w = _warps(m, g, ins)
        rows = np.arange(g.n).reshape(-1, 32)[:, : 8 * n].ravel()  # threads that give row addresses
        data = m.memory.load("shared", at(g)[rows], 16, Group(g.idx[rows]), ins)
        t = data.view(np.uint16).reshape(len(w), n, 8, 8)
        if trans:
            t = np.ascontiguousarray(t.swapaxes(2, 3))
        frag = t.view(np.uint32).reshape(len(w), n, 32)
        for k, d in enumerate(outs):
            d[g.sel] = frag[:, k].ravel()

    return run


@op("stmatrix")
def stmatrix(m, ins):
    n = _matrix_count(ins)
    src = ins.operands[1]
    srcs = [m.full(x, "b32") for x in (src.items if isinstance(src, Vec) else [src])]
    at, trans = address(m, ins.operands[0], ins), "trans" in ins.parts

    def run(g):
        w = _warps(m, g, ins)
        frag = np.stack([x[w] for x in srcs], axis=1)  # (W, n, 32)
        t = np.ascontiguousarray(frag).view(np.uint16).reshape(len(w), n, 8, 8)
        if trans:
            t = np.ascontiguousarray(t.swapaxes(2, 3))
        rows = np.arange(g.n).reshape(-1, 32)[:, : 8 * n].ravel()
        data = t.reshape(-1, 8).view(np.complex128).ravel()
        m.memory.store("shared", at(g)[rows], 16, data, Group(g.idx[rows]), ins)

    return run


@op("movmatrix")
def movmatrix(m, ins):
    d, src = m.dst(ins.operands[0], "b32"), m.full(ins.operands[1], "b32")

    def run(g):
        w = _warps(m, g, ins)
        t = np.ascontiguousarray(src[w]).view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
        d[g.sel] = np.ascontiguousarray(t).view(np.uint32).ravel()

    return run
