"""Bounds, alignment, initialisation, races, atomics and asynchronous copies, in hand-written PTX."""

import numpy as np
import pytest

from ptxrun import MemoryFault, PtxError, RaceError, launch

from .snippets import kernel

SMEM = ".shared .align 16 .b8 sm[512];"
LOAD = "add.u64 %rd0, %x, %ga; ld.global.u32 %r0, [%rd0];"
STORE = "add.u64 %rd31, %out, %ga; st.global.u32 [%rd31], %r0;"
# %rd2 = this thread's slot in sm, %rd3 = its mirror image's
SLOTS = """mov.u64 %rd1, sm; add.u64 %rd2, %rd1, %ta; sub.u32 %r10, %n, %t; sub.u32 %r10, %r10, 1;
    mul.wide.u32 %rd3, %r10, 4; add.u64 %rd3, %rd1, %rd3;"""
REVERSE = LOAD + SLOTS + "st.shared.u32 [%rd2], %r0; {sync} ld.shared.u32 %r0, [%rd3];" + STORE


def reverse(sync, threads=64, blocks=2, **options):
    x = np.arange(threads * blocks, dtype=np.uint32)
    out = np.zeros_like(x)
    stats = launch(kernel(REVERSE.replace("{sync}", sync), ("x", "out"), SMEM), "k", blocks, threads, [x, out], **options)
    assert (out.reshape(blocks, -1) == x.reshape(blocks, -1)[:, ::-1]).all()
    return stats


# ---------------------------------------------------------------- bounds and alignment
def test_out_of_bounds_read_names_thread_and_buffer():
    x, out = np.zeros(60, np.uint32), np.zeros(64, np.uint32)
    with pytest.raises(
        MemoryFault,
        match=r"(?s)out-of-bounds 4-byte global.*0 bytes past the end of arg0.*"
        r"block \(1,0,0\) thread \(28,0,0\).*line \d+: ld.global.u32",
    ):
        launch(kernel(LOAD + STORE, ("x", "out")), "k", 2, 32, [x, out])


def test_out_of_bounds_write_and_null_pointer():
    with pytest.raises(MemoryFault, match="out-of-bounds"):
        launch(kernel("mov.u32 %r0, 1;" + STORE), "k", 1, 32, [np.zeros(31, np.uint32)])
    with pytest.raises(MemoryFault, match="out-of-bounds"):
        launch(kernel("mov.u64 %rd0, 0; ld.global.u32 %r0, [%rd0];"), "k", 1, 32, [np.zeros(1)])


def test_views_keep_their_alignment():
    base = np.zeros(65, np.float32)
    ptx = kernel("ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%out];")
    launch(ptx, "k", 1, 1, [base[4:]])
    with pytest.raises(MemoryFault, match="misaligned 16-byte"):
        launch(ptx, "k", 1, 1, [base[1:]])


def test_overlapping_arrays_alias():
    base = np.arange(64, dtype=np.uint32)
    launch(kernel(LOAD + "add.u32 %r0, %r0, 1;" + STORE, ("x", "out")), "k", 1, 32, [base[:32], base[16:48]])
    assert list(base[16:20]) == [1, 2, 3, 4]


def test_strided_and_read_only_arguments():
    x = np.arange(64, dtype=np.uint32)
    x.flags.writeable = False
    out = np.zeros(32, np.uint32)
    launch(kernel("shl.b64 %ga, %ga, 1;" + LOAD + "shr.b64 %ga, %ga, 1;" + STORE, ("x", "out")), "k", 1, 32, [x[::2], out])
    assert (out == x[::2]).all()
    with pytest.raises(MemoryFault, match="read-only"):
        launch(kernel("mov.u32 %r0, 1;" + STORE), "k", 1, 32, [x])


def test_shared_overflow_between_variables():
    two = ".shared .align 4 .b8 aa[64]; .shared .align 4 .b8 bb[64];"
    body = "mov.u64 %rd1, aa; mov.u64 %rd4, bb; add.u64 %rd2, %rd1, %ta; st.shared.u32 [%rd2], %t; st.shared.u32 [%rd4], %t;"
    launch(kernel(body, shared=two), "k", 1, 16, [np.zeros(1)])
    with pytest.raises(MemoryFault, match="0 bytes past the end of aa"):
        launch(kernel(body, shared=two), "k", 1, 17, [np.zeros(1)])


def test_local_memory_bounds_and_generic_addressing():
    regs = ".local .align 16 .b8 depot[64]; .reg .b64 %SP, %SPL;"
    body = """mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL; and.b32 %r1, %t, 15; mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %SP, %rd0; st.u32 [%rd1], %g; add.u64 %rd2, %SPL, %rd0; ld.local.u32 %r0, [%rd2];"""
    out = np.zeros(64, np.uint32)
    launch(kernel(body + STORE, regs=regs), "k", 2, 32, [out])
    assert (out == np.arange(64)).all()
    with pytest.raises(MemoryFault, match="out-of-bounds 4-byte local"):
        launch(kernel(body.replace(", 15", ", 31") + STORE, regs=regs), "k", 2, 32, [out])


def test_generic_access_mixes_spaces():
    body = (
        LOAD
        + SLOTS
        + """st.shared.u32 [%rd2], %r0; bar.sync 0; cvta.shared.u64 %rd4, %rd3; and.b32 %r1, %t, 1;
    setp.eq.u32 %p0, %r1, 0; selp.b64 %rd5, %rd4, %rd0, %p0; ld.u32 %r0, [%rd5]; cvta.to.shared.u64 %rd6, %rd4;
    cvt.u32.u64 %r5, %rd4; cvt.u32.u64 %r6, %rd6; setp.ne.u32 %p1, %r5, %r6; @%p1 trap;"""
        + STORE
    )
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    launch(kernel(body, ("x", "out"), SMEM), "k", 1, 64, [x, out])
    assert list(out) == [63 - t if t % 2 == 0 else t for t in range(64)]


def test_dynamic_shared_memory():
    dyn = ".extern .shared .align 16 .b8 sm[];"
    body = REVERSE.replace("{sync}", "bar.sync 0;")
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    launch(kernel(body, ("x", "out"), dyn), "k", 1, 64, [x, out], dynamic_shared=256)
    assert (out == x[::-1]).all()
    with pytest.raises(MemoryFault):
        launch(kernel(body, ("x", "out"), dyn), "k", 1, 64, [x, out], dynamic_shared=252)
    with pytest.raises(PtxError, match="shared memory"):
        launch(kernel(body, ("x", "out"), dyn), "k", 1, 64, [x, out], dynamic_shared=300000)


# ---------------------------------------------------------------- initialisation and races
def test_uninitialised_shared_read():
    body = SLOTS + "ld.shared.u32 %r0, [%rd2];" + STORE
    out = np.zeros(32, np.uint32)
    with pytest.raises(MemoryFault, match="uninitialised"):
        launch(kernel(body, shared=SMEM), "k", 1, 32, [out])
    launch(kernel(body, shared=SMEM), "k", 1, 32, [out], uninit_shared="poison")
    assert (out == 0xFFFFFFFF).all()
    launch(kernel(body, shared=SMEM), "k", 1, 32, [out], uninit_shared="zero")
    assert (out == 0).all()


def test_missing_barrier_is_a_race():
    reverse("bar.sync 0;", check_races=True)
    with pytest.raises(RaceError, match=r"(?s)read-after-write.*st\.shared|read-after-write"):
        reverse("", check_races=True)


def test_warp_barrier_orders_one_warp_only():
    reverse("bar.warp.sync -1;", threads=32, check_races=True)
    with pytest.raises(RaceError):
        reverse("", threads=32, check_races=True)
    with pytest.raises(RaceError):
        reverse("bar.warp.sync -1;", threads=64, check_races=True, uninit_shared="poison")


def test_write_after_read_needs_a_barrier():
    body = REVERSE.replace("{sync}", "bar.sync 0;") + "{sync} add.u32 %r0, %r0, 5; st.shared.u32 [%rd2], %r0;"
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    go = lambda sync: launch(kernel(body.replace("{sync}", sync), ("x", "out"), SMEM), "k", 2, 32, [x, out], check_races=True)
    go("bar.sync 0;")
    with pytest.raises(RaceError, match="write-after-read"):
        go("")


def test_same_word_written_by_many():
    body = "mov.u64 %rd1, sm; st.shared.u32 [%rd1], {v};"
    go = lambda v: launch(kernel(body.replace("{v}", v), shared=SMEM), "k", 1, 32, [np.zeros(1)], check_races=True)
    go("%n")  # everybody writes the same value
    with pytest.raises(RaceError, match="write-after-write"):
        go("%t")


def test_neighbouring_bytes_are_not_a_race():
    body = "mov.u64 %rd1, sm; cvt.u64.u32 %rd2, %t; add.u64 %rd1, %rd1, %rd2; cvt.u16.u32 %rs0, %t; st.shared.u8 [%rd1], %rs0;"
    launch(kernel(body, shared=SMEM), "k", 1, 64, [np.zeros(1)], check_races=True)


def test_atomics_do_not_race_with_each_other():
    body = (
        """mov.u64 %rd1, sm; setp.eq.u32 %p0, %t, 0; mov.u32 %r1, 0; @%p0 st.shared.u32 [%rd1], %r1; {sync}
    atom.shared.add.u32 %r2, [%rd1], 1; bar.sync 0; ld.shared.u32 %r0, [%rd1];"""
        + STORE
    )
    out = np.zeros(128, np.uint32)
    launch(kernel(body.replace("{sync}", "bar.sync 0;"), shared=SMEM), "k", 2, 64, [out], check_races=True)
    assert (out == 64).all()
    with pytest.raises(RaceError):
        launch(kernel(body.replace("{sync}", ""), shared=SMEM), "k", 2, 64, [out], check_races=True)


def test_global_races_between_blocks():
    body = "mov.u32 %r0, %g; and.b64 %ga, %ga, 127;" + STORE
    out = np.zeros(64, np.uint32)
    with pytest.raises(RaceError, match="global"):
        launch(kernel(body), "k", 2, 32, [out], check_races="global")
    with pytest.raises(RaceError, match="global"):
        launch(kernel(body), "k", 2, 32, [out], check_races="global", max_threads=32)
    launch(kernel("mov.u32 %r0, %g;" + STORE), "k", 2, 32, [out], check_races="global")


# ---------------------------------------------------------------- atomics
@pytest.mark.parametrize(
    "op,ty,f",
    [
        ("add", "u32", np.add.reduce),
        ("min", "s32", np.minimum.reduce),
        ("max", "s32", np.maximum.reduce),
        ("max", "u32", lambda x: x.view(np.uint32).max()),
        ("or", "b32", np.bitwise_or.reduce),
        ("and", "b32", np.bitwise_and.reduce),
        ("xor", "b32", np.bitwise_xor.reduce),
    ],
)
def test_integer_atomics(op, ty, f):
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 256).astype(np.int32)
    dt = np.uint32 if ty[0] != "s" else np.int32
    out = np.zeros(1, dt)
    out[0] = x.view(dt)[0]
    launch(kernel(LOAD + f"red.global.{op}.{ty} [%out], %r0;", ("x", "out")), "k", 2, 128, [x, out])
    want = f(np.r_[x.view(dt)[:1], x.view(dt)].astype(dt), **({"dtype": dt} if op == "add" else {}))
    assert out[0] == dt(want)


def test_atomic_results_are_a_permutation():
    out, old = np.zeros(1, np.uint32), np.zeros(96, np.uint32)
    launch(
        kernel("atom.global.add.u32 %r0, [%out], 2; add.u64 %rd0, %old, %ga; st.global.u32 [%rd0], %r0;", ("out", "old")),
        "k",
        3,
        32,
        [out, old],
    )
    assert out[0] == 192 and sorted(old) == list(range(0, 192, 2))


def test_cas_loop_and_float_atomics():
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    out = np.zeros(3, np.float32)
    body = (
        LOAD
        + """mov.b32 %f0, %r0; atom.global.add.f32 %f1, [%out], %f0; ld.global.f32 %f2, [%out+4];
    L: add.f32 %f3, %f2, %f0; mov.b32 %r1, %f2; mov.b32 %r2, %f3; add.u64 %rd5, %out, 4; atom.global.cas.b32 %r3, [%rd5], %r1, %r2;
    mov.b32 %f2, %r3; setp.ne.u32 %p0, %r3, %r1; @%p0 bra L; atom.global.exch.b32 %r4, [%out+8], %r0;"""
    )
    launch(kernel(body, ("x", "out")), "k", 2, 32, [x, out])
    np.testing.assert_allclose(out[:2], x.astype(np.float64).sum(), rtol=1e-5)
    assert out[2] in x


def test_packed_half_atomics():
    out = np.zeros(2, np.float16)
    launch(kernel("mov.b32 %r0, 0x40003C00; red.global.add.noftz.f16x2 [%out], %r0;"), "k", 1, 32, [out])
    assert list(out) == [32, 64]


# ---------------------------------------------------------------- asynchronous copies
COPY = """mov.u64 %rd1, sm; shl.b64 %rd4, %ta, 2; add.u64 %rd2, %rd1, %rd4; add.u64 %rd5, %x, %rd4; cvt.u32.u64 %r9, %rd2;
    cp.async.cg.shared.global [%r9], [%rd5], 16; cp.async.commit_group; {wait} {sync} xor.b32 %r8, %t, {flip};
    mul.wide.u32 %rd6, %r8, 16; add.u64 %rd7, %rd1, %rd6; ld.shared.v4.u32 {%r0, %r1, %r2, %r3}, [%rd7]; add.u64 %rd8, %out, %rd4;
    st.global.v4.u32 [%rd8], {%r0, %r1, %r2, %r3};"""


def copy(wait, sync="bar.sync 0;", flip=1, **options):
    x = np.arange(128, dtype=np.uint32)
    out = np.zeros_like(x)
    body = COPY.replace("{wait}", wait).replace("{sync}", sync).replace("{flip}", str(flip))
    launch(kernel(body, ("x", "out"), SMEM), "k", 1, 32, [x, out], **options)
    return x, out


@pytest.mark.parametrize("wait", ["cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_async_copy(wait):
    x, out = copy(wait, check_races=True)
    assert (out.reshape(-1, 2, 4) == x.reshape(-1, 2, 4)[:, ::-1]).all()


def test_async_copy_without_wait_or_with_too_few():
    for wait in ("", "cp.async.wait_group 1;"):
        with pytest.raises(MemoryFault, match="in flight"):
            copy(wait)
        _, out = copy(wait, uninit_shared="poison")
        assert (out == 0xFFFFFFFF).all()


def test_async_copy_needs_a_barrier_for_other_threads():
    with pytest.raises(RaceError):
        copy("cp.async.wait_group 0;", sync="", check_races=True)
    copy("cp.async.wait_group 0;", sync="", flip=0, check_races=True)  # own data only


def test_async_zero_fill():
    x, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    body = (
        COPY.replace("16; cp", "16, %r20; cp")
        .replace("{wait}", "cp.async.wait_all;")
        .replace("{sync}", "")
        .replace("{flip}", "0")
    )
    body = "and.b32 %r20, %t, 1; mul.lo.u32 %r20, %r20, 8;" + body
    launch(kernel(body, ("x", "out"), SMEM), "k", 1, 32, [x, out])
    want = x.reshape(-1, 4).copy()
    want[0::2] = 0
    want[1::2, 2:] = 0
    assert (out.reshape(-1, 4) == want).all()


# ---------------------------------------------------------------- profile
@pytest.mark.parametrize("stride,conflicts", [(1, 0), (2, 1), (32, 31), (33, 0)])
def test_bank_conflicts(stride, conflicts):
    big = ".shared .align 16 .b8 sm[8192];"
    body = f"mov.u64 %rd1, sm; mul.lo.u32 %r1, %t, {stride}; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.shared.u32 [%rd1], %t;"
    s = launch(kernel(body, shared=big), "k", 1, 32, [np.zeros(1)], profile=True)
    assert (s.shared_requests, s.bank_conflicts) == (1, conflicts)


def test_vector_accesses_do_not_conflict():
    big = ".shared .align 16 .b8 sm[8192];"
    body = "mov.u64 %rd1, sm; shl.b64 %rd2, %ta, 2; add.u64 %rd1, %rd1, %rd2; st.shared.v4.u32 [%rd1], {%t, %t, %t, %t};"
    s = launch(kernel(body, shared=big), "k", 1, 32, [np.zeros(1)], profile=True)
    assert (s.shared_requests, s.shared_wavefronts, s.bank_conflicts) == (1, 4, 0)


def test_sectors():
    x, out = np.zeros(1024, np.uint32), np.zeros(64, np.uint32)
    s = launch(kernel(LOAD + STORE, ("x", "out")), "k", 1, 64, [x, out], profile=True)
    assert (s.global_requests, s.global_sectors) == (4, 16)
    s = launch(
        kernel("shl.b64 %ga, %ga, 4;" + LOAD + "shr.b64 %ga, %ga, 4;" + STORE, ("x", "out")), "k", 1, 64, [x, out], profile=True
    )
    assert s.global_sectors == 64 + 8
