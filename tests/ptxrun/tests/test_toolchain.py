"""The optional wrappers around NVIDIA's compilers; skipped where those are not installed."""

import pytest

from ptxrun import toolchain

from .snippets import kernel

PTX = kernel("add.u64 %rd31, %out, %ga; st.global.u32 [%rd31], %t;")


def test_compile_ptx():
    pytest.importorskip("numba_cuda")
    from ptxrun import compile_ptx

    from . import kernels as K

    ptx, entry = compile_ptx(K.rms_vector, (K.P, K.P, K.P, K.i4, K.f4), cc=(8, 0))
    assert ".target sm_80" in ptx and f".entry {entry}(" in ptx and "ld.global.v4.f32" in ptx and ".f64" not in ptx


def test_resources():
    if toolchain._tool("ptxas") is None:
        pytest.importorskip("cuda.bindings.nvjitlink")
    r = toolchain.resources(PTX)
    assert 0 < r.registers < 32 and r.spill_stores == r.spill_loads == r.stack == 0


def test_resources_by_nvjitlink(monkeypatch):
    pytest.importorskip("cuda.bindings.nvjitlink")
    monkeypatch.setattr(toolchain, "_tool", lambda name: None)
    assert 0 < toolchain.resources(PTX).registers < 32


def test_bad_ptx_is_reported():
    with pytest.raises(RuntimeError, match="(ptxas|nvJitLink) failed"):
        toolchain.resources(PTX.replace("st.global", "st.nowhere"))


def test_sass(monkeypatch):
    if toolchain._tool("nvdisasm") is None:
        with pytest.raises(RuntimeError, match="nvdisasm"):
            toolchain.sass(PTX)
    else:
        assert "STG.E" in toolchain.sass(PTX)
