"""PTX on disk: found again without numba, told apart by what decides how it comes out."""

import subprocess
import sys

import cuda_devices  # first: it skips where there is no compiler
import numpy as np
import pytest

import fastnorm
from fastnorm import _compile
from fastnorm.__main__ import main
from fastnorm._cuda import launch
from fastnorm._cuda.needed import FUNCTIONS, kernels_for

NAME = ("fastnorm._cuda.rows:rows", "rms_norm", "float32", True, True)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The names compiled from now on, with an empty cache folder."""
    names = []
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(launch, "compile_ptx", lambda *arguments: names.append(arguments) or b"some PTX")
    _compile._folders.clear()
    yield names
    _compile._folders.clear()


def test_second_time_from_disk(compiled):
    assert launch.program(NAME, "90") == launch.program(NAME, "90") == b"some PTX"
    assert compiled == [(NAME, "90")]


def test_each_capability_has_its_own(compiled):
    launch.program(NAME, "90")
    launch.program(NAME, "80")
    assert compiled == [(NAME, "90"), (NAME, "80")]


@pytest.mark.parametrize("which", ["numba-cuda", "numba", "nvidia-nvvm"])
def test_another_compiler_has_its_own(compiled, monkeypatch, which):
    launch.program(NAME, "90")
    original = launch._version
    monkeypatch.setattr(launch, "_version", lambda name: (name, "0") if name == which else original(name))
    _compile._folders.clear()
    launch.program(NAME, "90")
    assert len(compiled) == 2


def test_a_damaged_file_is_compiled_anew(compiled, tmp_path):
    launch.program(NAME, "90")
    (file,) = tmp_path.rglob("*sm_90*")
    file.write_bytes(file.read_bytes()[:-1])
    assert launch.program(NAME, "90") == b"some PTX"
    assert len(compiled) == 2


def test_without_a_folder(compiled, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    _compile._folders.clear()
    assert launch.program(NAME, "90") == b"some PTX"


def test_a_version_that_cannot_be_found_is_none():
    assert launch._version("no-such-distribution") == ("no-such-distribution", None)


def test_the_driver_is_not_asked():
    """Compiling leaves numba's own view of the current device as it was."""
    from numba.cuda import dispatcher

    before = dispatcher.get_current_device
    with launch._compiling_for((8, 0)):
        assert dispatcher.get_current_device().compute_capability == (8, 0)
    assert dispatcher.get_current_device is before


def test_no_numba_once_on_disk():
    launch.program(NAME, "90")
    program = f"""
import sys
from fastnorm._cuda import launch
ptx = launch.program({NAME!r}, "90")
assert b".entry fastnorm_rows_rms_norm_float32_True_True(" in ptx
assert not {{"numba", "llvmlite", "fastnorm._cuda.rows"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.slow
def test_both_backends_in_one_process(tmp_path):
    """The CPU's registrations with numba and the GPU's, in either order, get along."""
    for first, second in (("_cpu.rows", "_cuda.rows"), ("_cuda.rows", "_cpu.rows")):
        program = f"""
import importlib, os
os.environ["FASTNORM_CACHE_DIR"] = {str(tmp_path / first)!r}
importlib.import_module("fastnorm.{first}")
importlib.import_module("fastnorm.{second}")
import numpy, fastnorm
from fastnorm._cuda import launch
assert b".f64" not in launch.program({NAME!r}, "90")
assert (fastnorm.rms_norm(numpy.ones((2, 8), numpy.float32), eps=0.0) == 1).all()
"""
        subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_made_ahead(compiled, tmp_path, monkeypatch, capsys):
    """`fastnorm warm --ptx`: what is in the folder is taken, the newest that the device can run, and nothing is compiled."""
    order = ["warm", "rope", "softmax", "--ptx", str(tmp_path / "ptx"), "--capabilities", "80,90", "--dtypes", "float16"]
    assert main(order) == 0
    assert "20 kernels are ready" in capsys.readouterr().out
    assert len(compiled) == 20
    monkeypatch.setenv("FASTNORM_PTX_DIR", str(tmp_path / "ptx"))
    name = "fastnorm._cuda.rotate:rotate", "int16", True, False
    (newest,) = tmp_path.rglob("*rotate_int16_True_False.sm_90.ptx")
    newest.write_bytes(b"for 90")
    assert launch.program(name, "100") == launch.program(name, "90") == b"for 90"
    assert launch.program(name, "86") == b"some PTX"
    assert len(compiled) == 20
    launch.program(name, "75")
    assert compiled[20:] == [(name, "75")]


def test_wrong_orders_for_ptx(tmp_path, capsys):
    for wrong in (["nothing"], ["--dtypes", "int8"]):
        assert main(["warm", "--ptx", str(tmp_path), *wrong]) == 2
        assert capsys.readouterr().err.startswith("fastnorm warm: ")
    with pytest.raises(SystemExit):
        main(["warm", "--ptx", str(tmp_path), "--capabilities", "8.0"])
    assert (
        "--capabilities: must be whole numbers with commas between them, such as 80 for 8.0, got '8.0'"
        in capsys.readouterr().err
    )
    (tmp_path / "file").touch()
    assert main(["warm", "rope", "--ptx", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_kernels_that_may_be_needed_compile(function):
    """One of each function, in the dtype of which other tests compile least; the names of all."""
    names = list(dict.fromkeys(kernels_for(function, "bfloat16", "80")))
    assert len({launch.entry_of(name) for name in names}) == len(names) > 0
    assert launch.program(names[-1], "80")


def test_what_older_devices_cannot_run_is_not_made_for_them():
    def makers(capability):
        return {name[0].split(":")[1] for name in kernels_for("attention", "float16", capability)}

    assert makers("80") - makers("75") == {"attend_tiles"}


CALLS = {
    "rms_norm": [
        lambda x, k: fastnorm.rms_norm(x),
        lambda x, k: fastnorm.rms_norm(x[..., 1:]),
        lambda x, k: fastnorm.rms_norm(x, axis=2),
    ],
    "add_rms_norm": [lambda x, k: fastnorm.add_rms_norm(x, x)],
    "softmax": [lambda x, k: fastnorm.softmax(x, axis=1)],
    "attention": [
        lambda x, k: fastnorm.attention(x, k, k),
        lambda x, k: fastnorm.attention(x[:, :, :1], k, k, qk_norm="rms"),
        lambda x, k: fastnorm.attention(x[..., 1:], k[..., 1:], k, is_causal=True),
    ],
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("function", CALLS)
def test_nothing_is_missing(compiled, monkeypatch, function, dtype):
    """What usual calls launch is among the kernels of `fastnorm warm --ptx`."""
    with cuda_devices.interpreted() as device:
        monkeypatch.setattr(launch, "load", lambda entry, ptx: lambda *arguments: None)
        x, k = (device.array(np.ones(shape, dtype)) for shape in ((2, 2, 20, 8), (2, 1, 600, 8)))
        for call in CALLS[function]:
            call(x, k)
    assert {name for name, _ in compiled} <= set(kernels_for(function, dtype, "90"))
    assert compiled
