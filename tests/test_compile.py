"""Compiled code on disk: found again, never believed blindly, and never needed."""

import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

import fastnorm
from fastnorm import _compile

POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows keeps profiles private by itself")
NAME = ("tiny:doubled", "float32")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and no kernels in memory."""
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_compile, "_kernels", {})
    _compile._folders.clear()
    yield _compile.cache_folder()
    _compile._folders.clear()


def doubled():
    """Twice 1.5 by the tiny kernel; and whether it came from disk."""
    _compile._kernels.clear()
    sys.modules.pop("tiny", None)
    out = np.zeros(3, np.float32)
    _compile.kernel(*NAME).ufunc(np.full(3, 1.5, np.float32), out)
    assert (out == 3).all()
    return "tiny" not in sys.modules


def cached(folder):
    (file,) = folder.path.glob("*.kernel")
    return file


def test_second_time_from_disk(folder):
    assert folder.usable
    assert not doubled()
    assert doubled()
    assert [f.name for f in folder.path.iterdir()] == ["tiny-doubled-float32.kernel"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "other payload", "no header", "no digest", "bits"])
def test_damaged_files_are_compiled_anew(folder, damage):
    doubled()
    file = cached(folder)
    whole = file.read_bytes()
    digest, header, payload = whole.split(b"\n", 2)
    broken = {
        "truncated": whole[:-1],
        "empty": b"",
        "garbage": os.urandom(1000),
        "other payload": b"\n".join([digest, header, bytes(len(payload))]),
        "no header": digest + b"\n" + payload,
        "no digest": header + b"\n" + payload,
        "bits": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
    }
    file.write_bytes(broken[damage])
    assert not doubled()
    assert cached(folder).read_bytes() != broken[damage]
    assert doubled()


@pytest.mark.parametrize("damage", ["no sizes", "short code", "list"])
def test_files_that_make_no_sense(folder, damage):
    """Whole, but not what a kernel is: whoever wrote it, it costs a compilation and nothing else."""
    doubled()
    file = cached(folder)
    code, (binary, bitcode) = _compile.read(file)
    if damage == "no sizes":
        content = b"{}\n" + binary
    elif damage == "list":
        content = b"[1]\n" + binary
    else:
        content = json.dumps(code | {"sizes": [8, 8]}).encode() + b"\n" + binary[:8] + bitcode[:8]
    file.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    assert not doubled()
    assert doubled()


@POSIX
def test_others_may_not_write(folder):
    doubled()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    for path, mode in ((folder.path, 0o722), (folder.path.parent, 0o777), (folder.path, 0o720)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        _compile._folders.clear()
        refused = _compile.cache_folder()
        assert not refused.usable
        assert "can be written to by others" in refused.reason
        assert not doubled()
        path.chmod(before)


@POSIX
@pytest.mark.parametrize("umask", [0o002, 0o000, 0o077])
def test_the_users_umask_does_not_matter(tmp_path, monkeypatch, umask):
    """Many distributions let a user's group write to new folders: not to this one."""
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "some" / "where" / "cache"))
    _compile._folders.clear()
    before = os.umask(umask)
    try:
        assert _compile.cache_folder().usable
    finally:
        os.umask(before)
        _compile._folders.clear()


def test_a_file_in_the_place_of_the_folder(tmp_path, monkeypatch):
    file = tmp_path / "cache"
    file.touch()
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(file))
    assert _compile._find_folder(_compile._processor) == (None, False, f"{file} is not a folder")


@POSIX
def test_of_another_user(folder, monkeypatch):
    doubled()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    _compile._folders.clear()
    refused = _compile.cache_folder()
    assert not refused.usable
    assert "belongs to another user" in refused.reason
    assert not doubled()


@POSIX
def test_a_link_of_another_user(folder, tmp_path, monkeypatch):
    """Where it leads may change later."""
    link, own = tmp_path / "link", os.lstat
    link.symlink_to(folder.path.parent)
    strangers = lambda path: os.stat_result((0, 0, 0, 0, 12345, 0, 0, 0, 0, 0)) if path == link else own(path)  # noqa: E731
    monkeypatch.setattr(os, "lstat", strangers)
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(link))
    _compile._folders.clear()
    assert not _compile.cache_folder().usable


@pytest.mark.parametrize("variable", ["FASTNORM_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_relative_folder_stays_where_it_was(folder, tmp_path, monkeypatch, variable):
    """What was found safe in one working directory is not looked for in another."""
    monkeypatch.delenv("FASTNORM_CACHE_DIR")
    monkeypatch.setenv(variable, "relative")
    monkeypatch.chdir(tmp_path)
    _compile._folders.clear()
    assert _compile.cache_folder().path.is_relative_to(tmp_path)


def test_what_was_in_the_way_may_go(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *args: False)
    _compile._folders.clear()
    assert not _compile.cache_folder().usable
    monkeypatch.undo()
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "cache"))
    assert _compile.cache_folder().usable


def test_a_source_that_was_edited_since_it_was_imported(folder, monkeypatch):
    """What is compiled then may be of the old source: it is used, but not kept under the name of the new one."""
    monkeypatch.setattr(_compile, "_IMPORTED", [])
    assert not doubled()
    assert not doubled()
    _compile._folders.clear()
    assert "edited" in _compile.cache_folder().reason


def test_a_source_in_an_archive(tmp_path):
    """An edited archive is another source."""
    import zipfile

    package = pathlib.Path(fastnorm.__file__).parent
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, fastnorm\n"
        "from fastnorm import _compile\n"
        "print(fastnorm.__file__.startswith(sys.argv[1]), _compile.cache_folder().path.name)\n"
    )
    printed = []
    for comment in ("", "# edited"):
        archive = tmp_path / "fastnorm.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for source in package.rglob("*.py"):
                file.writestr(str(source.relative_to(package.parent)), source.read_text() + comment)
        command = [sys.executable, "-c", program, str(archive)]
        printed.append(subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split())
    assert printed[0][0] == printed[1][0] == "True"
    assert printed[0][1] != printed[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["NUMBA_DEBUGINFO", "NUMBA_ENABLE_PROFILING", "NUMBA_DISABLE_JIT"])
def test_settings_for_debugging_the_users_code(tmp_path, setting):
    program = "import numpy as np, fastnorm; print(fastnorm.rms_norm(np.ones((2, 4), 'f4'), eps=0.0)[0, 0])"
    environment = os.environ | {setting: "1", "FASTNORM_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "1.0", done.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_another_thread_imports_a_backend():
    """A module whose import another thread has begun would be locked for ever in the child."""
    program = (
        "import os, threading, time, types, warnings; warnings.simplefilter('ignore')\n"
        "from fastnorm import _dispatch\n"
        "lock, begun = threading.Lock(), threading.Event()\n"
        "def slowly(name):\n"
        "    with lock: begun.set(); time.sleep(0.5)\n"
        "_dispatch.importlib = types.SimpleNamespace(import_module=slowly)\n"
        "_dispatch._imported.clear()\n"
        "thread = threading.Thread(target=_dispatch.backend_of, args=('numpy',)); thread.start()\n"
        "begun.wait()\n"
        "child = os.fork()\n"
        "if not child: os._exit(not lock.acquire(timeout=2))\n"
        "print(os.waitpid(child, 0)[1]); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_another_thread_compiles(tmp_path):
    """The child finds no lock held by a thread that it does not have."""
    program = (
        "import os, threading, time, warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np, fastnorm\n"
        "import numba\n"
        "x = np.ones((2, 8), np.float32)\n"
        "thread = threading.Thread(target=lambda: fastnorm.rms_norm(x)); thread.start()\n"
        "time.sleep(0.5)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    fastnorm.unit_norm(x); numba.njit(lambda a: a + 1)(1); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1]); thread.join()\n"
    )
    environment = os.environ | {"FASTNORM_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.stdout.strip() == "0", done.stderr[-2000:]


def test_a_full_disk(folder, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not doubled()
    assert list(folder.path.iterdir()) == []


def test_no_folder_at_all(tmp_path, monkeypatch, folder):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTNORM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    _compile._folders.clear()
    assert not _compile.cache_folder().usable
    assert not doubled()


def test_root(monkeypatch, tmp_path):
    monkeypatch.delenv("FASTNORM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    for platform, wanted in (("linux", "fastnorm"), ("darwin", "Library/Caches/fastnorm"), ("win32", "fastnorm")):
        monkeypatch.setattr(sys, "platform", platform)
        assert _compile._root() == tmp_path / wanted
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert _compile._root() == tmp_path / ".cache" / "fastnorm"


def test_kernels_need_nothing_that_a_warm_process_lacks():
    """Every symbol that a cached kernel refers to is registered before it is loaded: LLVM ends the process otherwise."""
    program = (
        "import numpy as np, fastnorm\n"
        "x = np.ones((700, 700), np.float32)\n"
        "print(fastnorm.rms_norm(x)[0, 0] + fastnorm.rms_norm(x, axis=0)[0, 0] + fastnorm.rms_norm(x.ravel())[0])\n"
        "import sys; print('fastnorm._cpu.simd' in sys.modules)\n"
    )
    for _ in range(2):
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert abs(float(out[0]) - 3) < 1e-5
    assert out[1] == "False"


PROGRAM = """
import numpy as np, fastnorm
x = np.random.default_rng(0).standard_normal((5, 300)).astype(np.float32)
print(fastnorm.rms_norm(x).tobytes().hex())
"""


def run(program=PROGRAM, wait=True, **environment):
    folder = environment.get("PYTHONPATH")  # first on the path even where the package stands in the current folder
    environment = {**os.environ, **environment}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    return finish(process) if wait else process


def finish(process):
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    return out


@pytest.mark.slow
def test_eight_processes_on_a_cold_cache(tmp_path):
    processes = [run(wait=False, FASTNORM_CACHE_DIR=str(tmp_path / "c")) for _ in range(8)]
    assert len({finish(process) for process in processes}) == 1
    assert {f.suffix for f in (tmp_path / "c").rglob("*") if f.is_file()} == {".kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.5, 1.5, 2.0, 2.5, 3.0])
def test_killed_while_compiling(tmp_path, after):
    process = run(wait=False, FASTNORM_CACHE_DIR=str(tmp_path))
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    assert run(FASTNORM_CACHE_DIR=str(tmp_path)) == run()


@pytest.mark.slow
def test_an_edited_source_is_another_key(tmp_path, source):
    """A formula is edited in a copy of the package, in place, as an upgrade does: the stale kernel does not run."""
    copy = tmp_path / "fastnorm"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path), "FASTNORM_CACHE_DIR": str(tmp_path / "cache")}
    before = run(**environment)
    formulas = copy / "_math" / "norms.py"
    text = formulas.read_text()
    assert "return x * (row.inverse * weight)" in text
    formulas.write_text(text.replace("return x * (row.inverse * weight)", "return x * (row.inverse * weight) + weight"))
    assert run(**environment) != before
    formulas.write_text(text)
    assert run(**environment) == before


@pytest.mark.slow
def test_another_processor_is_another_key(tmp_path):
    """Machines that share a home do not share machine code. The generic processor has no FMA: libm's gives the same bits."""
    environment = {"FASTNORM_CACHE_DIR": str(tmp_path)}
    wanted = run(**environment)
    assert run(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", **environment) == wanted
    assert len(list(tmp_path.iterdir())) == 2
    assert run(**environment) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_other_register_widths_give_the_same_bits(tmp_path, cpu):
    if sys.platform != "linux" or "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text():
        cpu = "generic"
    environment = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": "", "FASTNORM_CACHE_DIR": str(tmp_path)}
    assert run(**environment) == run()


def test_one_compilation_for_many_threads(folder):
    import threading

    sys.modules.pop("tiny", None)
    found = []
    threads = [threading.Thread(target=lambda: found.append(_compile.kernel(*NAME))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_warm_results_equal_cold_ones(rng):
    x = rng.standard_normal((5, 70)).astype(np.float32)
    program = (
        "import sys, numpy as np, fastnorm\n"
        f"x = np.frombuffer(bytes.fromhex('{x.tobytes().hex()}'), np.float32).reshape(5, 70)\n"
        "print(fastnorm.rms_norm(x).tobytes().hex())\n"
    )
    assert run(program).strip() == fastnorm.rms_norm(x).tobytes().hex()


@pytest.mark.slow
def test_numba_is_whole_after_drafts(tmp_path):
    """Our kernels are compiled from drafts of functions; what the host compiles itself, before and after, is not."""
    program = """
import numpy as np, numba, fastnorm
from numba.core.registry import cpu_target
def total(x, n):
    s = 0.0
    for i in range(min(n, len(x))):
        s += x[i:][0] * max(1, i % 3)
    return s, np.sqrt(x).sum(), sorted([3, 1, 2])
x = np.arange(10.0)
before = numba.njit(total)(x, 8)
codegen = cpu_target.target_context.codegen()
usual = codegen._library_class
fastnorm.rms_norm(x); fastnorm.rms_norm(np.ones((300, 300)), axis=0)
assert codegen._library_class is usual and 'get_executable' not in vars(cpu_target.target_context)
print(before == numba.njit(total)(x, 8) == total(x, 8), numba.vectorize(lambda a: a + 1)(x)[3])
"""
    assert run(program, FASTNORM_CACHE_DIR=str(tmp_path)).split() == ["True", "4.0"]


@pytest.mark.slow
def test_kernels_of_two_processes_in_a_third(tmp_path):
    """Kernels that were each the first of their process, so that numba named what they hold alike."""
    call = "import numpy as np, fastnorm; x = np.full((2, 16), 3.0); print(fastnorm.{}(x)[0, 0], {})"
    environment = {"FASTNORM_CACHE_DIR": str(tmp_path)}
    for norm in ("rms_norm", "unit_norm"):
        run(call.format(norm, 0), **environment)
    for first, second in (("rms_norm", "unit_norm"), ("unit_norm", "rms_norm")):
        both = run(call.format(first, f"fastnorm.{second}(x)[0, 0]"), **environment).split()
        np.testing.assert_allclose(sorted(map(float, both)), [0.25, 1], rtol=1e-6)


@pytest.mark.skipif(not _compile.IS_X86, reason="other processors have other names for it")
@pytest.mark.parametrize("stored", ["int16", "uint16", "float32", "float64"])
def test_streaming_survives_the_compiler(stored):
    """LLVM makes ordinary stores of streaming ones where it does not know the type: float16 ran at half the speed."""
    from fastnorm import _numba
    from fastnorm._cpu import rows

    _, library = _numba.compiled(f"streaming_{stored}", rows.rows("unit_norm", stored))
    assert library.get_asm_str().count("movnt") > 2
