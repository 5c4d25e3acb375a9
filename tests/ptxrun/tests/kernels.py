"""Kernels written for numba-cuda, and the intrinsics they need."""

import math

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack

from llvmlite import ir
from numba import cuda
from numba.core import types
from numba.cuda.extending import intrinsic
from numba.extending import register_jitable

f4, i4, u4, u2 = types.float32, types.int32, types.uint32, types.uint16
P, PI, PH = types.CPointer(f4), types.CPointer(i4), types.CPointer(u2)
F, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
ALL = 0xFFFFFFFF


# ---------------------------------------------------------------- intrinsics
@intrinsic
def load4(tc, p, i):
    sig = types.UniTuple(f4, 4)(p, types.intp)

    def cg(c, b, s, a):
        v = b.load(b.bitcast(b.gep(a[0], [a[1]]), ir.VectorType(F, 4).as_pointer()), align=16)
        return c.make_tuple(b, s.return_type, [b.extract_element(v, I32(j)) for j in range(4)])

    return sig, cg


@intrinsic
def store4(tc, p, i, v):
    sig = types.void(p, types.intp, types.UniTuple(f4, 4))

    def cg(c, b, s, a):
        v = ir.Constant(ir.VectorType(F, 4), ir.Undefined)
        for j in range(4):
            v = b.insert_element(v, b.extract_value(a[2], j), I32(j))
        b.store(v, b.bitcast(b.gep(a[0], [a[1]]), ir.VectorType(F, 4).as_pointer()), align=16)
        return c.get_dummy_value()

    return sig, cg


def asm_unary(text, constraint, out, inp, out_ir, in_ir):
    @intrinsic
    def f(tc, x):
        def cg(c, b, s, a):
            return b.call(ir.InlineAsm(ir.FunctionType(out_ir, [in_ir]), text, constraint, side_effect=False), a)

        return out(inp), cg

    return f


to_bf16 = asm_unary("cvt.rn.bf16.f32 $0, $1;", "=h,f", u2, f4, I16, F)
from_bf16 = asm_unary("cvt.f32.bf16 $0, $1;", "=f,h", f4, u2, F, I16)


@intrinsic
def half_to_f32(tc, u):
    return f4(u2), lambda c, b, s, a: b.fpext(b.bitcast(a[0], ir.HalfType()), F)


@intrinsic
def f32_to_half(tc, x):
    return u2(f4), lambda c, b, s, a: b.bitcast(b.fptrunc(a[0], ir.HalfType()), I16)


@intrinsic
def f32_bits(tc, x):
    return u4(f4), lambda c, b, s, a: b.bitcast(a[0], I32)


@intrinsic
def bits_f32(tc, u):
    return f4(u4), lambda c, b, s, a: b.bitcast(a[0], F)


@register_jitable
def bf16_soft(v):
    b = f32_bits(v)
    return np.uint16((b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


# ---------------------------------------------------------------- reductions
@register_jitable
def warp_sum(v):
    v += cuda.shfl_xor_sync(ALL, v, 16)
    v += cuda.shfl_xor_sync(ALL, v, 8)
    v += cuda.shfl_xor_sync(ALL, v, 4)
    v += cuda.shfl_xor_sync(ALL, v, 2)
    return v + cuda.shfl_xor_sync(ALL, v, 1)


@register_jitable
def warp_max(v):
    o = 16
    while o > 0:
        v = max(v, cuda.shfl_xor_sync(ALL, v, o))
        o >>= 1
    return v


@register_jitable
def block_sum(v, sm):
    lane, w = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    v = warp_sum(v)
    if lane == 0:
        sm[w] = v
    cuda.syncthreads()
    v = sm[lane] if lane < (cuda.blockDim.x >> 5) else f4(0)
    return warp_sum(v)


def rms_scalar(x, w, y, n, eps):
    sm = cuda.shared.array(32, f4)
    base = cuda.blockIdx.x * n
    s = f4(0)
    j = cuda.threadIdx.x
    while j < n:
        v = x[base + j]
        s += v * v
        j += cuda.blockDim.x
    s = block_sum(s, sm)
    inv = cuda.libdevice.rsqrtf(s / f4(n) + eps)
    j = cuda.threadIdx.x
    while j < n:
        y[base + j] = x[base + j] * inv * w[j]
        j += cuda.blockDim.x


def rms_vector(x, w, y, n, eps):
    sm = cuda.shared.array(32, f4)
    base = cuda.blockIdx.x * n
    s = f4(0)
    j = cuda.threadIdx.x * 4
    while j < n:
        a, b, c, d = load4(x, base + j)
        s += a * a + b * b + c * c + d * d
        j += cuda.blockDim.x * 4
    s = block_sum(s, sm)
    inv = cuda.libdevice.rsqrtf(s / f4(n) + eps)
    j = cuda.threadIdx.x * 4
    while j < n:
        a, b, c, d = load4(x, base + j)
        e, f, g, h = load4(w, j)
        store4(y, base + j, (a * inv * e, b * inv * f, c * inv * g, d * inv * h))
        j += cuda.blockDim.x * 4


def softmax(x, y, n):  # one warp per row
    row = cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
    lane = cuda.threadIdx.x & 31
    base = row * n
    top = f4(-math.inf)
    j = lane
    while j < n:
        top = max(top, x[base + j])
        j += 32
    top = warp_max(top)
    s = f4(0)
    j = lane
    while j < n:
        s += math.exp(x[base + j] - top)
        j += 32
    s = warp_sum(s)
    j = lane
    while j < n:
        y[base + j] = math.exp(x[base + j] - top) / s
        j += 32


# ---------------------------------------------------------------- assorted
def array_softplus(x, y):  # numba's own array arguments
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(x.shape[1]):
            y[i, j] = math.log(f4(1) + math.exp(x[i, j]))


def transpose(x, y, n):
    tile = cuda.shared.array((32, 33), f4)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c, r = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for k in range(0, 32, 8):
        tile[ty + k, tx] = x[(r + ty + k) * n + c + tx]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        y[(c + ty + k) * n + r + tx] = tile[tx, ty + k]


def transpose_no_barrier(x, y, n):
    tile = cuda.shared.array((32, 33), f4)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c, r = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for k in range(0, 32, 8):
        tile[ty + k, tx] = x[(r + ty + k) * n + c + tx]
    for k in range(0, 32, 8):
        y[(c + ty + k) * n + r + tx] = tile[tx, ty + k]


def histogram(x, h, total, n, bins):
    local = cuda.shared.array(64, i4)
    t = cuda.threadIdx.x
    if t < bins:
        local[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < n:
        cuda.atomic.add(local, x[i], 1)
    cuda.syncthreads()
    if t < bins and local[t] > 0:
        cuda.atomic.add(h, t, local[t])
        cuda.atomic.max(total, 0, local[t])


def bank(x, y, n):
    i = cuda.grid(1)
    if i >= n:
        return
    v = x[i]
    y[i] = math.exp(v)
    y[n + i] = math.log(abs(v) + f4(1))
    y[2 * n + i] = math.sin(v * f4(50))
    y[3 * n + i] = math.tanh(v)
    y[4 * n + i] = math.sqrt(abs(v))
    y[5 * n + i] = math.erf(v)
    y[6 * n + i] = math.pow(abs(v), f4(0.3))
    y[7 * n + i] = math.floor(v) + math.ceil(v)
    y[8 * n + i] = f4(1) / v
    y[9 * n + i] = f4(i4(v * f4(100)) // i4(7) + i4(v * f4(100)) % i4(-3))
    y[10 * n + i] = math.fabs(v) if v < 0 else -v
    y[11 * n + i] = math.cos(v * f4(1e5))


def bank64(x, y, n):
    i = cuda.grid(1)
    if i < n:
        v = x[i]
        y[i] = math.exp(v) + math.sin(v * 1e7) + math.pow(abs(v), 1.7) + math.tanh(v) / math.sqrt(v * v + 1)


def halves(x, y, h, n):
    i = cuda.grid(1)
    if i < n:
        h[i] = f32_to_half(x[i])
        h[n + i] = to_bf16(x[i])
        h[2 * n + i] = bf16_soft(x[i])
        y[i] = half_to_f32(h[i])
        y[n + i] = from_bf16(h[n + i])
        y[2 * n + i] = bits_f32(u4(h[n + i]) << u4(16))


def collatz(x, y, n):
    i = cuda.grid(1)
    if i >= n:
        return
    v, k = x[i], i4(0)
    while v != 1:
        if v & 1:
            v = i4(3) * v + i4(1)
        else:
            v = v // i4(2)
        k += i4(1)
        if k > 500:
            break
    y[i] = k


def local_sort(x, y, n):  # insertion sort of 8 values per thread, in local memory
    buf = cuda.local.array(8, f4)
    i = cuda.grid(1)
    if i < n:
        for j in range(8):
            v = x[i * 8 + j]
            k = j
            while k > 0 and buf[k - 1] > v:
                buf[k] = buf[k - 1]
                k -= 1
            buf[k] = v
        for j in range(8):
            y[i * 8 + j] = buf[j]


def scan(x, y):  # inclusive scan of one block with ballots and shuffles
    sm = cuda.shared.array(32, f4)
    t = cuda.threadIdx.x
    lane, w = t & 31, t >> 5
    v = x[t]
    for o in (1, 2, 4, 8, 16):
        u = cuda.shfl_up_sync(ALL, v, o)
        if lane >= o:
            v += u
    if lane == 31:
        sm[w] = v
    cuda.syncthreads()
    s = f4(0)
    for k in range(w):
        s += sm[k]
    odd = cuda.ballot_sync(ALL, lane & 1)
    y[t] = v + s + f4(u4(odd) == u4(0xAAAAAAAA))


# ---------------------------------------------------------------- tensor cores
def make_mma(dt):
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.{dt}.{dt}.f32 {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"

    @intrinsic
    def mma(tc, a, b, c):
        sig = types.UniTuple(f4, 4)(types.UniTuple(u4, 4), types.UniTuple(u4, 2), types.UniTuple(f4, 4))

        def cg(ctx, bd, s, args):
            ex = lambda t, n: [bd.extract_value(t, i) for i in range(n)]
            fty = ir.FunctionType(ir.LiteralStructType([F] * 4), [I32] * 6 + [F] * 4)
            r = bd.call(
                ir.InlineAsm(fty, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=False),
                ex(args[0], 4) + ex(args[1], 2) + ex(args[2], 4),
            )
            return ctx.make_tuple(bd, s.return_type, [bd.extract_value(r, i) for i in range(4)])

        return sig, cg

    return mma


mma_bf16, mma_f16 = make_mma("bf16"), make_mma("f16")


def _smem(ctx, bd, ty, a, i):
    p = bd.gep(ctx.make_array(ty)(ctx, bd, value=a).data, [i])
    p = bd.addrspacecast(bd.bitcast(p, ir.IntType(8).as_pointer()), ir.IntType(8).as_pointer(3))
    return bd.ptrtoint(p, I32)


@intrinsic
def cp_async16(tc, dst, i, src, j):
    sig = types.void(dst, types.intp, src, types.intp)

    def cg(ctx, bd, s, a):
        d = _smem(ctx, bd, s.args[0], a[0], a[1])
        g = bd.ptrtoint(bd.gep(a[2], [a[3]]), I64)
        bd.call(
            ir.InlineAsm(
                ir.FunctionType(ir.VoidType(), [I32, I64]),
                "{ .reg .u64 g; cvta.to.global.u64 g, $1; cp.async.cg.shared.global [$0], [g], 16; }",
                "r,l,~{memory}",
                side_effect=True,
            ),
            [d, g],
        )
        return ctx.get_dummy_value()

    return sig, cg


def void_asm(text):
    @intrinsic
    def f(tc):
        def cg(ctx, bd, s, a):
            bd.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return ctx.get_dummy_value()

        return types.void(), cg

    return f


cp_commit, cp_wait0, cp_wait1 = (void_asm(f"cp.async.{x};") for x in ("commit_group", "wait_group 0", "wait_group 1"))


def make_ldmatrix(n, trans=False):
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{n}{'.trans' if trans else ''}.shared.b16 "
        f"{{{','.join(f'${q}' for q in range(n))}}}, [${n}];"
    )

    @intrinsic
    def f(tc, sm, i):
        sig = types.UniTuple(u4, n)(sm, types.intp)

        def cg(ctx, bd, s, a):
            fty = ir.FunctionType(ir.LiteralStructType([I32] * n), [I32])
            r = bd.call(
                ir.InlineAsm(fty, text, ",".join(["=r"] * n) + ",r,~{memory}", side_effect=True),
                [_smem(ctx, bd, s.args[0], a[0], a[1])],
            )
            return ctx.make_tuple(bd, s.return_type, [bd.extract_value(r, q) for q in range(n)])

        return sig, cg

    return f


ldm4, ldm2, ldm2t = make_ldmatrix(4), make_ldmatrix(2), make_ldmatrix(2, True)


def make_matmul(mma, wait=True, double=False):
    """C[16x8] = A[16xK] @ B[8xK]^T by one warp per block; double: two cp.async stages."""

    def matmul(A, B, C, K):
        sa = cuda.shared.array(512, u2)
        sb = cuda.shared.array(256, u2)
        t = cuda.threadIdx.x
        A0, B0, C0 = cuda.blockIdx.x * 16 * K, cuda.blockIdx.x * 8 * K, cuda.blockIdx.x * 128
        acc = (f4(0), f4(0), f4(0), f4(0))
        row, col = t >> 1, (t & 1) * 8
        if double:
            cp_async16(sa, row * 16 + col, A, A0 + row * K + col)
            if t < 16:
                cp_async16(sb, row * 16 + col, B, B0 + row * K + col)
            cp_commit()
        k, buf = i4(0), i4(0)
        while k < K:
            nxt = k + i4(16) if double else k
            into = (i4(1) - buf) if double else buf
            if nxt < K:
                cp_async16(sa, into * 256 + row * 16 + col, A, A0 + row * K + nxt + col)
                if t < 16:
                    cp_async16(sb, into * 128 + row * 16 + col, B, B0 + row * K + nxt + col)
            cp_commit()
            if wait:
                if double:
                    cp_wait1()
                else:
                    cp_wait0()
            cuda.syncwarp()
            a = ldm4(sa, buf * 256 + (t % 16) * 16 + (t // 16) * 8)
            b = ldm2(sb, buf * 128 + (t % 8) * 16 + ((t // 8) % 2) * 8)
            acc = mma(a, b, acc)
            cuda.syncwarp()
            k += i4(16)
            if double:
                buf = i4(1) - buf
        r, c = t // 4, (t % 4) * 2
        C[C0 + r * 8 + c], C[C0 + r * 8 + c + 1] = acc[0], acc[1]
        C[C0 + (r + 8) * 8 + c], C[C0 + (r + 8) * 8 + c + 1] = acc[2], acc[3]

    return matmul


@intrinsic
def pack_bf16(tc, lo, hi):
    def cg(c, b, s, a):
        fty = ir.FunctionType(I32, [F, F])
        return b.call(ir.InlineAsm(fty, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", side_effect=False), [a[1], a[0]])

    return u4(f4, f4), cg


D = 32  # head size of the attention kernel
TILE = 16 * D
ACC = D // 8 * 4


def attention(Q, K, V, O, n, scale):
    """One warp per 16 queries, streaming over 16 keys at a time with an online softmax; bf16 in, f32 out."""
    sq = cuda.shared.array(TILE, u2)
    sk = cuda.shared.array(TILE, u2)
    sv = cuda.shared.array(TILE, u2)
    t = cuda.threadIdx.x
    q0 = cuda.blockIdx.x * 16
    r, c = t // 4, (t % 4) * 2
    neg = f4(-math.inf)
    j = t
    while j < 2 * D:
        cp_async16(sq, j * 8, Q, q0 * D + j * 8)
        j += 32
    cp_commit()
    o = cuda.local.array(ACC, f4)
    for k in range(D // 8 * 4):
        o[k] = f4(0)
    m0, m1, l0, l1 = neg, neg, f4(0), f4(0)
    key = i4(0)
    while key < n:
        j = t
        while j < 2 * D:
            cp_async16(sk, j * 8, K, key * D + j * 8)
            cp_async16(sv, j * 8, V, key * D + j * 8)
            j += 32
        cp_commit()
        cp_wait0()
        cuda.syncwarp()
        s0 = (f4(0), f4(0), f4(0), f4(0))
        s1 = (f4(0), f4(0), f4(0), f4(0))
        for d in range(0, D, 16):
            a = ldm4(sq, (t % 16) * D + d + (t // 16) * 8)
            s0 = mma_bf16(a, ldm2(sk, (t % 8) * D + d + ((t // 8) % 2) * 8), s0)
            s1 = mma_bf16(a, ldm2(sk, (8 + t % 8) * D + d + ((t // 8) % 2) * 8), s1)
        top0 = max(max(s0[0], s0[1]), max(s1[0], s1[1])) * scale
        top1 = max(max(s0[2], s0[3]), max(s1[2], s1[3])) * scale
        for b in (1, 2):
            top0 = max(top0, cuda.shfl_xor_sync(ALL, top0, b))
            top1 = max(top1, cuda.shfl_xor_sync(ALL, top1, b))
        new0, new1 = max(m0, top0), max(m1, top1)
        f0, f1 = math.exp(m0 - new0), math.exp(m1 - new1)
        m0, m1 = new0, new1
        p00, p01 = math.exp(s0[0] * scale - m0), math.exp(s0[1] * scale - m0)
        p02, p03 = math.exp(s1[0] * scale - m0), math.exp(s1[1] * scale - m0)
        p10, p11 = math.exp(s0[2] * scale - m1), math.exp(s0[3] * scale - m1)
        p12, p13 = math.exp(s1[2] * scale - m1), math.exp(s1[3] * scale - m1)
        l0 = l0 * f0 + (p00 + p01 + p02 + p03)
        l1 = l1 * f1 + (p10 + p11 + p12 + p13)
        pa = (pack_bf16(p00, p01), pack_bf16(p10, p11), pack_bf16(p02, p03), pack_bf16(p12, p13))
        for d in range(D // 8):
            acc = (o[4 * d] * f0, o[4 * d + 1] * f0, o[4 * d + 2] * f1, o[4 * d + 3] * f1)
            acc = mma_bf16(pa, ldm2t(sv, (t % 16) * D + d * 8), acc)
            o[4 * d], o[4 * d + 1], o[4 * d + 2], o[4 * d + 3] = acc[0], acc[1], acc[2], acc[3]
        cuda.syncwarp()
        key += i4(16)
    for b in (1, 2):
        l0 += cuda.shfl_xor_sync(ALL, l0, b)
        l1 += cuda.shfl_xor_sync(ALL, l1, b)
    for d in range(D // 8):
        O[(q0 + r) * D + d * 8 + c] = o[4 * d] / l0
        O[(q0 + r) * D + d * 8 + c + 1] = o[4 * d + 1] / l0
        O[(q0 + r + 8) * D + d * 8 + c] = o[4 * d + 2] / l1
        O[(q0 + r + 8) * D + d * 8 + c + 1] = o[4 * d + 3] / l1
