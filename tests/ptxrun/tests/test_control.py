"""Control flow, calls, barriers and warp-wide instructions, in hand-written PTX."""

import numpy as np
import pytest

from ptxrun import BarrierError, KernelTrap, PtxError, StepLimit, launch

from .snippets import HEAD, kernel

STORE = "add.u64 %rd31, %out, %ga; st.global.u32 [%rd31], %r0;"


def run(body, threads=64, blocks=1, n=None, ptx=None, **options):
    out = np.zeros(n or threads * blocks, np.uint32)
    stats = launch(ptx or kernel(body), "k", blocks, threads, [out], **options)
    return out, stats


def test_divergent_branches_and_loops():
    # collatz steps: every thread loops a different number of times, with a branch inside
    body = (
        """add.u32 %r1, %g, 1; mov.u32 %r0, 0;
    LOOP: setp.eq.u32 %p0, %r1, 1; @%p0 bra DONE;
    and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1; bra.uni NEXT;
    EVEN: shr.u32 %r1, %r1, 1;
    NEXT: add.u32 %r0, %r0, 1; bra.uni LOOP;
    DONE: """
        + STORE
    )

    def steps(x):
        k = 0
        while x != 1:
            x, k = (3 * x + 1 if x & 1 else x // 2), k + 1
        return k

    out, _ = run(body, 96, 3)
    assert list(out) == [steps(i + 1) for i in range(288)]


def test_early_return_and_predicated_exit():
    out, stats = run("mov.u32 %r0, 7; setp.ge.u32 %p0, %g, 50; @%p0 ret;" + STORE, 32, 4)
    assert out.sum() == 350 and (out[:50] == 7).all()
    assert stats.global_stores == {32: 50}


def test_nested_loops():
    body = (
        """mov.u32 %r0, 0; mov.u32 %r1, 0;
    A: setp.ge.u32 %p0, %r1, %t; @%p0 bra END; mov.u32 %r2, 0;
    B: setp.ge.u32 %p1, %r2, %r1; @%p1 bra C; add.u32 %r0, %r0, %r2; add.u32 %r2, %r2, 1; bra B;
    C: add.u32 %r1, %r1, 1; bra A; END: """
        + STORE
    )
    out, _ = run(body, 40)
    assert list(out) == [sum(sum(range(i)) for i in range(t)) for t in range(40)]


def test_branch_table():
    body = (
        """and.b32 %r1, %t, 3; mov.u32 %r0, 100;
    TAB: .branchtargets L0, L1, L2, L1;
    brx.idx %r1, TAB;
    L0: mov.u32 %r0, 10; bra E; L1: mov.u32 %r0, 11; bra E; L2: mov.u32 %r0, 12; E: """
        + STORE
    )
    out, _ = run(body, 8)
    assert list(out) == [10, 11, 12, 11] * 2


FUNCS = """.func (.param .b32 ret) twice (.param .b32 x) { .reg .u32 %a; ld.param.u32 %a, [x]; add.u32 %a, %a, %a;
    st.param.b32 [ret+0], %a; ret; }
.func (.param .align 8 .b8 ret[16]) both (.param .b64 x, .param .b32 y) { .reg .u32 %a; .reg .b64 %b; .reg .pred %q;
    ld.param.b64 %b, [x]; ld.param.u32 %a, [y]; setp.gt.u32 %q, %a, 20; @%q add.u64 %b, %b, 1000; @%q bra L;
    { .param .b32 p0; st.param.b32 [p0], %a; .param .b32 r0; call.uni (r0), twice, (p0); ld.param.b32 %a, [r0]; }
    L: st.param.b64 [ret], %b; st.param.b32 [ret+8], %a; ret; }"""


def test_calls_from_divergent_code():
    body = (
        """.reg .pred %odd; and.b32 %r1, %t, 1; setp.eq.u32 %odd, %r1, 1; mov.u32 %r0, 5; @!%odd bra OUT;
    { .param .b64 p0; .param .b32 p1; cvt.u64.u32 %rd0, %t; st.param.b64 [p0], %rd0; st.param.b32 [p1], %t;
      .param .align 8 .b8 r[16]; call.uni (r), both, (p0, p1); ld.param.b64 %rd1, [r]; ld.param.b32 %r2, [r+8]; }
    cvt.u32.u64 %r0, %rd1; mad.lo.u32 %r0, %r2, 10000, %r0;
    OUT: """
        + STORE
    )
    out, _ = run(None, 64, ptx=kernel(body, functions=FUNCS))
    want = [5 if t % 2 == 0 else (t + 1000 + t * 10000 if t > 20 else t + 2 * t * 10000) for t in range(64)]
    assert list(out) == want


def test_recursion_is_refused():
    f = ".func f () { call f; ret; }"
    with pytest.raises(NotImplementedError, match="recursion"):
        run(None, 32, ptx=kernel("call f;", functions=f))


def test_endless_loop_stops():
    with pytest.raises(StepLimit):
        run("L: bra L;", 32, max_steps=5000)


def test_spin_on_another_thread_finishes():
    # thread 0 waits for a flag that the last thread, later in program order, raises
    body = """setp.ne.u32 %p0, %g, 0; @%p0 bra SETTER;
    WAIT: ld.volatile.global.u32 %r1, [%out+4]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT; bra END;
    SETTER: setp.ne.u32 %p2, %g, 63; @%p2 bra END; mov.u32 %r2, 9; st.volatile.global.u32 [%out+4], %r2; END: """
    out, _ = run(body, 64)
    assert out[1] == 9


def test_trap():
    with pytest.raises(KernelTrap, match=r"thread \(5,0,0\)"):
        run("setp.eq.u32 %p0, %t, 5; @%p0 trap;", 32)


# ---------------------------------------------------------------- block barriers
def test_barrier_in_divergent_code():
    body = "setp.lt.u32 %p0, %t, 16; @!%p0 bra L; bar.sync 0; L: " + "mov.u32 %r0, 1;" + STORE
    with pytest.raises(BarrierError, match="16 threads"):
        run(body, 32)
    out, _ = run(body, 32, strict_barriers=False)  # what hardware does: exited threads do not count
    assert out.sum() == 32


def test_two_different_barriers():
    body = "setp.lt.u32 %p0, %t, 32; @%p0 bra A; bar.sync 0; bra E; A: bar.sync 0; E: mov.u32 %r0, 1;" + STORE
    with pytest.raises(BarrierError, match="different barriers"):
        run(body, 64)


def test_deadlock_is_reported():
    body = "setp.lt.u32 %p0, %t, 32; @%p0 bra A; bar.sync 1; bra E; A: bar.sync 2; E: mov.u32 %r0, 1;" + STORE
    with pytest.raises(BarrierError, match="deadlock"):
        run(body, 64)


def test_named_barrier_with_count():
    body = (
        """setp.ge.u32 %p0, %t, 64; @%p0 bra OTHER; bar.sync 1, 64; bra E;
    OTHER: bar.sync 2, 32; E: bar.sync 0; mov.u32 %r0, 1;"""
        + STORE
    )
    out, stats = run(body, 96, 2)
    assert out.sum() == 192 and stats.barriers == 6


def test_barrier_reduction():
    body = (
        "setp.lt.u32 %p0, %t, 11; bar.red.popc.u32 %r1, 0, %p0; bar.red.or.pred %p1, 0, %p0; "
        "bar.red.and.pred %p2, 0, !%p0; selp.u32 %r2, 100, 0, %p1; selp.u32 %r3, 1000, 0, %p2; add.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3;"
        + STORE
    )
    out, _ = run(body, 64, 2)
    assert (out == 111).all()


# ---------------------------------------------------------------- warps
@pytest.mark.parametrize(
    "kind,b,c,f",
    [
        ("down", 3, 31, lambda i: i + 3 if i + 3 < 32 else i),
        ("up", 5, 0, lambda i: i - 5 if i >= 5 else i),
        ("bfly", 6, 31, lambda i: i ^ 6),
        ("idx", 9, 31, lambda i: 9),
        ("down", 3, 0x181F, lambda i: i + 3 if i % 8 + 3 < 8 else i),  # width 8
        ("idx", 2, 0x101F, lambda i: i // 16 * 16 + 2),
    ],
)  # width 16
def test_shuffles(kind, b, c, f):
    body = f"mad.lo.u32 %r1, %g, 10, 3; shfl.sync.{kind}.b32 %r0|%p0, %r1, {b}, {c}, -1; selp.u32 %r2, 100000, 0, %p0; add.u32 %r0, %r0, %r2;"
    out, _ = run(body + STORE, 64, 2)
    lanes = np.arange(128) % 32
    src = np.array([f(int(i)) for i in lanes])
    assert list(out % 100000) == list((np.arange(128) - lanes + src) * 10 + 3)
    inside = src != lanes
    assert (out[inside] >= 100000).all()


def test_shuffle_from_absent_thread_is_poison():
    out, _ = run("shfl.sync.down.b32 %r0, %t, 4, 31, -1;" + STORE, 48)
    assert list(out[32:44]) == list(range(36, 48)) and (out[44:48] == 0xFFFFFFFF).all()


def test_votes_and_matches():
    body = """and.b32 %r1, %t, 3; setp.eq.u32 %p0, %r1, 1; vote.sync.ballot.b32 %r2, %p0, -1;
    vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1; match.any.sync.b32 %r3, %r1, -1;
    match.all.sync.b32 %r4|%p3, %r1, -1; activemask.b32 %r5; redux.sync.add.s32 %r6, %r1, -1; redux.sync.max.u32 %r7, %t, -1;
    selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 2, 0, %p2; selp.u32 %r10, 4, 0, %p3; or.b32 %r8, %r8, %r9; or.b32 %r8, %r8, %r10;
    mov.u32 %r0, 0; setp.eq.u32 %p4, %r2, 0x22222222; @%p4 add.u32 %r0, %r0, 1;
    shl.b32 %r11, 0x11111111, %r1; setp.eq.u32 %p4, %r3, %r11; @%p4 add.u32 %r0, %r0, 10;
    setp.eq.u32 %p4, %r5, -1; @%p4 add.u32 %r0, %r0, 100; setp.eq.u32 %p4, %r6, 48; @%p4 add.u32 %r0, %r0, 1000;
    setp.eq.u32 %p4, %r8, 1; @%p4 add.u32 %r0, %r0, 10000; or.b32 %r12, %t, 31; setp.eq.u32 %p4, %r7, %r12; @%p4 add.u32 %r0, %r0, 100000;"""
    out, _ = run(body + STORE, 64, 2)
    assert (out == 111111).all()


def test_partial_masks_in_both_branches():
    body = """setp.lt.u32 %p0, %t, 16; @%p0 bra LOW; shfl.sync.idx.b32 %r0, %t, 20, 31, 0xFFFF0000; bra E;
    LOW: shfl.sync.idx.b32 %r0, %t, 2, 31, 0x0000FFFF; E: bar.warp.sync -1;"""
    out, _ = run(body + STORE, 32)
    assert list(out) == [2] * 16 + [20] * 16


def test_warp_sync_waits_for_late_threads():
    # the else-branch is laid out behind the shuffle; its threads must still take part in it
    body = (
        """mov.u32 %r1, %t; setp.ge.u32 %p0, %t, 16; @%p0 bra LATE;
    MEET: shfl.sync.bfly.b32 %r0, %r1, 16, 31, -1;"""
        + STORE
        + """ ret; LATE: add.u32 %r1, %r1, 100; bra MEET;"""
    )
    out, _ = run(body, 32)
    assert list(out) == [t + 116 for t in range(16)] + [t - 16 for t in range(16, 32)]


def test_missing_member_is_a_deadlock():
    body = "setp.lt.u32 %p0, %t, 16; @!%p0 bra B; shfl.sync.idx.b32 %r0, %t, 2, 31, -1; bra E; B: bar.sync 0; E: " + STORE
    with pytest.raises(BarrierError, match="deadlock"):
        run(body, 32)


def test_thread_outside_its_mask():
    with pytest.raises(BarrierError, match="member mask"):
        run("shfl.sync.idx.b32 %r0, %t, 2, 31, 1;", 32)


# ---------------------------------------------------------------- launch geometry
def test_chunks_of_blocks_give_the_same_result():
    body = "mad.lo.u32 %r0, %w, 1000, %t;" + STORE
    a, _ = run(body, 64, 37)
    b, _ = run(body, 64, 37, max_threads=200)
    assert (a == b).all() and list(a[64:66]) == [1000, 1001]


def test_limits():
    with pytest.raises(PtxError):
        run(STORE, 2048)
    ptx = HEAD + ".visible .entry k(.param .u64 p) .maxntid 64, 1, 1 .minnctapersm 2 { ret; }"
    launch(ptx, None, 1, 64, [np.zeros(1)])
    with pytest.raises(PtxError, match="maxntid"):
        launch(ptx, None, 1, 128, [np.zeros(1)])


def test_instruction_counts():
    body = "setp.lt.u32 %p0, %t, 10; @%p0 fma.rn.f32 %f0, %f0, %f0, %f0; add.f64 %fd, %fd, %fd; mov.u32 %r0, 0;" + STORE
    _, s = run(None, 32, ptx=kernel(body, regs=".reg .f64 %fd;"))
    assert s.by_op["fma.f32"] == 10 and s.by_class["f32"] == 10 and s.f64 == 32 and s.by_class["st.global"] == 32
