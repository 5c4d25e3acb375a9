"""Bit-accurate arithmetic on NumPy arrays: fused multiply-add, directed rounding,
16-bit formats, float-to-integer conversion, wide multiplication.

The recurring tool is *round to odd*: a value is first rounded to binary64 so
that an inexact result always has an odd last bit; rounding that to 24 (or 11,
or 8) bits then equals a single rounding of the exact value.
"""

import numpy as np

f16, f32, f64 = np.float16, np.float32, np.float64
u16, u32, u64 = np.uint16, np.uint32, np.uint64
i32, i64 = np.int32, np.int64

_TINY32 = f64(2.0) ** -126
CANONICAL_NAN = {2: u16(0x7FFF).view(f16), 4: u32(0x7FFFFFFF).view(f32), 8: u64(0x7FFFFFFFFFFFFFFF).view(f64)}


# ---------------------------------------------------------------- rounding
def two_sum(a, b):
    """s + e == a + b exactly, s rounded to nearest."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_prod(a, b):
    """p + e == a * b exactly (binary64, Veltkamp splitting)."""
    c = f64(134217729.0)
    p = a * b
    x = c * a
    ah = x - (x - a)
    al = a - ah
    y = c * b
    bh = y - (y - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(h, e):
    """h + e, where h is h + e rounded to nearest, rounded to odd instead."""
    bits = h.view(i64)
    fix = (e != 0) & ((bits & 1) == 0) & np.isfinite(h) & np.isfinite(e)
    step = np.where((e > 0) == (h > 0), i64(1), i64(-1))
    return np.where(fix, bits + step, bits).view(f64)


def f64_to_f32(h, mode="rn"):
    """Round binary64 to binary32.  Exact for values that were rounded to odd."""
    y = h.astype(f32)
    if mode == "rn":
        return y
    back = y.astype(f64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(h), np.nextafter(y, f32(0)), y)
    if mode == "rm":
        return np.where(back > h, np.nextafter(y, f32(-np.inf)), y)
    if mode == "rp":
        return np.where(back < h, np.nextafter(y, f32(np.inf)), y)
    raise NotImplementedError(f"rounding mode .{mode}")


def f64_to_odd32(h):
    y = f64_to_f32(h, "rz")
    inexact = (y.astype(f64) != h) & np.isfinite(h)
    return (y.view(u32) | inexact.astype(u32)).view(f32)


def _wide(x):
    return np.atleast_1d(np.asarray(x, f64))


def fma32(a, b, c, mode="rn"):
    p = _wide(a) * _wide(b)  # exact: 24 + 24 bits
    c = _wide(c)
    h = p + c
    if mode != "rn":
        return f64_to_f32(to_odd(*two_sum(p, c)), mode)
    y = h.astype(f32)
    # a second rounding can only err on ties between two binary32 values, or below the normal range
    risky = (h.view(i64) & 0x1FFFFFFF) == 0x10000000
    risky |= np.abs(h) < _TINY32
    if risky.any():
        p, c = np.broadcast_arrays(p, c)
        y[risky] = to_odd(*two_sum(p[risky], c[risky])).astype(f32)
    return y


def fma64(a, b, c, mode="rn"):
    """Boldo and Melquiond's algorithm; plain a*b+c where intermediate values leave the binary64 range."""
    a, b, c = np.broadcast_arrays(_wide(a), _wide(b), _wide(c))
    plain = a * b + c
    uh, ul = two_prod(a, b)
    th, tl = two_sum(c, ul)
    vh, vl = two_sum(uh, th)
    z = to_odd(*two_sum(tl, vl))
    r = vh + z
    ok = np.isfinite(plain) & np.isfinite(r) & (np.abs(uh) > 1e-270) & (np.abs(a) < 1e300) & (np.abs(b) < 1e300)
    r = np.where(ok, r, plain)
    if mode != "rn":
        s, e = two_sum(vh, z)
        r = np.where(ok, directed64(s, e, mode), r)
    return r


def directed64(s, e, mode):
    """s + e rounded in a given direction, s being the nearest."""
    if mode == "rm":
        return np.where(e < 0, np.nextafter(s, -np.inf), s)
    if mode == "rp":
        return np.where(e > 0, np.nextafter(s, np.inf), s)
    if mode == "rz":
        return np.where((e != 0) & ((e < 0) == (s > 0)), np.nextafter(s, 0.0), s)
    return s


def add32(a, b, mode):
    return f64_to_f32(to_odd(*two_sum(_wide(a), _wide(b))), mode)


def mul32(a, b, mode):
    return f64_to_f32(_wide(a) * _wide(b), mode)


def div32(a, b, mode):
    return f64_to_f32(_wide(a) / _wide(b), mode)  # a 24-bit quotient is never close to a boundary in 53 bits


def sqrt32(a, mode):
    return f64_to_f32(np.sqrt(_wide(a)), mode)


def ftz(x):
    """Flush binary32 subnormals to zero, keeping the sign."""
    x = np.atleast_1d(np.asarray(x, f32))
    b = x.view(u32)
    return np.where((b & 0x7F800000) == 0, b & u32(0x80000000), b).view(f32)


def saturate(x):
    """Clamp to [0, 1]; NaN becomes +0."""
    x = np.asarray(x)
    one, zero = x.dtype.type(1), x.dtype.type(0)
    return np.where(x > one, one, np.where(x > zero, x, zero))


def fminmax(a, b, is_min, nan):
    """PTX min/max: -0 < +0; without .NaN a NaN operand loses; a NaN result is the canonical one."""
    r = (np.minimum if is_min else np.maximum)(a, b) if nan else (np.fmin if is_min else np.fmax)(a, b)
    zero = (a == b) & (r == 0)
    if np.any(zero):
        sign = np.signbit(a) | np.signbit(b) if is_min else np.signbit(a) & np.signbit(b)
        r = np.where(zero, np.where(sign, -r.dtype.type(0), r.dtype.type(0)), r)
    none = np.isnan(r)
    if np.any(none):
        r = np.where(none, CANONICAL_NAN[r.dtype.itemsize], r)
    return r


# ---------------------------------------------------------------- 16-bit formats
def bf16_to_f32(bits):
    return (np.asarray(bits).astype(u32) << u32(16)).view(f32)


def f32_to_bf16(x, mode="rn"):
    """Bits of the bfloat16; NaN gives the canonical 0x7FFF."""
    x = np.atleast_1d(np.asarray(x, f32))
    b = x.view(u32)
    if mode in ("rn", "rna"):
        r = b + (u32(0x8000) if mode == "rna" else u32(0x7FFF) + ((b >> u32(16)) & u32(1)))
    elif mode == "rz":
        r = b
    else:
        raise NotImplementedError(f"rounding mode .{mode} to bf16")
    return np.where(np.isnan(x), u16(0x7FFF), (r >> u32(16)).astype(u16))


def f32_to_f16(x, mode="rn"):
    """Bits of the binary16; NaN gives the canonical 0x7FFF."""
    x = np.atleast_1d(x)
    y = x.astype(f16)
    if mode != "rn":
        back = y.astype(f64)
        w = x.astype(f64)
        toward = {
            "rz": lambda: (np.abs(back) > np.abs(w), f16(0)),
            "rm": lambda: (back > w, f16(-np.inf)),
            "rp": lambda: (back < w, f16(np.inf)),
        }[mode]()
        y = np.where(toward[0], np.nextafter(y, toward[1]), y)
    return np.where(np.isnan(x), u16(0x7FFF), y.view(u16))


def f32_to_tf32(x, mode):
    b = np.atleast_1d(np.asarray(x, f32)).view(u32)
    if mode == "rna":
        r = b + u32(0x1000)
    elif mode == "rn":
        r = b + u32(0xFFF) + ((b >> u32(13)) & u32(1))
    elif mode == "rz":
        r = b
    else:
        raise NotImplementedError(f"rounding mode .{mode} to tf32")
    special = (b & u32(0x7F800000)) == u32(0x7F800000)
    return np.where(special, b, r & u32(0xFFFFE000))


def fma_odd(a, b, c):
    """a*b + c for 16-bit operands given as binary64, rounded to odd."""
    return to_odd(*two_sum(_wide(a) * _wide(b), _wide(c)))


# ---------------------------------------------------------------- conversions
_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integral(x, mode):
    return _TO_INTEGRAL[mode](x)


def float_to_int(x, dtype, mode, from_f64):
    """Round, clamp to the integer's range, and apply PTX's rule for NaN."""
    info = np.iinfo(dtype)
    r = to_integral(np.atleast_1d(x).astype(f64), mode)
    lo, hi = f64(info.min), f64(info.max)  # hi rounds up to 2**64 or 2**63 for 64-bit types
    inside = (r > lo) & (r < hi)
    out = np.where(inside, r, 0).astype(dtype)
    out = np.where(r >= hi, dtype(info.max), np.where(r <= lo, dtype(info.min), out))
    wide = from_f64 or info.bits == 64
    nan = (1 << (info.bits - 1) if info.min == 0 else info.min) if wide else 0
    return np.where(np.isnan(r), dtype(nan), out)


def int_to_f32(x, mode):
    x = np.atleast_1d(x)
    if mode == "rn":
        return x.astype(f32)
    if x.dtype.itemsize < 8:
        return f64_to_f32(x.astype(f64), mode)
    h = x.astype(f64)  # make h odd where inexact, then round
    small = np.abs(h) < 2.0**62
    e = np.where(small, x - np.where(small, h, 0).astype(x.dtype), 0).astype(x.dtype).view(i64)
    return f64_to_f32(to_odd(h, e.astype(f64)), mode)


# ---------------------------------------------------------------- integers
def mulhi64(a, b, signed):
    a = np.atleast_1d(a).astype(u64)
    b = np.atleast_1d(b).astype(u64)
    m, s = u64(0xFFFFFFFF), u64(32)
    al, ah, bl, bh = a & m, a >> s, b & m, b >> s
    t = al * bl
    k = t >> s
    t1 = ah * bl + k
    t2 = al * bh + (t1 & m)
    hi = ah * bh + (t1 >> s) + (t2 >> s)
    if signed:
        hi = hi - np.where(a >> u64(63), b, u64(0)) - np.where(b >> u64(63), a, u64(0))
    return hi


def divrem(a, b, want_rem):
    """Truncating division; x/0 and x%0 are all ones (what ptxas folds them to; unspecified in PTX)."""
    a, b = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    zero = b == 0
    d = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "i":
        minus = d == -1
        d = np.where(minus, a.dtype.type(1), d)
        q = a // d
        q = q + ((a - q * d != 0) & ((a < 0) != (d < 0)))  # floor -> trunc
        q = np.where(minus, -a, q).astype(a.dtype)
        d = np.where(minus, a.dtype.type(-1), d)
    else:
        q = a // d
    ones = np.array(-1, i64).astype(a.dtype)
    return np.where(zero, ones, a - q * d if want_rem else q)


def popcount(x):
    return np.bitwise_count(x).astype(u32)


def clz(x):
    """Leading zeros of an unsigned array."""
    w = x.dtype.itemsize * 8
    x = x.copy()
    for s in [1 << k for k in range((w - 1).bit_length())]:
        x |= x >> x.dtype.type(s)
    return u32(w) - np.bitwise_count(x).astype(u32)


def bit_reverse(x):
    w, t = x.dtype.itemsize * 8, x.dtype.type
    full = (1 << w) - 1
    s = 1
    while s < w:
        mask = sum(((1 << s) - 1) << k for k in range(0, w, 2 * s)) & full
        x = ((x >> t(s)) & t(mask)) | ((x & t(mask)) << t(s))
        s *= 2
    return x
