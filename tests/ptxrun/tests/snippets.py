"""Small hand-written PTX kernels around one instruction or one idea."""

import numpy as np

from ptxrun import launch

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
REG = {"b8": "b16", "u8": "u16", "s8": "s16"}  # 8-bit values live in 16-bit registers
NP = {
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "f16": np.float16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}


def apply(body, out, *inputs, **options):
    """Each thread i sets %d from %a, %b, %c (inputs: (ptx type, values)); returns the array of %d."""
    n = max(len(np.atleast_1d(v)) for _, v in inputs)
    arrays = [np.ascontiguousarray(np.broadcast_to(np.asarray(v), n).astype(NP[t], copy=False)) for t, v in inputs]
    result = np.zeros(n, NP[out])
    size = lambda t: np.dtype(NP[t]).itemsize
    bits = lambda t: f"b{size(t) * 8}" if t == "f16" else t
    lines = [
        HEAD,
        ".visible .entry k(",
        ",\n".join(f".param .u64 p{k}" for k in range(len(inputs) + 1)),
        ") {",
        ".reg .pred %p, %q; .reg .b64 %at, %off; .reg .u32 %i;",
        f".reg .{REG.get(bits(out), bits(out))} %d;",
        "mov.u32 %i, %tid.x;",
    ]
    for k, (t, _) in enumerate(inputs):
        r = "%" + "abcef"[k]
        lines += [
            f".reg .{REG.get(bits(t), bits(t))} {r};",
            f"ld.param.u64 %at, [p{k}];",
            f"mul.wide.u32 %off, %i, {size(t)};",
            "add.u64 %at, %at, %off;",
            f"ld.global.{bits(t)} {r}, [%at];",
        ]
    lines += [
        body,
        f"ld.param.u64 %at, [p{len(inputs)}];",
        f"mul.wide.u32 %off, %i, {size(out)};",
        "add.u64 %at, %at, %off;",
        f"st.global.{bits(out)} [%at], %d;",
        "ret; }",
    ]
    launch("\n".join(lines), "k", 1, n, [*arrays, result], **options)
    return result


def kernel(body, params=("out",), shared="", regs="", name="k", functions=""):
    """A kernel whose pointer parameters are loaded into %<name>, with %t the thread and %ta its index times four."""
    lines = [
        HEAD,
        shared,
        functions,
        f".visible .entry {name}(",
        ",\n".join(f".param .u64 {p}" for p in params),
        ") {",
        ".reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .b64 %rd<32>; .reg .b16 %rs<8>;",
        ".reg .u32 %t; .reg .b64 %ta, %ga; .reg .u32 %n, %g, %w;",
        regs,
    ]
    lines += [f".reg .b64 %{p}; ld.param.u64 %{p}, [{p}];" for p in params]
    lines += [
        "mov.u32 %t, %tid.x; mul.wide.u32 %ta, %t, 4; mov.u32 %n, %ntid.x; mov.u32 %w, %ctaid.x;",
        "mad.lo.u32 %g, %w, %n, %t; mul.wide.u32 %ga, %g, 4;",
        body,
        "ret; }",
    ]
    return "\n".join(lines)
