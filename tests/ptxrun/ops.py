"""Instruction -> Python closure.

Every binder takes (machine, instruction) and returns run(group), working on the
register arrays of the group's threads.  Binders are looked up by the first word
of the opcode; an instruction or modifier without one raises
NotImplementedError naming the instruction.
"""

import numpy as np

from . import numerics as nu
from .errors import KernelTrap
from .memory import RAW, Group
from .parser import SINK, SPACES, TYPE_BYTES, Imm, Mem, Not, Pair, Reg, Sym, Var, Vec

DT = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
    "bf16": np.uint16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "tf32": np.uint32,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}
FLOATS = {"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"}
BIND = {}

MODES = ("rn", "rz", "rm", "rp", "rna")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


def op(*names):
    def register(f):
        for n in names:
            BIND[n] = f
        return f

    return register


def unsupported(ins, why=""):
    raise NotImplementedError(f"PTX instruction not supported{': ' + why if why else ''}\n  {ins}")


def types_of(ins):
    return [p for p in ins.parts[1:] if p in TYPE_BYTES]


def mode_of(ins, default="rn"):
    return next((p for p in ins.parts[1:] if p in MODES), default)


def bind(m, ins):
    f = BIND.get(ins.parts[0])
    if f is None:
        unsupported(ins)
    try:
        run = f(m, ins)
    except (KeyError, IndexError, AttributeError, ValueError) as e:
        raise NotImplementedError(f"PTX instruction not supported ({type(e).__name__}: {e})\n  {ins}") from e
    if ins.guard is None:
        return run
    p = m.src(ins.guard, "pred")
    counts = m.guarded.setdefault(ins, [0, 0])

    def guarded(g):
        keep = p[g.sel]
        n = int(np.count_nonzero(keep))
        counts[0] += n
        counts[1] += g.n
        if n == g.n:
            run(g)
        elif n:
            run(Group(g.idx[keep]))

    return guarded


# ---------------------------------------------------------------- building blocks
def elementwise(m, ins, f, dty, *stys, ufunc=False):
    d = m.dst(ins.operands[0], dty)
    srcs = [m.src(o, t) for o, t in zip(ins.operands[1:], stys)]
    if len(ins.operands) != len(stys) + 1:
        unsupported(ins, "operand count")
    ufunc = ufunc and type(d) is np.ndarray and d.dtype == DT[dty]
    if len(srcs) == 1:
        (a,) = srcs

        def run(g):
            s = g.sel
            d[s] = f(a[s])
    elif len(srcs) == 2:
        a, b = srcs
        if ufunc:

            def run(g):
                s = g.sel
                if g.dense:
                    f(a[s], b[s], out=d[s])
                else:
                    d[s] = f(a[s], b[s])
        else:

            def run(g):
                s = g.sel
                d[s] = f(a[s], b[s])
    else:

        def run(g):
            s = g.sel
            d[s] = f(*[x[s] for x in srcs])

    return run


def packed(m, ins, f, ty):
    """f on both halves of 32-bit registers (f16x2, bf16x2)."""
    half = ty[:-2]
    dl, dh = m.dst_halves(ins.operands[0], half)
    srcs = [m.src_halves(o, half) for o in ins.operands[1:]]

    def run(g):
        s = g.sel
        lo = f(*[x[0][s] for x in srcs])
        hi = f(*[x[1][s] for x in srcs])
        dl[s] = lo
        dh[s] = hi

    return run


def _ftz16(x):
    return np.where(np.abs(x) < np.float16(6.104e-05), np.copysign(np.float16(0), x), x)


def float_function(ins, base, ty):
    """The elementwise function of a floating-point instruction, with its rounding, .ftz, .sat and .relu."""
    flags = set(ins.parts[1:])
    mode = mode_of(ins)
    ty = ty.removesuffix("x2")
    nan = "NaN" in flags
    if "xorsign" in flags:
        unsupported(ins)
    if ty == "f32":
        exact = mode == "rn"
        f = {
            "add": np.add if exact else lambda a, b: nu.add32(a, b, mode),
            "sub": np.subtract if exact else lambda a, b: nu.add32(a, -b, mode),
            "mul": np.multiply if exact else lambda a, b: nu.mul32(a, b, mode),
            "fma": lambda a, b, c: nu.fma32(a, b, c, mode),
            "div": np.divide if exact else lambda a, b: nu.div32(a, b, mode),
        }
        flush = nu.ftz
    elif ty == "f64":

        def directed(pair):
            def g(a, b):
                s, e = pair(nu._wide(a), nu._wide(b))
                return np.where(np.isfinite(e), nu.directed64(s, e, mode), s)

            return g

        exact = mode == "rn"
        f = {
            "add": np.add if exact else directed(nu.two_sum),
            "sub": np.subtract if exact else directed(lambda a, b: nu.two_sum(a, -b)),
            "mul": np.multiply if exact else directed(nu.two_prod),
            "fma": lambda a, b, c: nu.fma64(a, b, c, mode),
            "div": np.divide,
        }
        if base == "div" and not exact:
            unsupported(ins)
        flush = None
    elif ty == "f16":
        if mode != "rn":
            unsupported(ins)
        f = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "fma": lambda a, b, c: nu.fma_odd(a, b, c).astype(np.float16),
        }
        flush = _ftz16
    elif ty == "bf16":
        if mode != "rn":
            unsupported(ins)
        up, down = nu.bf16_to_f32, nu.f32_to_bf16
        f = {
            "add": lambda a, b: down(up(a) + up(b)),
            "sub": lambda a, b: down(up(a) - up(b)),
            "mul": lambda a, b: down(up(a) * up(b)),
            "fma": lambda a, b, c: down(nu.f64_to_odd32(nu.fma_odd(up(a), up(b), up(c)))),
        }
        flush = None
    else:
        unsupported(ins)
    f["mad"] = f["fma"]
    for name in ("min", "max"):
        g = lambda a, b, k=(name == "min"): nu.fminmax(a, b, k, nan)
        f[name] = (lambda a, b, g=g: down(g(up(a), up(b)))) if ty == "bf16" else g
    f = f[base]
    if "ftz" in flags:
        if flush is None:
            unsupported(ins)
        core = f
        f = lambda *x: flush(core(*[flush(y) for y in x]))
    if "sat" in flags:
        if ty == "bf16":
            unsupported(ins)
        inner = f
        f = lambda *x: nu.saturate(inner(*x))
    if "relu" in flags:
        inner_ = f
        if ty == "bf16":
            f = lambda *x: np.where((y := inner_(*x)) & 0x8000, np.where((y & 0x7FFF) > 0x7F80, y, 0), y)
        else:
            f = lambda *x: np.where((y := inner_(*x)) < 0, y.dtype.type(0), y)
    return f


# ---------------------------------------------------------------- arithmetic
@op("add", "sub", "mul", "fma", "mad", "div", "min", "max", "rem", "mul24", "mad24")
def arithmetic(m, ins):
    base, ty, flags = ins.parts[0], types_of(ins)[-1], set(ins.parts[1:])
    if "cc" in flags:
        return carry(m, ins)
    n = len(ins.operands) - 1
    if ty in FLOATS:
        if base == "div" and ("approx" in flags or "full" in flags):
            return elementwise(m, ins, approx_div(m, flags), ty, ty, ty)
        f = float_function(ins, base, ty)
        if ty.endswith("x2"):
            return packed(m, ins, f, ty)
        return elementwise(m, ins, f, ty, *[ty] * n, ufunc=isinstance(f, np.ufunc))
    wide = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
    if base in ("mul", "mad", "mul24", "mad24"):
        if "24" in base:
            if "lo" not in flags:
                unsupported(ins)
            low24 = (lambda x: x << 8 >> 8) if ty == "s32" else (lambda x: x & 0xFFFFFF)
            prod = lambda a, b: low24(np.asarray(a, DT[ty])) * low24(np.asarray(b, DT[ty]))
            dty = ty
        elif "wide" in flags:
            dty = wide[ty]
            prod = lambda a, b: np.multiply(a, b, dtype=DT[dty])
        elif "hi" in flags:
            dty = ty
            prod = mul_hi(ty)
        else:
            dty, prod = ty, np.multiply
        if base.startswith("mul"):
            return elementwise(m, ins, prod, dty, ty, ty, ufunc=prod is np.multiply)
        if "sat" in flags:
            unsupported(ins)
        return elementwise(m, ins, lambda a, b, c: prod(a, b) + c, dty, ty, ty, dty)
    if "sat" in flags:
        wider = lambda f: lambda a, b: np.clip(f(np.asarray(a, np.int64), b), -(2**31), 2**31 - 1).astype(np.int32)
        return elementwise(m, ins, wider({"add": np.add, "sub": np.subtract}[base]), ty, ty, ty)
    if ty in ("u16x2", "s16x2"):
        unsupported(ins)
    f = {
        "add": np.add,
        "sub": np.subtract,
        "min": np.minimum,
        "max": np.maximum,
        "div": lambda a, b: nu.divrem(a, b, False),
        "rem": lambda a, b: nu.divrem(a, b, True),
    }[base]
    return elementwise(m, ins, f, ty, ty, ty, ufunc=isinstance(f, np.ufunc))


def mul_hi(ty):
    bits = TYPE_BYTES[ty] * 8
    if bits == 64:
        return lambda a, b: nu.mulhi64(a, b, ty == "s64").astype(DT[ty])
    wide = np.int64 if ty[0] == "s" else np.uint64
    return lambda a, b: (np.multiply(a, b, dtype=wide) >> wide(bits)).astype(DT[ty])


def approx_div(m, flags):
    def f(a, b):
        q = m.noisy(np.divide(a, b), 2.0**-22)
        if "approx" in flags:  # |b| above 2**126 is documented to give 0 (NaN for inf/b)
            big = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
            q = np.where(big, np.where(np.isinf(a), np.float32(np.nan), np.float32(0)), q)
        return q

    return (lambda a, b: nu.ftz(f(nu.ftz(a), nu.ftz(b)))) if "ftz" in flags else f


def carry(m, ins):
    """add.cc, sub.cc, mad.lo.cc and their carry-in forms, on the per-thread flag m.cc."""
    base, ty, flags = ins.parts[0], types_of(ins)[-1], set(ins.parts[1:])
    cin, out = base.endswith("c") and base not in ("cc",), "cc" in flags
    if base in ("add", "sub", "mad"):
        cin = False
    ut = DT["u" + ty[1:]]
    d = m.dst(ins.operands[0], "u" + ty[1:])
    srcs = [m.src(o, ty if base.startswith("mad") and k < 2 else "u" + ty[1:]) for k, o in enumerate(ins.operands[1:])]
    cc = m.cc
    sub = base.startswith("sub")
    if base.startswith("mad"):
        prod = mul_hi(ty) if "hi" in flags else np.multiply

    def run(g):
        s = g.sel
        x = [np.broadcast_to(np.asarray(v[s]), g.n) for v in srcs]
        if len(x) == 3:
            x = [np.asarray(prod(x[0], x[1])).astype(ut), x[2]]
        a, b = x
        c = cc[s].astype(ut) if cin else ut(0)
        if sub:
            r = a - b - c
            k = (a < b) | ((a == b) & (c != 0))
        else:
            r = a + b
            k = r < a
            r = r + c
            k = k | (r < c)
        d[s] = r
        if out:
            cc[s] = k

    return run


op("addc", "subc", "madc")(carry)


@op("neg", "abs")
def sign(m, ins):
    ty, negate = types_of(ins)[-1], ins.parts[0] == "neg"
    if ty in FLOATS:
        bits = TYPE_BYTES[ty] * 8
        u = f"b{bits}"
        top = 1 << (bits - 1) | (0x8000 if ty.endswith("x2") else 0)
        mask = DT[u](top if negate else ~top & (2**bits - 1))
        f = np.bitwise_xor if negate else np.bitwise_and
        if "ftz" in ins.parts and ty == "f32":
            return elementwise(m, ins, lambda x: f(nu.ftz(x).view(np.uint32), mask), "b32", "f32")
        return elementwise(m, ins, lambda x: f(x, mask), u, u)
    return elementwise(m, ins, np.negative if negate else np.abs, ty, ty)


@op("sad")
def sad(m, ins):
    ty = types_of(ins)[-1]
    return elementwise(m, ins, lambda a, b, c: c + np.where(a < b, b - a, a - b), ty, ty, ty, ty)


# relative error bound of the hardware's approximations (CUDA PTX ISA), used only with approx_noise
_APPROX = {
    "rcp": (lambda x: 1.0 / x, 2.0**-23),
    "sqrt": (np.sqrt, 2.0**-23),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), 2.0**-22.9),
    "sin": (np.sin, 2.0**-20.5),
    "cos": (np.cos, 2.0**-20.5),
    "lg2": (np.log2, 2.0**-22),
    "ex2": (np.exp2, 2.0**-22),
    "tanh": (np.tanh, 2.0**-11),
}


@op("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def special_function(m, ins):
    base, ty, flags = ins.parts[0], types_of(ins)[-1], set(ins.parts[1:])
    f, err = _APPROX[base]
    if "approx" not in flags:
        mode = mode_of(ins)
        if base == "sqrt":
            g = np.sqrt if mode == "rn" else lambda x: nu.sqrt32(x, mode)
        elif base == "rcp":
            g = (lambda x: np.divide(DT[ty](1), x)) if mode == "rn" else lambda x: nu.div32(np.float32(1), x, mode)
        else:
            unsupported(ins)
        if ty == "f64" and mode != "rn":
            unsupported(ins)
    elif ty == "f64":
        if base not in ("rcp", "rsqrt") or "ftz" not in flags:
            unsupported(ins)

        def g(x):  # hardware works on the upper 32 bits and leaves the lower 32 zero
            top = (np.atleast_1d(x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
            return (f(top).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)

        return elementwise(m, ins, g, ty, ty)
    elif ty == "f32":
        g = lambda x: m.noisy(f(np.asarray(x, np.float64)).astype(np.float32), err)
    elif ty in ("f16", "f16x2"):
        g = lambda x: f(np.asarray(x, np.float64)).astype(np.float16)
    elif ty in ("bf16", "bf16x2"):
        g = lambda x: nu.f32_to_bf16(f(nu.bf16_to_f32(x).astype(np.float64)).astype(np.float32))
    if "ftz" in flags and ty == "f32":
        h = g
        g = lambda x: nu.ftz(h(nu.ftz(x)))
    if ty.endswith("x2"):
        return packed(m, ins, g, ty)
    return elementwise(m, ins, g, ty, ty)


@op("copysign")
def copysign(m, ins):
    ty = types_of(ins)[-1]
    return elementwise(m, ins, lambda a, b: np.copysign(b, a), ty, ty, ty)


@op("testp")
def testp(m, ins):
    ty = types_of(ins)[-1]
    tiny = np.finfo(DT[ty]).tiny
    f = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= tiny) | (x == 0)),  # zero counts as normal
        "subnormal": lambda x: (x != 0) & (np.abs(x) < tiny),
    }[ins.parts[1]]
    return elementwise(m, ins, f, "pred", ty)


# ---------------------------------------------------------------- bits
@op("and", "or", "xor")
def logic(m, ins):
    ty = types_of(ins)[-1]
    f = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[ins.parts[0]]
    return elementwise(m, ins, f, ty, ty, ty, ufunc=True)


@op("not", "cnot")
def invert(m, ins):
    ty = types_of(ins)[-1]
    f = np.invert if ins.parts[0] == "not" else lambda x: (x == 0).astype(DT[ty])
    return elementwise(m, ins, f, ty, ty)


@op("shl", "shr")
def shift(m, ins):
    ty = types_of(ins)[-1]
    bits, t = TYPE_BYTES[ty] * 8, DT[ty]
    left, signed = ins.parts[0] == "shl", ty[0] == "s"
    amount = ins.operands[2]
    d, a = m.dst(ins.operands[0], ty), m.src(ins.operands[1], ty)
    f = np.left_shift if left else np.right_shift
    if isinstance(amount, Imm):
        k = amount.value & 0xFFFFFFFF
        if k < bits:
            c, exact = t(k), type(d) is np.ndarray and d.dtype == t

            def run(g):
                s = g.sel
                if exact and g.dense:
                    f(a[s], c, out=d[s])
                else:
                    d[s] = f(a[s], c)

            return run
    b = m.src(amount, "u32")

    def run(g):
        s = g.sel
        k = np.asarray(b[s])
        over = k >= bits
        r = f(a[s], np.where(over, bits - 1, k).astype(t))
        d[s] = r if signed and not left else np.where(over, t(0), r)

    return run


@op("shf")
def funnel(m, ins):
    left, wrap = "l" in ins.parts, "wrap" in ins.parts

    def f(lo, hi, c):
        c = np.asarray(c).astype(np.uint64)
        c = c & np.uint64(31) if wrap else np.minimum(c, np.uint64(32))
        both = np.asarray(hi).astype(np.uint64) << np.uint64(32) | np.asarray(lo).astype(np.uint64)
        r = (both << c) >> np.uint64(32) if left else both >> c
        return r.astype(np.uint32)

    return elementwise(m, ins, f, "b32", "b32", "b32", "u32")


@op("bfe")
def bfe(m, ins):
    ty = types_of(ins)[-1]
    bits, signed = TYPE_BYTES[ty] * 8, ty[0] == "s"
    ut, st = DT[f"u{bits}"], DT[f"s{bits}"]

    def f(a, pos, n):
        a, pos, n = (np.atleast_1d(x) for x in (a, pos, n))
        pos, n = (pos & 0xFF).astype(np.int64), (n & 0xFF).astype(np.int64)
        wide = np.int64 if signed else np.uint64
        x = a.view(st).astype(np.int64) if signed else a.astype(np.uint64)
        top = np.minimum(pos + n, bits)  # one past the last bit taken
        up = np.clip(64 - top, 0, 63).astype(wide)
        length = np.clip(top - pos, 0, 64)
        r = (x << up) >> np.clip(64 - length, 0, 63).astype(wide)
        none = (a.view(st) < 0) if signed else np.zeros(1, bool)
        outside = np.where(none, wide(-1) if signed else wide(0), wide(0))
        r = np.where(n == 0, wide(0), np.where(pos >= bits, outside, r))
        return r.astype(ut)

    return elementwise(m, ins, f, f"b{bits}", f"b{bits}", "u32", "u32")


@op("bfi")
def bfi(m, ins):
    ty = types_of(ins)[-1]
    bits, ut = TYPE_BYTES[ty] * 8, DT[ty]

    def f(a, b, pos, n):
        pos = np.asarray(pos & np.uint32(0xFF)).astype(np.uint64)
        n = np.asarray(n & np.uint32(0xFF)).astype(np.uint64)
        one = np.uint64(1)
        ones = np.where(n >= 64, np.uint64(2**64 - 1), (one << np.minimum(n, np.uint64(63))) - one)
        inside = pos < bits
        p = np.minimum(pos, np.uint64(63))
        mask = np.where(inside, ones << p, np.uint64(0)).astype(ut)
        value = (np.asarray(a).astype(np.uint64) << p).astype(ut)
        return (b & ~mask) | (value & mask)

    return elementwise(m, ins, f, ty, ty, ty, "u32", "u32")


@op("brev")
def brev(m, ins):
    ty = types_of(ins)[-1]
    return elementwise(m, ins, lambda x: nu.bit_reverse(np.atleast_1d(x)), ty, ty)


@op("clz", "popc")
def count_bits(m, ins):
    ty = types_of(ins)[-1]
    f = nu.popcount if ins.parts[0] == "popc" else lambda x: nu.clz(np.atleast_1d(x))
    return elementwise(m, ins, f, "u32", ty)


@op("bfind")
def bfind(m, ins):
    ty = types_of(ins)[-1]
    bits = TYPE_BYTES[ty] * 8
    amount = "shiftamt" in ins.parts

    def f(x):
        x = np.atleast_1d(x)
        if ty[0] == "s":
            x = np.where(x < 0, ~x, x).view(DT[f"u{bits}"])
        z = nu.clz(x)
        r = z if amount else np.uint32(bits - 1) - z
        return np.where(z == bits, np.uint32(0xFFFFFFFF), r)

    return elementwise(m, ins, f, "u32", ty)


@op("lop3")
def lop3(m, ins):
    lut = ins.operands[4].value
    ins3 = ins.operands[:4]
    d = m.dst(ins3[0], "b32")
    srcs = [m.src(o, "b32") for o in ins3[1:]]

    def run(g):
        s = g.sel
        a, b, c = (x[s] for x in srcs)
        r = np.zeros(g.n, np.uint32)
        for k in range(8):
            if lut >> k & 1:
                r |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        d[s] = r

    return run


@op("prmt")
def prmt(m, ins):
    mode = next((p for p in ins.parts if p in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), None)
    table = {
        "f4e": lambda k: [k, k + 1, k + 2, k + 3],
        "b4e": lambda k: [k, (k + 7) % 8, (k + 6) % 8, (k + 5) % 8],
        "rc8": lambda k: [k] * 4,
        "ecl": lambda k: [max(k, i) for i in range(4)],
        "ecr": lambda k: [min(k, i) for i in range(4)],
        "rc16": lambda k: [(k & 1) * 2, (k & 1) * 2 + 1] * 2,
    }

    def f(a, b, c):
        a, b, c = np.broadcast_arrays(np.atleast_1d(a), b, c)
        src = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
        r = np.zeros(len(src), np.uint32)
        for i in range(4):
            if mode is None:
                sel = (c >> np.uint32(4 * i)) & np.uint32(0xF)
                which, msb = sel & np.uint32(7), (sel & np.uint32(8)) != 0
            else:
                sel = c & np.uint32(3)
                which = np.array([table[mode](k)[i] % 8 for k in range(4)], np.uint32)[sel]
                msb = np.zeros(len(src), bool)
            byte = (src >> (which.astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
            byte = np.where(msb, np.where(byte & np.uint64(0x80), 0xFF, 0), byte).astype(np.uint32)
            r |= byte << np.uint32(8 * i)
        return r

    return elementwise(m, ins, f, "b32", "b32", "b32", "b32")


@op("dp4a")
def dp4a(m, ins):
    ta, tb = types_of(ins)[-2:]
    at = np.int8 if ta == "s32" else np.uint8
    bt = np.int8 if tb == "s32" else np.uint8
    out = np.int32 if "s32" in (ta, tb) else np.uint32

    def f(a, b, c):
        a, b, c = np.broadcast_arrays(np.atleast_1d(a), b, c)
        x = np.ascontiguousarray(a).view(at).reshape(-1, 4).astype(np.int64)
        y = np.ascontiguousarray(b).view(bt).reshape(-1, 4).astype(np.int64)
        return ((x * y).sum(axis=1) + c.astype(np.int64)).astype(out).view(np.uint32)

    return elementwise(m, ins, f, "u32", "u32", "u32", "s32" if out is np.int32 else "u32")


# ---------------------------------------------------------------- comparison and selection
def comparison(ins, cmp, ty):
    """Elementwise bool function of a comparison operator."""
    less, greater = np.less, np.greater
    if ty in FLOATS:
        table = {
            "eq": np.equal,
            "lt": less,
            "le": np.less_equal,
            "gt": greater,
            "ge": np.greater_equal,
            "ne": lambda a, b: less(a, b) | greater(a, b),
            "neu": np.not_equal,
            "equ": lambda a, b: ~(less(a, b) | greater(a, b)),
            "ltu": lambda a, b: ~np.greater_equal(a, b),
            "leu": lambda a, b: ~greater(a, b),
            "gtu": lambda a, b: ~np.less_equal(a, b),
            "geu": lambda a, b: ~less(a, b),
            "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
            "nan": lambda a, b: np.isnan(a) | np.isnan(b),
        }
        f = table[cmp]
        if "ftz" in ins.parts and ty == "f32":
            return lambda a, b: f(nu.ftz(a), nu.ftz(b))
        if ty.startswith("bf16"):
            return lambda a, b: f(nu.bf16_to_f32(a), nu.bf16_to_f32(b))
        return f
    return {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": less,
        "le": np.less_equal,
        "gt": greater,
        "ge": np.greater_equal,
        "lo": less,
        "ls": np.less_equal,
        "hi": greater,
        "hs": np.greater_equal,
    }[cmp]


_BOOL = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@op("setp")
def setp(m, ins):
    ty = types_of(ins)[-1]
    f = comparison(ins, ins.parts[1], ty)
    combine = _BOOL.get(ins.parts[2])
    ops = ins.operands
    second = SINK
    if isinstance(ops[0], Pair):
        first, second = ops[0].first, ops[0].second
    else:
        first = ops[0]
    p, q = m.dst(first, "pred"), m.dst(second, "pred")
    if ty in ("f16x2", "bf16x2"):
        (al, ah), (bl, bh) = (m.src_halves(o, ty[:-2]) for o in ops[1:3])
        if combine is not None:
            unsupported(ins)

        def run(g):
            s = g.sel
            p[s], q[s] = f(al[s], bl[s]), f(ah[s], bh[s])

        return run
    a, b = m.src(ops[1], ty), m.src(ops[2], ty)
    if combine is None and second is SINK:
        ufunc = isinstance(f, np.ufunc) and type(p) is np.ndarray

        def run(g):
            s = g.sel
            if ufunc and g.dense:
                f(a[s], b[s], out=p[s])
            else:
                p[s] = f(a[s], b[s])

        return run
    c = m.src(ops[3], "pred") if combine is not None else None

    def run(g):
        s = g.sel
        r = np.broadcast_to(f(a[s], b[s]), g.n)
        if c is None:
            p[s], q[s] = r, ~r
        else:
            k = c[s]
            p[s], q[s] = combine(r, k), combine(~r, k)

    return run


@op("set")
def set_(m, ins):
    dty, ty = types_of(ins)[-2:]
    f = comparison(ins, ins.parts[1], ty)
    combine = _BOOL.get(ins.parts[2])
    if ty.endswith("x2") or dty not in ("u32", "s32", "f32"):
        unsupported(ins)
    one = DT[dty](1) if dty == "f32" else np.array(-1, np.int32).astype(DT[dty])
    g = lambda a, b, *c: np.where(combine(f(a, b), c[0]) if c else f(a, b), one, DT[dty](0))
    return elementwise(m, ins, g, dty, ty, ty, *(["pred"] if combine else []))


@op("selp")
def selp(m, ins):
    ty = types_of(ins)[-1]
    ty = f"b{TYPE_BYTES[ty] * 8}" if ty in FLOATS else ty
    return elementwise(m, ins, lambda a, b, p: np.where(p, a, b), ty, ty, ty, "pred")


@op("slct")
def slct(m, ins):
    dty, cty = types_of(ins)[-2:]
    dty = f"b{TYPE_BYTES[dty] * 8}"
    return elementwise(m, ins, lambda a, b, c: np.where(c >= 0, a, b), dty, dty, dty, cty)


# ---------------------------------------------------------------- moves and conversions
@op("mov")
def mov(m, ins):
    ty = types_of(ins)[-1]
    d, a = ins.operands
    n = TYPE_BYTES[ty]
    if isinstance(d, Vec):  # unpack
        w = n // len(d.items)
        src = m.src(a, f"b{n * 8}") if n > 1 else None
        outs = [m.dst(x, f"b{w * 8}") for x in d.items]
        mask = (1 << 8 * w) - 1
        t, wt = RAW[n], RAW[w]

        def run(g):
            s = g.sel
            x = np.asarray(src[s])
            vals = [((x >> t(8 * w * k)) & t(mask)).astype(wt) for k in range(len(outs))]
            for o, v in zip(outs, vals):
                o[s] = v

        return run
    if isinstance(a, Vec):  # pack
        w = n // len(a.items)
        srcs = [m.src(x, f"b{w * 8}") for x in a.items]
        dst = m.dst(d, f"b{n * 8}")
        t = RAW[n]

        def run(g):
            s = g.sel
            r = t(0)
            for k, x in enumerate(srcs):
                r = r | (np.asarray(x[s]).astype(t) << t(8 * w * k))
            dst[s] = r

        return run
    if ty in FLOATS or ty == "tf32":
        ty_ = f"b{n * 8}"
        if isinstance(a, Imm) and a.bits is None and isinstance(a.value, float):
            a = Imm(a.value, int(DT[ty](a.value).view(RAW[n])), n)
        ty = ty_
    dst, src = m.dst(d, ty), m.src(a, ty)

    def run(g):
        s = g.sel
        dst[s] = src[s]

    return run


@op("cvta")
def cvta(m, ins):
    space = next(p for p in ins.parts if p in SPACES)
    ty = types_of(ins)[-1]
    base = m.generic_base(space)
    if "to" in ins.parts:
        base = -base
    d, a = m.dst(ins.operands[0], ty), m.src(ins.operands[1], ty)
    t = DT[ty]
    delta = t(base % (1 << 8 * TYPE_BYTES[ty]))

    def run(g):
        s = g.sel
        d[s] = a[s] + delta if delta else a[s]

    return run


@op("isspacep")
def isspacep(m, ins):
    space = ins.parts[1]
    window = lambda x, s: (x >> np.uint64(32)) == np.uint64(m.generic_base(s) >> 32)
    if space in ("shared", "local"):
        f = lambda x: window(x, space)
    elif space == "global":
        f = lambda x: ~(window(x, "shared") | window(x, "local"))
    else:
        unsupported(ins)
    return elementwise(m, ins, f, "pred", "u64")


@op("cvt")
def cvt(m, ins):
    dty, sty = types_of(ins)[-2:]
    flags = set(ins.parts[1:])
    mode = mode_of(ins)
    integral = next((p for p in ins.parts if p in INTEGRAL), None)
    is_float = lambda t: t in FLOATS or t == "tf32"
    if "satfinite" in flags or "scaled" in flags or "rs" in flags:
        unsupported(ins)

    if not is_float(dty) and not is_float(sty):  # int -> int
        if "sat" in flags:
            info = np.iinfo(DT[dty])
            src = np.iinfo(DT[sty])
            lo, hi = max(info.min, src.min), min(info.max, src.max)
            f = lambda x: np.clip(x, DT[sty](lo), DT[sty](hi)).astype(DT[dty])
        else:
            f = lambda x: np.asarray(x).astype(DT[dty])
        return elementwise(m, ins, f, dty, sty)

    if is_float(sty) and not is_float(dty):  # float -> int

        def f(x):
            x = nu.bf16_to_f32(x) if sty == "bf16" else x
            if "ftz" in flags and sty == "f32":
                x = nu.ftz(x)
            return nu.float_to_int(x, DT[dty], integral or "rzi", sty == "f64")

        return elementwise(m, ins, f, dty, sty)

    def finish(x):
        """A value in binary32 or binary64 -> the destination format."""
        x = np.atleast_1d(x)
        if "sat" in flags:
            x = nu.saturate(x)
        if "relu" in flags:
            x = np.where(x < 0, x.dtype.type(0), x)
        if dty == "f64":
            return x.astype(np.float64)
        if dty == "f32":
            r = nu.f64_to_f32(x, mode) if x.dtype == np.float64 else x.astype(np.float32)
            return nu.ftz(r) if "ftz" in flags else r
        if dty in ("f16", "f16x2"):
            return nu.f32_to_f16(x, mode)
        if dty in ("bf16", "bf16x2"):
            return nu.f32_to_bf16(nu.f64_to_odd32(x) if x.dtype == np.float64 else x, mode)
        return nu.f32_to_tf32(x, mode)

    if not is_float(sty):  # int -> float
        if dty == "f32":
            f = lambda x: nu.int_to_f32(x, mode)
        else:
            f = lambda x: finish(np.asarray(x).astype(np.float64))
        out = {"f16": "b16", "bf16": "b16"}.get(dty, dty)
        return elementwise(m, ins, f, out, sty)

    def start(x):
        if sty == "bf16":
            x = nu.bf16_to_f32(x)
        elif sty == "f16":
            x = np.asarray(x).astype(np.float32)
        elif sty == "f32" and "ftz" in flags:
            x = nu.ftz(x)
        return nu.to_integral(x, integral) if integral else x

    if dty in ("f16x2", "bf16x2"):  # two sources: first to the upper half
        if len(ins.operands) != 3:
            unsupported(ins)
        lo, hi = m.dst_halves(ins.operands[0], "bf16")
        a, b = m.src(ins.operands[1], sty), m.src(ins.operands[2], sty)

        def run(g):
            s = g.sel
            top, low = finish(start(a[s])), finish(start(b[s]))
            lo[s], hi[s] = low, top

        return run
    out = {"f16": "b16", "bf16": "b16", "tf32": "b32"}.get(dty, dty)
    return elementwise(m, ins, lambda x: finish(start(x)), out, sty)


# ---------------------------------------------------------------- memory
def space_of(ins):
    return next((p.split("::")[0] for p in ins.parts if p.split("::")[0] in SPACES), "generic")


def address(m, mem, ins):
    """run(group) -> int64 window offset (shared, local) or address (global, generic) of every thread."""
    base, off = mem.base, mem.offset
    if base is None:
        return lambda g: np.full(g.n, off, np.int64)
    if isinstance(base, Sym):
        at = m.symbol_address(base, ins) + off
        return lambda g: np.full(g.n, at, np.int64)
    if not isinstance(base, Reg):
        unsupported(ins)
    if TYPE_BYTES[base.type] == 8:
        r = m.reg(base).view(np.int64)
        if off == 0:
            return lambda g: r[g.sel]
        return lambda g: r[g.sel] + off
    r = m.reg(base)
    return lambda g: r[g.sel].astype(np.int64) + off


def _vector(ins):
    return next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)


def _items(o, n, ins):
    items = list(o.items) if isinstance(o, Vec) else [o]
    if len(items) != n:
        unsupported(ins, "vector length")
    return items


def _param_var(mem):
    if isinstance(mem.base, Sym) and isinstance(mem.base.name, Var) and mem.base.name.space == "param":
        return mem.base.name, mem.base.offset + mem.offset
    return None, None


def _bits(ty):
    return f"b{TYPE_BYTES[ty] * 8}" if ty in FLOATS else ty


@op("ld", "ldu")
def ld(m, ins):
    ty = types_of(ins)[-1]
    n, e = _vector(ins), TYPE_BYTES[ty]
    mem = ins.operands[1]
    bty = _bits(ty)
    outs = [m.dst(x, bty) for x in _items(ins.operands[0], n, ins)]
    space = space_of(ins)
    if space == "param":
        var, off = _param_var(mem)
        if var is not None:
            srcs = [m.param_view(var, off + k * e, bty) for k in range(n)]

            def run(g):
                s = g.sel
                for o, x in zip(outs, srcs):
                    o[s] = x[s]

            return run
        space = "global"
    if n * e > 16:
        unsupported(ins, "vectors above 128 bits")
    at, load = address(m, mem, ins), m.memory.load
    dt, et = DT[bty], RAW[e]
    track = not {"volatile", "relaxed", "acquire"} & set(ins.parts)
    if n == 1:
        (d,) = outs

        def run(g):
            d[g.sel] = load(space, at(g), e, g, ins, track).view(dt)
    else:

        def run(g):
            s = g.sel
            data = load(space, at(g), n * e, g, ins, track).view(et).reshape(-1, n).view(dt)
            for k, d in enumerate(outs):
                d[s] = data[:, k]

    return run


@op("st")
def st(m, ins):
    ty = types_of(ins)[-1]
    n, e = _vector(ins), TYPE_BYTES[ty]
    mem = ins.operands[0]
    bty = f"b{e * 8}"
    srcs = [m.src(x, bty) for x in _items(ins.operands[1], n, ins)]
    space = space_of(ins)
    if space == "param":
        var, off = _param_var(mem)
        if var is None:
            unsupported(ins)
        outs = [m.param_view(var, off + k * e, bty) for k in range(n)]

        def run(g):
            s = g.sel
            for o, x in zip(outs, srcs):
                o[s] = x[s]

        return run
    if n * e > 16:
        unsupported(ins, "vectors above 128 bits")
    at, store = address(m, mem, ins), m.memory.store
    et, whole = RAW[e], RAW[n * e]
    track = not {"volatile", "relaxed", "release"} & set(ins.parts)

    def run(g):
        s = g.sel
        data = np.empty((g.n, n), et)
        for k, x in enumerate(srcs):
            data[:, k] = x[s]
        store(space, at(g), n * e, data.view(whole).ravel(), g, ins, track)

    return run


def _atomic_function(ins, what, ty):
    if what in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[what]
    if what in ("min", "max"):
        f = np.minimum if what == "min" else np.maximum
        return f if ty not in FLOATS else lambda a, b: nu.fminmax(a, b, what == "min", False)
    if what == "add":
        if ty == "f32" and "ftz" in ins.parts:
            return lambda a, b: nu.ftz(a + b)
        if ty == "bf16":
            return lambda a, b: nu.f32_to_bf16(nu.bf16_to_f32(a) + nu.bf16_to_f32(b))
        return np.add
    if what == "exch":
        return lambda a, b: b
    if what == "inc":
        return lambda a, b: np.where(a >= b, 0, a + 1)
    if what == "dec":
        return lambda a, b: np.where((a == 0) | (a > b), b, a - 1)
    if what == "cas":
        return lambda a, b, c: np.where(a == b, c, a)
    unsupported(ins)


@op("atom", "red")
def atom(m, ins):
    ty = types_of(ins)[-1]
    what = next(p for p in ins.parts[1:] if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"))
    if _vector(ins) != 1:
        unsupported(ins, "vector atomics")
    space = space_of(ins)
    ops = list(ins.operands)
    dst = SINK if ins.parts[0] == "red" else ops.pop(0)
    unused = dst is SINK or not m.is_read(dst)
    at, size = address(m, ops[0], ins), TYPE_BYTES[ty]
    half = ty[:-2] if ty.endswith("x2") else None
    if half:
        f = _atomic_function(ins, what, half)
        pieces = DT[half]
    else:
        f = _atomic_function(ins, what, ty)
    dt = DT[ty]
    d = m.dst(dst, ty)
    srcs = [m.src(x, ty) for x in ops[1:]]
    atomic = m.memory.atomic

    def apply(old, args):
        if half:
            r = f(np.ascontiguousarray(old).view(pieces), *[np.ascontiguousarray(x).view(pieces) for x in args])
            return r.astype(pieces).view(dt)
        return f(old, *args)

    def run(g):
        vals = [np.array(np.broadcast_to(np.asarray(x[g.sel], dt), g.n)) for x in srcs]
        result = np.empty(g.n, dt)

        def update(s, where, rows):
            cells, args = s.bytes.view(dt), [v[rows] for v in vals]
            if unused and isinstance(f, np.ufunc) and not half:
                f.at(cells, where, args[0])  # in thread order
                return
            old = result[rows]
            for turn in rounds(where):
                a = cells[where[turn]]
                old[turn] = a
                cells[where[turn]] = apply(a, [v[turn] for v in args])
            result[rows] = old

        atomic(space, at(g), size, g, ins, update)
        if not unused:
            d[g.sel] = result

    return run


def rounds(where):
    """Index sets such that no set names a cell twice, taking each cell's threads in order."""
    order = np.argsort(where, kind="stable")
    s = where[order]
    first = np.r_[True, s[1:] != s[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(len(s)), 0))
    rank = np.arange(len(s)) - start
    by_rank = np.argsort(rank, kind="stable")
    cuts = np.flatnonzero(np.diff(rank[by_rank])) + 1
    return np.split(order[by_rank], cuts)


# ---------------------------------------------------------------- asynchronous copies
@op("cp")
def cp(m, ins):
    p = ins.parts
    if p[1] != "async" or "bulk" in p or "mbarrier" in p:
        unsupported(ins)
    if p[2] == "commit_group":
        return m.copies.commit
    if p[2] == "wait_group":
        n = ins.operands[0].value
        return lambda g: m.copies.wait(g, n, ins)
    if p[2] == "wait_all":
        return lambda g: m.copies.wait(g, -1, ins)
    dst, src, size, *rest = ins.operands
    size = size.value
    if size not in (4, 8, 16):
        unsupported(ins)
    to, frm = address(m, dst, ins), address(m, src, ins)
    amount = zero = None
    if rest and not isinstance(rest[0], (Mem, Vec)):
        r = rest[0]
        if isinstance(r, Not) or (isinstance(r, Reg) and r.type == "pred"):
            zero = m.src(r, "pred")  # ignore-src
        elif isinstance(r, Imm) or (isinstance(r, Reg) and TYPE_BYTES[r.type] == 4):
            amount = m.src(r, "u32")  # src-size

    def run(g):
        have = np.full(g.n, size, np.int64)
        if amount is not None:
            have = np.minimum(np.broadcast_to(np.asarray(amount[g.sel]), g.n).astype(np.int64), size)
        if zero is not None:
            have = np.where(np.broadcast_to(zero[g.sel], g.n), 0, have)
        m.copies.issue(g, to(g), frm(g), size, have, ins)

    return run


# ---------------------------------------------------------------- things without effect here
@op(
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "applypriority",
    "discard",
    "nanosleep",
    "pmevent",
    "griddepcontrol",
    "setmaxnreg",
    "createpolicy",
    "nop",
    "brkpt",
)
def no_effect(m, ins):
    return lambda g: None


@op("activemask")
def activemask(m, ins):
    d = m.dst(ins.operands[0], "b32")

    def run(g):
        d[g.sel] = m.present(g)[m.warp[g.idx]]

    return run


def trap(m, ins, g):
    raise KernelTrap(f"trap executed by {m.thread_name(int(g.idx[0]))} (and {g.n - 1} others)\n  {ins}")
