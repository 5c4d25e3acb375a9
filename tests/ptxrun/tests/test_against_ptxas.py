"""An independent oracle: ptxas folds instructions on constants, and we compare what it would store.

Each case stores one result; the SASS is followed just far enough to see which immediate reaches the store.
Results that ptxas does not fold to an immediate are not compared.
"""

import random
import re
import struct

import numpy as np
import pytest

from ptxrun import launch, sass, toolchain

from .snippets import HEAD

if toolchain._tool("nvdisasm") is None:
    pytest.skip("no nvdisasm", allow_module_level=True)
try:
    toolchain.assemble(HEAD.replace("8.0", "9.0") + ".visible .entry k() { ret; }")
except RuntimeError:
    pytest.skip("no ptxas for PTX 9.0", allow_module_level=True)

INTEGER = """add.u32 D,A,B;sub.u32 D,A,B;mul.lo.u32 D,A,B;mul.hi.u32 D,A,B;mul.hi.s32 D,A,B;mad.lo.s32 D,A,B,C;min.s32 D,A,B
max.u32 D,A,B;shl.b32 D,A,B;shr.u32 D,A,B;shr.s32 D,A,B;bfe.u32 D,A,B,C;bfe.s32 D,A,B,C;bfi.b32 D,A,B,C,E;shf.l.wrap.b32 D,A,B,C
shf.r.wrap.b32 D,A,B,C;shf.l.clamp.b32 D,A,B,C;shf.r.clamp.b32 D,A,B,C;brev.b32 D,A;clz.b32 D,A;popc.b32 D,A;bfind.u32 D,A
bfind.s32 D,A;bfind.shiftamt.u32 D,A;not.b32 D,A;abs.s32 D,A;neg.s32 D,A;cnot.b32 D,A;rem.s32 D,A,B;rem.u32 D,A,B
mul24.lo.s32 D,A,B;mul24.lo.u32 D,A,B;add.sat.s32 D,A,B;cvt.s32.s8 D,A;cvt.u32.u8 D,A;cvt.s32.s16 D,A;cvt.sat.s8.s32 D,A
cvt.sat.u8.s32 D,A;cvt.sat.u16.u32 D,A;cvt.sat.s16.s32 D,A;cvt.sat.u32.s32 D,A;cvt.sat.s32.u32 D,A;cvt.rn.f32.s32 D,A
cvt.rn.f32.u32 D,A;slct.b32.s32 D,A,B,C;set.lt.u32.s32 D,A,B;set.gt.f32.s32 D,A,B;set.le.s32.f32 D,A,B;testp.finite.f32 P,A
testp.subnormal.f32 P,A;testp.normal.f32 P,A"""
FLOAT = """add.f32 D,A,B;sub.f32 D,A,B;mul.f32 D,A,B;add.ftz.f32 D,A,B;mul.ftz.f32 D,A,B;add.sat.f32 D,A,B;min.f32 D,A,B;max.f32 D,A,B
min.NaN.f32 D,A,B;max.NaN.f32 D,A,B;min.ftz.f32 D,A,B;neg.f32 D,A;abs.f32 D,A;neg.ftz.f32 D,A;cvt.rni.s32.f32 D,A
cvt.rzi.s32.f32 D,A;cvt.rmi.s32.f32 D,A;cvt.rpi.u32.f32 D,A;cvt.rzi.u32.f32 D,A;cvt.rzi.ftz.s32.f32 D,A;cvt.rni.f32.f32 D,A
cvt.rzi.f32.f32 D,A;cvt.rmi.f32.f32 D,A;cvt.rpi.f32.f32 D,A;cvt.sat.f32.f32 D,A;cvt.rn.f16x2.f32 D,A,B;cvt.rzi.u16.f32 H,A
cvt.rn.f16.f32 H,A;cvt.rn.bf16.f32 H,A;cvt.rzi.s64.f32 L,A;cvt.rzi.u64.f32 L,A;cvt.rni.s64.f32 L,A"""
COMPARE = [f"setp.{c}.f32 P,A,B" for c in "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split()]
INT_EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 255, 256, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
FLOAT_EDGES = [
    0,
    0x80000000,
    0x3F800000,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    1,
    0x807FFFFF,
    0x00800000,
    0x4F000000,
    0xCF000000,
    0x4F800000,
    0x5F000000,
    0x3F000000,
    0x3FC00000,
    0x40200000,
    0xC0200000,
    0x7F7FFFFF,
]


def cases(seed, repeat):
    r = random.Random(seed)
    integer = lambda: str(r.choice(INT_EDGES + [r.getrandbits(32) for _ in range(14)]))
    gauss = lambda: struct.unpack("<I", struct.pack("<f", r.gauss(0, 100)))[0]
    real = lambda: "0f%08X" % r.choice(FLOAT_EDGES + [r.getrandbits(32) for _ in range(6)] + [gauss() for _ in range(8)])
    split = lambda s: s.replace("\n", ";").split(";")
    out = []
    for _ in range(repeat):
        out += [(t, {k: integer() for k in "ABCE"}) for t in split(INTEGER)]
        out += [(t, {k: real() for k in "ABC"}) for t in split(FLOAT) + COMPARE]
    return out


def program(batch):
    lines = [HEAD.replace("8.0", "9.0"), ".visible .entry k(.param .u64 p) { .reg .b64 o; ld.param.u64 o,[p];"]
    for k, (t, v) in enumerate(batch):
        op, args = t.split(" ")
        lines.append("{ .reg .b32 A,B,C,E,D,X; .reg .pred P; .reg .b16 H; .reg .b64 L;")
        lines += [f"mov.b32 {n}, {x};" for n, x in v.items()]
        lines.append(
            f"{op} {args};"
            + {"P": "selp.u32 D,1,0,P;", "H": "cvt.u32.u16 D,H;", "L": "mov.b64 {D,X}, L; xor.b32 D,D,X;"}.get(args[0], "")
        )
        lines.append(f"st.volatile.global.u32 [o+{4 * k}], D; }}")
    return "\n".join(lines + ["ret; }"])


def stored_immediates(text):
    """{word offset: value} for the stores whose value is a known constant."""
    regs, out = {"RZ": 0}, {}

    def half(x):
        x = "inf" if "INF" in x and x[0] != "-" else "-inf" if "INF" in x else x
        return int(np.float16(x).view(np.uint16))

    for line in text.splitlines():
        m = re.search(r"\*/\s+(.*?)\s*;", line)
        if not m:
            continue
        i = m.group(1)
        if m := re.match(r"STG\.E(?:\.\w+)* desc\[\w+\]\[R\d+\.64(?:\+(0x[0-9a-f]+))?\], (\w+)$", i):
            out[int(m.group(1) or "0", 16) // 4] = regs.get(m.group(2))
        elif m := re.match(r"(?:MOV|IMAD\.MOV\.U32) (R\d+), (?:RZ, RZ, )?(-?)(0x[0-9a-f]+)$", i):
            regs[m.group(1)] = int(m.group(2) + m.group(3), 16) & 0xFFFFFFFF
        elif m := re.match(r"(?:MOV|IMAD\.MOV\.U32) (R\d+), (?:RZ, RZ, )?(RZ|R\d+)$", i):
            regs[m.group(1)] = regs.get(m.group(2))
        elif (m := re.match(r"HFMA2(?:\.MMA)? (R\d+), -RZ, RZ, (\S+), (\S+)$", i)) and "NAN" not in i:
            regs[m.group(1)] = half(m.group(2)) << 16 | half(m.group(3))
        elif m := re.match(r"\S+ (?:P\w+, )*(?:R(\d+))", i):
            for k in range(int(m.group(1)), int(m.group(1)) + (2 if "64" in i or "WIDE" in i or "CS2R" in i else 1)):
                regs[f"R{k}"] = 0 if i.endswith("SRZ") else None
    return out


@pytest.mark.slow
def test_constant_folding_agrees():
    compared, wrong = {}, []
    todo = cases(seed=1, repeat=8)
    for at in range(0, len(todo), 60):
        batch = todo[at : at + 60]
        text = program(batch)
        theirs = stored_immediates(sass(text))
        ours = np.zeros(len(batch), np.uint32)
        launch(text, "k", 1, 1, [ours])
        for k, (t, v) in enumerate(batch):
            if theirs.get(k) is not None:
                compared[t] = compared.get(t, 0) + 1
                if theirs[k] != ours[k]:
                    wrong.append((t, v, hex(theirs[k]), hex(int(ours[k]))))
    assert not wrong, wrong[:5]
    assert len(compared) > 70 and sum(compared.values()) > 400
