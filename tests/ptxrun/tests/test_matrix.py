"""Fragment layouts of mma, ldmatrix, stmatrix and movmatrix, register by register as the PTX ISA states them."""

import numpy as np
import pytest

from ptxrun import BarrierError, launch

from .snippets import kernel

rng = np.random.default_rng(5)
LANE = np.arange(32)
GROUP, T = LANE >> 2, LANE % 4


def run(instruction, groups, ty_out, n_out):
    """Load per-lane registers from arrays of shape (32, n), run, and return the (32, n_out) results."""
    groups = [np.ascontiguousarray(g).view(np.uint32) for g in groups]
    regs, load = [], []
    for k, g in enumerate(groups):
        n = g.shape[1]
        regs.append(f".reg .b32 %x{k}_<{n}>;")
        load.append(f"mul.lo.u32 %r0, %t, {4 * n}; cvt.u64.u32 %rd0, %r0; add.u64 %rd0, %in{k}, %rd0;")
        load += [f"ld.global.b32 %x{k}_{i}, [%rd0+{4 * i}];" for i in range(n)]
    regs.append(f".reg .b32 %d_<{n_out}>;")
    vec = lambda name, n: "{" + ", ".join(f"%{name}_{i}" for i in range(n)) + "}"
    args = ", ".join([vec("d", n_out)] + [vec(f"x{k}", g.shape[1]) for k, g in enumerate(groups)])
    store = [f"mul.lo.u32 %r0, %t, {4 * n_out}; cvt.u64.u32 %rd0, %r0; add.u64 %rd0, %out, %rd0;"]
    store += [f"st.global.b32 [%rd0+{4 * i}], %d_{i};" for i in range(n_out)]
    names = [f"in{k}" for k in range(len(groups))] + ["out"]
    out = np.zeros((32, n_out), np.uint32)
    text = kernel("\n".join(load + [f"{instruction} {args};"] + store), names, regs="\n".join(regs))
    launch(text, "k", 1, 32, groups + [out])
    return out.view(ty_out)


def accumulators(c):
    """(16, 8) -> (32, 4): c0, c1 in row groupID, c2, c3 eight rows below."""
    i = np.arange(4)
    return np.ascontiguousarray(c[(GROUP[:, None] + 8 * (i // 2)), T[:, None] * 2 + i % 2])


def fragments(a, b, e, ka, kb):
    """Registers of A and B with e elements each; ka and kb give the k index of element i."""
    na, nb = a.shape[1] // 2, b.shape[1] // 4  # elements per lane: 16*K/32 and 8*K/32
    i = np.arange(na)
    fa = np.stack([a[GROUP + 8 * ((j // e) % 2), ka(j)] for j in i], axis=1)
    fb = np.stack([b[GROUP, kb(j)] for j in range(nb)], axis=1)
    return np.ascontiguousarray(fa), np.ascontiguousarray(fb)


def bf16(x):
    return (x.view(np.uint32) >> 16).astype(np.uint16)


SIXTEEN = {
    16: (lambda i: T * 2 + i % 2 + 8 * (i >= 4), lambda i: T * 2 + i % 2 + 8 * (i >= 2)),
    8: (lambda i: T * 2 + i % 2, lambda i: T * 2 + i % 2),
}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("K", [16, 8])
def test_sixteen_bit(kind, K):
    a, b = rng.integers(-8, 8, (16, K)).astype(np.float32), rng.integers(-8, 8, (8, K)).astype(np.float32)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    code = (lambda x: x.astype(np.float16).view(np.uint16)) if kind == "f16" else bf16
    fa, fb = fragments(code(a), code(b), 2, *SIXTEEN[K])
    d = run(f"mma.sync.aligned.m16n8k{K}.row.col.f32.{kind}.{kind}.f32", [fa, fb, accumulators(c)], np.float32, 4)
    assert (d == accumulators((a.astype(np.float64) @ b.T + c).astype(np.float32))).all()


def test_half_accumulators():
    a, b = (rng.integers(-4, 4, s).astype(np.float16) for s in ((16, 16), (8, 16)))
    c = rng.integers(-100, 100, (16, 8)).astype(np.float16)
    fa, fb = fragments(a.view(np.uint16), b.view(np.uint16), 2, *SIXTEEN[16])
    d = run("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", [fa, fb, accumulators(c)], np.float16, 2)
    assert (d == accumulators(a @ b.T + c)).all()


@pytest.mark.parametrize("K", [8, 4])
def test_tf32(K):
    a, b = rng.integers(-99, 99, (16, K)).astype(np.float32), rng.integers(-99, 99, (8, K)).astype(np.float32)
    c = np.ones((16, 8), np.float32)
    fa, fb = fragments(a, b, 1, lambda i: T + 4 * (i >= 2), lambda i: T + 4 * (i >= 1))
    fb = (fb.view(np.uint32) | 0x1FFF).view(np.float32)  # low bits are ignored
    d = run(f"mma.sync.aligned.m16n8k{K}.row.col.f32.tf32.tf32.f32", [fa, fb, accumulators(c)], np.float32, 4)
    assert (d == accumulators(a @ b.T + 1)).all()


@pytest.mark.parametrize("ta,tb", [("s8", "s8"), ("u8", "s8")])
def test_int8(ta, tb):
    a = rng.integers(0, 256, (16, 32)).astype(np.uint8)
    b = rng.integers(-128, 128, (8, 32)).astype(np.int8)
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    fa, fb = fragments(a, b, 4, lambda i: T * 4 + i % 4 + 16 * (i >= 8), lambda i: T * 4 + i % 4 + 16 * (i >= 4))
    d = run(f"mma.sync.aligned.m16n8k32.row.col.s32.{ta}.{tb}.s32", [fa, fb, accumulators(c)], np.int32, 4)
    wide = a.astype(np.int32) if ta == "u8" else a.view(np.int8).astype(np.int32)
    assert (d == accumulators(wide @ b.astype(np.int32).T + c)).all()


def test_mma_needs_the_whole_warp():
    body = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0,%f1,%f2,%f3},{%r0,%r1,%r2,%r3},{%r4,%r5},{%f0,%f1,%f2,%f3};"
    with pytest.raises(BarrierError, match="needs 32 threads"):
        launch(kernel(body), "k", 1, 48, [np.zeros(1)])


SMEM = ".shared .align 16 .b8 sm[512];"
FILL = """mov.u64 %rd1, sm; shl.b64 %rd2, %ta, 2; add.u64 %rd3, %x, %rd2; add.u64 %rd4, %rd1, %rd2;
    ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%rd3]; st.shared.v4.b32 [%rd4], {%r0, %r1, %r2, %r3}; bar.warp.sync -1; cvt.u32.u64 %r8, %rd4;"""
SAVE = "add.u64 %rd5, %out, %rd2; st.global.v4.b32 [%rd5], {%r4, %r5, %r6, %r7};"


def lanes(m):
    """(4, 8, 8) matrices -> what each lane holds: row lane/4, columns 2*(lane%4) and the next."""
    return np.stack([np.stack([m[k, GROUP, T * 2], m[k, GROUP, T * 2 + 1]], axis=-1) for k in range(4)], axis=1)


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(trans):
    x = rng.integers(0, 65536, (4, 8, 8)).astype(np.uint16)  # lane l holds row l%8 of matrix l/8
    out = np.zeros((32, 4, 2), np.uint16)
    body = FILL + f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * trans}.shared.b16 {{%r4, %r5, %r6, %r7}}, [%r8];" + SAVE
    launch(kernel(body, ("x", "out"), SMEM), "k", 1, 32, [x, out], check_races=True)
    assert (out == lanes(x.swapaxes(1, 2) if trans else x)).all()


@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_undoes_ldmatrix(trans):
    x, out = rng.integers(0, 65536, (4, 8, 8)).astype(np.uint16), np.zeros((4, 8, 8), np.uint16)
    t = ".trans" * trans
    body = (
        FILL
        + f"""ldmatrix.sync.aligned.m8n8.x4{t}.shared::cta.b16 {{%r4, %r5, %r6, %r7}}, [%r8]; bar.warp.sync -1;
        mov.u32 %r0, 0; st.shared.v4.b32 [%rd4], {{%r0, %r0, %r0, %r0}}; bar.warp.sync -1;
        stmatrix.sync.aligned.m8n8.x4{t}.shared.b16 [%r8], {{%r4, %r5, %r6, %r7}}; bar.warp.sync -1;
        ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd4];"""
        + SAVE
    )
    launch(kernel(body, ("x", "out"), SMEM), "k", 1, 32, [x, out], check_races=True)
    assert (out == x).all()


def test_movmatrix_transposes():
    x = rng.integers(0, 65536, (8, 8)).astype(np.uint16)
    out = np.zeros((8, 8), np.uint16)
    body = """add.u64 %rd0, %x, %ta; ld.global.b32 %r0, [%rd0]; movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;
        add.u64 %rd1, %out, %ta; st.global.b32 [%rd1], %r1;"""
    launch(kernel(body, ("x", "out")), "k", 1, 32, [x, out])
    assert (out == x.T).all()
