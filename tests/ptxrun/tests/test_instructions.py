"""Every group of instructions against plain Python or NumPy, without numba."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest

from ptxrun import launch

from .snippets import HEAD, NP, apply, kernel

rng = np.random.default_rng(7)
N = 256


def bits(dtype, n=N):
    raw = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    return rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), n, dtype=raw).view(dtype)


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    assert a.dtype == b.dtype
    raw = f"u{a.dtype.itemsize}"
    bad = (a.view(raw) != b.view(raw)) & ~nan
    assert not bad.any(), (np.flatnonzero(bad)[:5], a[bad][:5], b[bad][:5])


EDGES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-40,
        3e38,
        1e-38,
        2147483648.0,
        -2147483904.0,
        4294967296.0,
        1e20,
        -1e20,
    ],
    np.float32,
)


# ---------------------------------------------------------------- integers
@pytest.mark.parametrize("ty", ["u32", "s32", "u64", "s64", "u16", "s16"])
def test_integer_arithmetic(ty):
    dt = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "u16": np.uint16, "s16": np.int16}[ty]
    a, b = bits(dt), bits(dt)
    b[::7] = dt(3)
    w = np.dtype(dt).itemsize * 8
    wrap = lambda v: np.array([int(x) % (1 << w) for x in v], f"u{w // 8}").view(dt)
    A, B = [int(x) for x in a], [int(x) for x in b]
    ins = ((ty, a), (ty, b))
    same(apply(f"add.{ty} %d, %a, %b;", ty, *ins), wrap(x + y for x, y in zip(A, B)))
    same(apply(f"sub.{ty} %d, %a, %b;", ty, *ins), wrap(x - y for x, y in zip(A, B)))
    same(apply(f"mul.lo.{ty} %d, %a, %b;", ty, *ins), wrap(x * y for x, y in zip(A, B)))
    same(apply(f"mul.hi.{ty} %d, %a, %b;", ty, *ins), wrap((x * y) >> w for x, y in zip(A, B)))
    same(apply(f"mad.lo.{ty} %d, %a, %b, %a;", ty, *ins), wrap(x * y + x for x, y in zip(A, B)))
    same(apply(f"mad.hi.{ty} %d, %a, %b, %a;", ty, *ins), wrap((x * y >> w) + x for x, y in zip(A, B)))
    same(apply(f"min.{ty} %d, %a, %b;", ty, *ins), np.minimum(a, b))
    same(apply(f"max.{ty} %d, %a, %b;", ty, *ins), np.maximum(a, b))
    trunc = lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    B1 = [y or 1 for y in B]
    b1 = np.array(B1, dt)
    same(apply(f"div.{ty} %d, %a, %b;", ty, (ty, a), (ty, b1)), wrap(trunc(x, y) for x, y in zip(A, B1)))
    same(apply(f"rem.{ty} %d, %a, %b;", ty, (ty, a), (ty, b1)), wrap(x - y * trunc(x, y) for x, y in zip(A, B1)))
    if ty[0] == "s":
        same(apply(f"abs.{ty} %d, %a;", ty, (ty, a)), wrap(abs(x) for x in A))
        same(apply(f"neg.{ty} %d, %a;", ty, (ty, a)), wrap(-x for x in A))


@pytest.mark.parametrize("ty,wide,dt,wdt", [("u32", "u64", np.uint32, np.uint64), ("s32", "s64", np.int32, np.int64)])
def test_wide_products(ty, wide, dt, wdt):
    a, b, c = bits(dt), bits(dt), bits(wdt)
    same(apply(f"mul.wide.{ty} %d, %a, %b;", wide, (ty, a), (ty, b)), a.astype(wdt) * b.astype(wdt))
    same(apply(f"mad.wide.{ty} %d, %a, %b, %c;", wide, (ty, a), (ty, b), (wide, c)), a.astype(wdt) * b.astype(wdt) + c)


def test_division_by_zero_is_all_ones():
    a = np.array([5, 0, 2**32 - 1], np.uint32)
    zero = np.zeros(3, np.uint32)
    for ty in ("u32", "s32"):
        for op in ("div", "rem"):
            assert (apply(f"{op}.{ty} %d, %a, %b;", ty, (ty, a.view(NP[ty])), (ty, zero)).view(np.uint32) == 0xFFFFFFFF).all()


def test_saturating_add():
    a, b = bits(np.int32), bits(np.int32)
    want = np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32)
    same(apply("add.sat.s32 %d, %a, %b;", "s32", ("s32", a), ("s32", b)), want)


def test_carry_chain_is_a_64_bit_add():
    a, b = bits(np.uint64), bits(np.uint64)
    body = """.reg .u32 %x<6>;
    mov.b64 {%x0, %x1}, %a; mov.b64 {%x2, %x3}, %b;
    add.cc.u32 %x0, %x0, %x2; addc.u32 %x1, %x1, %x3; mov.b64 %d, {%x0, %x1};"""
    same(apply(body, "u64", ("u64", a), ("u64", b)), a + b)
    same(apply(body.replace("add.cc", "sub.cc").replace("addc", "subc"), "u64", ("u64", a), ("u64", b)), a - b)


def test_mad_carry_is_a_128_bit_product():
    a, b = bits(np.uint64), bits(np.uint64)
    body = """{ .reg .u32 a0, a1, b0, b1, r0, r1, r2, r3;
    mov.b64 {a0,a1}, %a; mov.b64 {b0,b1}, %b;
    mul.lo.u32 r0, a0, b0; mul.hi.u32 r1, a0, b0;
    mad.lo.cc.u32 r1, a1, b0, r1; madc.hi.u32 r2, a1, b0, 0;
    mad.lo.cc.u32 r1, a0, b1, r1; madc.hi.cc.u32 r2, a0, b1, r2; addc.u32 r3, 0, 0;
    mad.lo.cc.u32 r2, a1, b1, r2; madc.hi.u32 r3, a1, b1, r3;
    mov.b64 %d, {r2,r3}; }"""
    want = np.array([int(x) * int(y) >> 64 for x, y in zip(a, b)], np.uint64)
    same(apply(body, "u64", ("u64", a), ("u64", b)), want)


def test_shifts_clamp_their_amount():
    n = np.r_[np.arange(70), 200, 2**31].astype(np.uint32)
    a = np.full(len(n), 0xF2345678, np.uint32)
    same(
        apply("shl.b32 %d, %a, %b;", "b32", ("b32", a), ("u32", n)),
        np.array([(0xF2345678 << min(int(k), 40)) & 0xFFFFFFFF for k in n], np.uint32),
    )
    same(
        apply("shr.u32 %d, %a, %b;", "u32", ("u32", a), ("u32", n)),
        np.array([0xF2345678 >> min(int(k), 40) for k in n], np.uint32),
    )
    same(
        apply("shr.s32 %d, %a, %b;", "s32", ("s32", a.view(np.int32)), ("u32", n)),
        np.array([int(a.view(np.int32)[0]) >> min(int(k), 40) for k in n], np.int32),
    )
    same(apply("shr.s32 %d, %a, 40;", "s32", ("s32", a.view(np.int32))), np.full(len(n), -1, np.int32))
    same(
        apply("shl.b64 %d, %a, %b;", "b64", ("b64", a.astype(np.uint64)), ("u32", n)),
        np.array([(0xF2345678 << min(int(k), 64)) & (2**64 - 1) for k in n], np.uint64),
    )


def test_funnel_shift():
    lo, hi, n = bits(np.uint32), bits(np.uint32), rng.integers(0, 64, N).astype(np.uint32)
    both = [(int(h) << 32) | int(x) for x, h in zip(lo, hi)]
    ins = (("u32", lo), ("u32", hi), ("u32", n))
    u = lambda v: np.array([x & 0xFFFFFFFF for x in v], np.uint32)
    same(apply("shf.l.wrap.b32 %d, %a, %b, %c;", "u32", *ins), u((x << (int(k) & 31)) >> 32 for x, k in zip(both, n)))
    same(apply("shf.r.wrap.b32 %d, %a, %b, %c;", "u32", *ins), u(x >> (int(k) & 31) for x, k in zip(both, n)))
    same(apply("shf.l.clamp.b32 %d, %a, %b, %c;", "u32", *ins), u((x << min(int(k), 32)) >> 32 for x, k in zip(both, n)))
    same(apply("shf.r.clamp.b32 %d, %a, %b, %c;", "u32", *ins), u(x >> min(int(k), 32) for x, k in zip(both, n)))


@pytest.mark.parametrize("w", [32, 64])
def test_bit_fields(w):
    dt = f"u{w // 8}"
    a, b = bits(dt), bits(dt)
    pos, n = rng.integers(0, w + 8, N).astype(np.uint32), rng.integers(0, w + 8, N).astype(np.uint32)
    n[:20] = 0

    def extract(x, p, k, signed):
        top = w - 1
        sign = (x >> min(p + k - 1, top)) & 1 if signed and k else 0
        return sum((((x >> (p + i)) & 1) if i < k and p + i <= top else sign) << i for i in range(w))

    def insert(x, y, p, k):
        for i in range(k):
            if p + i < w:
                y = y & ~(1 << (p + i)) | ((x >> i) & 1) << (p + i)
        return y

    ints = lambda v: [int(x) for x in v]
    u = lambda v: np.array(list(v), dt)
    ins = ((f"u{w}", a), ("u32", pos), ("u32", n))
    same(
        apply(f"bfe.u{w} %d, %a, %b, %c;", f"u{w}", *ins),
        u(extract(x, p, k, 0) for x, p, k in zip(ints(a), ints(pos), ints(n))),
    )
    same(
        apply(f"bfe.s{w} %d, %a, %b, %c;", f"u{w}", *ins),
        u(extract(x, p, k, 1) for x, p, k in zip(ints(a), ints(pos), ints(n))),
    )
    got = apply(f"bfi.b{w} %d, %a, %b, %c, %e;", f"u{w}", (f"u{w}", a), (f"u{w}", b), ("u32", pos), ("u32", n))
    same(got, u(insert(x, y, p, k) for x, y, p, k in zip(ints(a), ints(b), ints(pos), ints(n))))
    a[:3] = [0, 1, 2**w - 1]
    same(apply(f"popc.b{w} %d, %a;", "u32", (f"u{w}", a)), np.array([bin(x).count("1") for x in ints(a)], np.uint32))
    same(apply(f"clz.b{w} %d, %a;", "u32", (f"u{w}", a)), np.array([w - x.bit_length() for x in ints(a)], np.uint32))
    same(apply(f"brev.b{w} %d, %a;", f"u{w}", (f"u{w}", a)), u(int(f"{x:0{w}b}"[::-1], 2) for x in ints(a)))
    find = [(x.bit_length() - 1) & 0xFFFFFFFF for x in ints(a)]
    same(apply(f"bfind.u{w} %d, %a;", "u32", (f"u{w}", a)), np.array(find, np.uint32))


def test_lop3_prmt_selp_logic():
    a, b, c = bits(np.uint32), bits(np.uint32), bits(np.uint32)
    ins = (("b32", a), ("b32", b), ("b32", c))
    for lut in (0x00, 0x96, 0xE8, 0xCA, 0xFF, 0x1D):
        f = sum(
            (((a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)) for k in range(8) if lut >> k & 1),
            np.zeros(N, np.uint32),
        )
        same(apply(f"lop3.b32 %d, %a, %b, %c, {lut:#x};", "b32", *ins), f)
    sel = bits(np.uint32)

    def permute(x, y, s):
        raw = struct.pack("<II", x, y)
        out = bytes((0xFF if raw[k & 7] & 0x80 else 0) if k & 8 else raw[k & 7] for k in ((s >> 4 * i) & 15 for i in range(4)))
        return struct.unpack("<I", out)[0]

    want = np.array([permute(int(x), int(y), int(s)) for x, y, s in zip(a, b, sel)], np.uint32)
    same(apply("prmt.b32 %d, %a, %b, %c;", "b32", ("b32", a), ("b32", b), ("b32", sel)), want)
    same(apply("setp.lt.u32 %p, %a, %b; selp.b32 %d, %a, %c, %p;", "b32", *ins), np.where(a < b, a, c))
    same(
        apply("xor.b32 %d, %a, %b; not.b32 %d, %d; or.b32 %d, %d, %c; and.b32 %d, %d, 0xFFFF;", "b32", *ins),
        (~(a ^ b) | c) & np.uint32(0xFFFF),
    )
    same(
        apply("slct.u32.s32 %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("s32", c.view(np.int32))),
        np.where(c.view(np.int32) >= 0, a, b),
    )


def test_dp4a():
    a, b, c = bits(np.uint32), bits(np.uint32), bits(np.int32) // 8
    want = (a.view(np.int8).reshape(-1, 4).astype(np.int64) * b.view(np.int8).reshape(-1, 4)).sum(1) + c
    same(apply("dp4a.s32.s32 %d, %a, %b, %c;", "s32", ("u32", a), ("u32", b), ("s32", c)), want.astype(np.int32))


def test_setp_combinations():
    a, b = rng.integers(-3, 3, N).astype(np.int32), rng.integers(-3, 3, N).astype(np.int32)
    ins = (("s32", a), ("s32", b))
    out = apply(
        """setp.gt.s32 %p, %a, 0; setp.lt.and.s32 %p|%q, %a, %b, %p;
        selp.s32 %d, 1, 0, %p; @%q add.s32 %d, %d, 2;""",
        "s32",
        *ins,
    )
    same(out, ((a < b) & (a > 0)).astype(np.int32) + 2 * ((a >= b) & (a > 0)).astype(np.int32))
    out = apply("setp.eq.s32 %p, %a, 1; setp.ne.xor.s32 %q, %b, 0, !%p; not.pred %q, %q; selp.s32 %d, 7, 9, %q;", "s32", *ins)
    same(out, np.where(~((b != 0) ^ ~(a == 1)), 7, 9).astype(np.int32))
    out = apply("set.lt.u32.s32 %d, %a, %b;", "u32", *ins)
    same(out, np.where(a < b, np.uint32(0xFFFFFFFF), np.uint32(0)))


@pytest.mark.parametrize("cmp", "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split())
def test_float_comparisons(cmp):
    a, b = np.repeat(EDGES, len(EDGES)), np.tile(EDGES, len(EDGES))
    un = np.isnan(a) | np.isnan(b)
    base = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    want = ~un if cmp == "num" else un if cmp == "nan" else base[cmp[:2]] | un if len(cmp) == 3 else base[cmp] & ~un
    out = apply(f"setp.{cmp}.f32 %p, %a, %b; selp.u32 %d, 1, 0, %p;", "u32", ("f32", a), ("f32", b))
    same(out, want.astype(np.uint32))


# ---------------------------------------------------------------- floating point
def exact_f32(q):
    """Correct rounding of a Fraction to binary32."""
    if q == 0:
        return np.float32(0)
    m, e = math.frexp(float(q))
    scale = Fraction(2) ** max(e - 24, -149)
    n = q / scale
    k = n.numerator // n.denominator
    r = n - k
    if r > Fraction(1, 2) or (r == Fraction(1, 2) and k & 1):
        k += 1
    v = k * scale
    v = np.inf if v >= Fraction(2) ** 128 else -np.inf if v <= -(Fraction(2) ** 128) else float(v)
    return np.copysign(np.float32(v), np.float32(-1 if q < 0 else 1))


def test_fma_f32_rounds_once():
    a = rng.standard_normal(N).astype(np.float32)
    b = rng.standard_normal(N).astype(np.float32)
    c = -(a * b)  # heavy cancellation
    c[::3] = rng.standard_normal(len(c[::3]))
    a[:64] = 1 + np.arange(64, dtype=np.float32) * 2**-23  # ties broken by a tiny addend
    b[:64] = 1 + 2**-12
    c[:64] = np.where(np.arange(64) % 2, -1, 1) * np.float32(2.0**-60)
    a[64:96] *= np.float32(2.0**-70)  # subnormal results
    b[64:96] *= np.float32(2.0**-70)
    c[64:96] *= np.float32(2.0**-140)
    want = np.array([exact_f32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c)])
    same(apply("fma.rn.f32 %d, %a, %b, %c;", "f32", ("f32", a), ("f32", b), ("f32", c)), want.astype(np.float32))


def test_fma_f64_rounds_once():
    a, b = rng.standard_normal(N), rng.standard_normal(N)
    c = -(a * b) * (1 + rng.choice([0, 1e-16, 1e-9, 1.0], N))
    want = np.array([float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c)])
    same(apply("fma.rn.f64 %d, %a, %b, %c;", "f64", ("f64", a), ("f64", b), ("f64", c)), want)


@pytest.mark.parametrize("op,f", [("add", lambda x, y: x + y), ("sub", lambda x, y: x - y), ("mul", lambda x, y: x * y)])
def test_directed_rounding(op, f):
    a = rng.standard_normal(N).astype(np.float32)
    b = (rng.standard_normal(N) * 10.0 ** rng.integers(-9, 2, N)).astype(np.float32)
    got = {m: apply(f"{op}.{m}.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b)) for m in ("rm", "rp", "rz", "rn")}
    for i in range(N):
        q = f(Fraction(float(a[i])), Fraction(float(b[i])))
        down, up = Fraction(float(got["rm"][i])), Fraction(float(got["rp"][i]))
        assert down <= q <= up
        assert down == up or np.nextafter(got["rm"][i], np.float32(np.inf)) == got["rp"][i]
        assert got["rz"][i] == (got["rm"][i] if q > 0 else got["rp"][i])
        assert got["rn"][i] == exact_f32(q)


def test_f32_arithmetic_and_ftz():
    a, b = bits(np.float32), bits(np.float32)
    a[: len(EDGES)] = EDGES
    ins = (("f32", a), ("f32", b))
    with np.errstate(all="ignore"):
        same(apply("add.f32 %d, %a, %b;", "f32", *ins), a + b)
        same(apply("mul.rn.f32 %d, %a, %b;", "f32", *ins), a * b)
        same(apply("div.rn.f32 %d, %a, %b;", "f32", *ins), a / b)
        same(apply("sqrt.rn.f32 %d, %a;", "f32", ("f32", a)), np.sqrt(a))
        same(apply("rcp.rn.f32 %d, %a;", "f32", ("f32", a)), np.float32(1) / a)
    same(apply("neg.f32 %d, %a;", "f32", ("f32", a)), -a)
    same(apply("abs.f32 %d, %a;", "f32", ("f32", a)), np.abs(a))
    same(apply("copysign.f32 %d, %a, %b;", "f32", *ins), np.copysign(b, a))
    tiny = np.array([1e-39, -1e-39, 1e-30, 2e-38], np.float32)
    same(apply("add.ftz.f32 %d, %a, 0f00000000;", "f32", ("f32", tiny)), np.array([0, 0, 1e-30, 2e-38], np.float32))
    same(apply("mul.ftz.f32 %d, %a, 0f3F000000;", "f32", ("f32", tiny)), np.array([0, -0.0, 5e-31, 0], np.float32))
    same(
        apply("add.sat.f32 %d, %a, %b;", "f32", ("f32", [0.25, 3, -1, np.nan]), ("f32", [0.5, 0, 0, 0])),
        np.array([0.75, 1, 0, 0], np.float32),
    )


def test_min_max_nan_and_zero():
    a = np.array([0.0, -0.0, np.nan, 1, np.nan], np.float32)
    b = np.array([-0.0, 0.0, 2, np.nan, np.nan], np.float32)
    ins = (("f32", a), ("f32", b))
    same(apply("min.f32 %d, %a, %b;", "f32", *ins), np.array([-0.0, -0.0, 2, 1, np.nan], np.float32))
    same(apply("max.f32 %d, %a, %b;", "f32", *ins), np.array([0, 0, 2, 1, np.nan], np.float32))
    same(apply("max.NaN.f32 %d, %a, %b;", "f32", *ins), np.array([0, 0, np.nan, np.nan, np.nan], np.float32))


def test_number_classes():
    x = np.array([0.0, -0.0, 1.5, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    want = {
        "finite": [1, 1, 1, 1, 0, 0, 0],
        "infinite": [0, 0, 0, 0, 1, 1, 0],
        "number": [1, 1, 1, 1, 1, 1, 0],
        "notanumber": [0, 0, 0, 0, 0, 0, 1],
        "normal": [1, 1, 1, 0, 0, 0, 0],
        "subnormal": [0, 0, 0, 1, 0, 0, 0],
    }
    for kind, w in want.items():
        assert list(apply(f"testp.{kind}.f32 %p, %a; selp.u32 %d, 1, 0, %p;", "u32", ("f32", x))) == w


@pytest.mark.parametrize(
    "op,f",
    [
        ("sin", np.sin),
        ("cos", np.cos),
        ("ex2", np.exp2),
        ("lg2", np.log2),
        ("tanh", np.tanh),
        ("sqrt", np.sqrt),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("rcp", lambda x: 1 / x),
    ],
)
def test_approximations_are_rounded_exact_values(op, f):
    x = rng.uniform(0.01, 8, N).astype(np.float32)
    same(apply(f"{op}.approx.f32 %d, %a;", "f32", ("f32", x)), f(x.astype(np.float64)).astype(np.float32))
    noisy = apply(f"{op}.approx.f32 %d, %a;", "f32", ("f32", x), approx_noise=True)
    want = f(x.astype(np.float64))
    err = np.abs(noisy - want) / np.abs(want)
    assert 0 < err.max() < 1e-3


def test_division_approximations():
    a, b = rng.standard_normal(N).astype(np.float32), rng.standard_normal(N).astype(np.float32)
    b[:2] = 2.0**127
    got = apply("div.approx.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b))
    assert (got[:2] == 0).all()  # documented behaviour for huge divisors
    same(got[2:], (a / b)[2:])
    same(apply("div.full.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b)), a / b)


# ---------------------------------------------------------------- conversions
@pytest.mark.parametrize("mode,f", [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)])
@pytest.mark.parametrize(
    "ty,dt",
    [("s32", np.int32), ("u32", np.uint32), ("s64", np.int64), ("u64", np.uint64), ("u16", np.uint16), ("s16", np.int16)],
)
def test_float_to_int(mode, f, ty, dt):
    x = np.r_[EDGES, (rng.standard_normal(100) * 1000).astype(np.float32)].astype(np.float32)
    info = np.iinfo(dt)
    nan = 0 if info.bits < 64 else (info.min or 1 << 63)
    want = [
        nan
        if math.isnan(v)
        else min(max(v, info.min), info.max)
        if math.isinf(v)
        else min(max(int(f(np.float64(v))), info.min), info.max)
        for v in x
    ]
    want = [int(w) if not isinstance(w, float) else (info.max if w > 0 else info.min) for w in want]
    same(apply(f"cvt.{mode}.{ty}.f32 %d, %a;", ty, ("f32", x)), np.array(want, dt))
    same(apply(f"cvt.{mode}.f32.f32 %d, %a;", "f32", ("f32", x)), f(x))


def test_int_to_float():
    for ty, dt in (("s32", np.int32), ("u32", np.uint32), ("s64", np.int64), ("u64", np.uint64)):
        x = bits(dt)
        x[:4] = [2**24 + 1, 2**24 + 3, 16777217, 0]
        want = np.array([exact_f32(Fraction(int(v))) for v in x], np.float32)
        same(apply(f"cvt.rn.f32.{ty} %d, %a;", "f32", (ty, x)), want)
        rz = apply(f"cvt.rz.f32.{ty} %d, %a;", "f32", (ty, x))
        assert all(abs(Fraction(float(r))) <= abs(int(v)) for r, v in zip(rz, x))
        assert (np.abs(rz - want) <= np.spacing(np.abs(want))).all()


def test_integer_widths():
    a = bits(np.int32)
    same(apply("cvt.s64.s32 %d, %a;", "s64", ("s32", a)), a.astype(np.int64))
    same(apply("cvt.u64.u32 %d, %a;", "u64", ("u32", a.view(np.uint32))), a.view(np.uint32).astype(np.uint64))
    same(apply("cvt.u32.u64 %d, %a;", "u32", ("u64", bits(np.uint64) * 0 + 0x1_2345_6789)), np.full(N, 0x23456789, np.uint32))
    same(apply("cvt.s32.s8 %d, %a;", "s32", ("s32", a)), a.astype(np.int8).astype(np.int32))
    same(apply("cvt.u32.u16 %d, %a;", "u32", ("u32", a.view(np.uint32))), a.view(np.uint32) & np.uint32(0xFFFF))
    same(apply("cvt.sat.u8.s32 %d, %a;", "u16", ("s32", a // 2**22)), np.clip(a // 2**22, 0, 255).astype(np.uint16))


def test_f16_conversions():
    h = np.arange(65536, dtype=np.uint16).view(np.float16)
    for part in np.split(h, 64):
        same(apply("cvt.f32.f16 %d, %a;", "f32", ("f16", part)), part.astype(np.float32))
    x = np.r_[EDGES, (rng.standard_normal(200) * 10.0 ** rng.integers(-8, 6, 200)).astype(np.float32)].astype(np.float32)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    want = np.where(np.isnan(x), np.uint16(0x7FFF), want.view(np.uint16))
    same(apply("cvt.rn.f16.f32 %d, %a;", "f16", ("f32", x)).view(np.uint16), want)
    rz = apply("cvt.rz.f16.f32 %d, %a;", "f16", ("f32", x)).astype(np.float64)
    assert (np.abs(rz[:8]) <= np.abs(x[:8])).all()
    packed = apply("cvt.rn.f16x2.f32 %d, %a, %b;", "b32", ("f32", x), ("f32", -x))
    same((packed >> 16).astype(np.uint16), want)


def bf16_reference(x):
    b = int(np.float32(x).view(np.uint32))
    if np.isnan(x):
        return 0x7FFF
    low, top = b & 0xFFFF, b >> 16
    return top + (low > 0x8000 or (low == 0x8000 and top & 1))


def test_bf16_conversions():
    x = np.r_[EDGES, bits(np.float32, 400)].astype(np.float32)
    x[30:34] = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00008000], np.uint32).view(np.float32)
    want = np.array([bf16_reference(v) for v in x], np.uint16)
    same(apply("cvt.rn.bf16.f32 %d, %a;", "b16", ("f32", x)), want)
    both = apply("cvt.rn.bf16x2.f32 %d, %a, %b;", "b32", ("f32", x), ("f32", x[::-1]))
    same((both >> 16).astype(np.uint16), want)
    same((both & 0xFFFF).astype(np.uint16), want[::-1])
    back = apply("cvt.f32.bf16 %d, %a;", "f32", ("b16", want))
    same(back, (want.astype(np.uint32) << 16).view(np.float32))
    relu = apply("cvt.rn.relu.bf16.f32 %d, %a;", "b16", ("f32", np.array([-3, 3, -0.0, 0.5], np.float32)))
    assert list(relu) == [0, 0x4040, 0x8000, 0x3F00] or list(relu) == [0, 0x4040, 0, 0x3F00]


def test_tf32_conversion():
    x = np.array([0x3F801000, 0x3F803000, 0x3F800FFF, 0x7F800000], np.uint32).view(np.float32)
    assert [hex(v) for v in apply("cvt.rna.tf32.f32 %d, %a;", "b32", ("f32", x))] == [
        "0x3f802000",
        "0x3f804000",
        "0x3f800000",
        "0x7f800000",
    ]


def test_half_arithmetic():
    a, b, c = (rng.standard_normal(N).astype(np.float16) for _ in range(3))
    ins = (("f16", a), ("f16", b), ("f16", c))
    same(apply("add.f16 %d, %a, %b;", "f16", *ins[:2]), a + b)
    same(apply("mul.f16 %d, %a, %b;", "f16", *ins[:2]), a * b)
    exact = a.astype(np.float64) * b + c
    same(apply("fma.rn.f16 %d, %a, %b, %c;", "f16", *ins), exact.astype(np.float16))
    pack = lambda x, y: x.view(np.uint16).astype(np.uint32) | y.view(np.uint16).astype(np.uint32) << 16
    got = apply("fma.rn.f16x2 %d, %a, %b, %c;", "b32", ("b32", pack(a, b)), ("b32", pack(b, b)), ("b32", pack(c, a)))
    same(got, pack(exact.astype(np.float16), (b.astype(np.float64) * b + a).astype(np.float16)))
    got = apply("max.f16x2 %d, %a, %b;", "b32", ("b32", pack(a, b)), ("b32", pack(b, c)))
    same(got, pack(np.maximum(a, b), np.maximum(b, c)))


def test_bf16_arithmetic():
    bf = lambda x: np.array([bf16_reference(v) for v in np.float32(x)], np.uint16)
    up = lambda u: (u.astype(np.uint32) << 16).view(np.float32)
    a, b, c = (bf(rng.standard_normal(N)) for _ in range(3))
    exact = up(a).astype(np.float64) * up(b) + up(c)
    want = bf(exact.astype(np.float32))
    same(apply("fma.rn.bf16 %d, %a, %b, %c;", "b16", ("b16", a), ("b16", b), ("b16", c)), want)
    two = lambda x: x.astype(np.uint32) | x.astype(np.uint32) << 16
    same(apply("fma.rn.bf16x2 %d, %a, %b, %c;", "b32", ("b32", two(a)), ("b32", two(b)), ("b32", two(c))), two(want))
    same(apply("neg.bf16x2 %d, %a;", "b32", ("b32", two(a))), two(a ^ 0x8000))


# ---------------------------------------------------------------- moves, memory forms
def test_vectors_and_packing():
    x = np.arange(64, dtype=np.float32)
    out = np.zeros(64, np.float32)
    ptx = kernel(
        """shl.b32 %r0, %t, 4; cvt.u64.u32 %rd0, %r0; add.u64 %rd1, %x, %rd0; add.u64 %rd2, %out, %rd0;
        ld.global.nc.L1::no_allocate.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1];
        mov.b64 %rd3, {%f0, %f1}; mov.b64 {%f1, %f0}, %rd3;
        mov.b32 %r1, %f2; mov.b32 {%rs0, %rs1}, %r1; mov.b32 %r1, {%rs0, %rs1}; mov.b32 %f2, %r1;
        st.global.v2.f32 [%rd2], {%f0, %f1}; st.global.cs.v2.f32 [%rd2+8], {%f3, %f2};""",
        ("x", "out"),
    )
    s = launch(ptx, "k", 1, 16, [x, out])
    same(out, x.reshape(-1, 2)[:, ::-1].ravel())
    assert s.global_loads == {128: 16} and s.global_stores == {64: 32}
    assert s.buffers["arg0"].bytes_read == 256 and s.buffers["arg1"].bytes_written == 256


def test_narrow_loads_extend():
    x = np.arange(-64, 64, dtype=np.int8)
    out = np.zeros(128, np.int32)
    body = "cvt.u64.u32 %rd0, %t; add.u64 %rd0, %x, %rd0; ld.global.{0} %r0, [%rd0]; add.u64 %rd1, %out, %ta; st.global.u32 [%rd1], %r0;"
    launch(kernel(body.format("s8"), ("x", "out")), "k", 1, 128, [x, out])
    same(out, x.astype(np.int32))
    launch(kernel(body.format("u8"), ("x", "out")), "k", 1, 128, [x, out])
    same(out, x.view(np.uint8).astype(np.int32))


def test_special_registers():
    out = np.zeros(2 * 3 * 48, np.uint32)
    ptx = kernel("""mov.u32 %r0, %tid.y; mov.u32 %r1, %ntid.x; mad.lo.u32 %r2, %r0, %r1, %t;
        mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mad.lo.u32 %r5, %r3, %r4, %w;
        mad.lo.u32 %r6, %r5, 48, %r2; mul.wide.u32 %rd0, %r6, 4; add.u64 %rd0, %out, %rd0;
        mov.u32 %r7, %laneid; mov.u32 %r8, %warpid; mov.u32 %r9, %lanemask_lt; popc.b32 %r9, %r9;
        mad.lo.u32 %r10, %r8, 32, %r7; sub.u32 %r11, %r9, %r7; add.u32 %r10, %r10, %r11; mad.lo.u32 %r10, %r5, 1000, %r10;
        st.global.u32 [%rd0], %r10;""")
    launch(ptx, "k", (2, 3), (16, 3), [out])
    assert list(out) == [b * 1000 + t for b in range(6) for t in range(48)]


def test_unknown_instruction_names_itself():
    with pytest.raises(NotImplementedError, match="wgmma.fence"):
        launch(kernel("wgmma.fence.sync.aligned;"), "k", 1, 32, [np.zeros(1, np.float32)])


def test_argument_types_are_checked():
    ptx = HEAD + ".visible .entry k(.param .u64 p, .param .f32 x, .param .u32 n) { ret; }"
    ok = np.zeros(4, np.float32)
    launch(ptx, None, 1, 32, [ok, np.float32(1), np.int32(3)])
    for bad in (
        [ok, np.float64(1), np.int32(3)],
        [ok, np.float32(1), np.int64(3)],
        [ok, np.float32(1), 1.5],
        [ok, np.int32(1), np.int32(1)],
        [ok, np.float32(1)],
    ):
        with pytest.raises(TypeError):
            launch(ptx, None, 1, 32, bad)


def test_global_and_const_variables():
    ptx = (
        HEAD
        + """.const .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 255, 255, 255, 255};
    .global .align 8 .u64 where = table; .global .align 4 .f32 scale[2] = {0f3F800000, 2.5};
    .visible .entry k(.param .u64 out) { .reg .b32 %r<4>; .reg .b64 %rd<5>; .reg .f32 %f<3>;
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, 4; ld.param.u64 %rd1, [out]; add.u64 %rd1, %rd1, %rd0;
    mov.u64 %rd2, table; add.u64 %rd2, %rd2, %rd0; ld.const.s32 %r1, [%rd2];
    ld.global.f32 %f0, [scale+4]; cvt.rn.f32.s32 %f1, %r1; mul.f32 %f1, %f1, %f0; st.global.f32 [%rd1], %f1; ret; }"""
    )
    out = np.zeros(4, np.float32)
    launch(ptx, None, 1, 4, [out])
    assert list(out) == [2.5, 5, 7.5, -2.5]
