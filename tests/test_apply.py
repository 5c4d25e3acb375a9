"""`fastnorm apply`: the function of the whole array, bit for bit, or a file system as it was before."""

import os
import pathlib
import pty
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import fastnorm
from fastnorm.__main__ import main
from fastnorm._apply import calls, command, files

PROGRAM = "import sys; from fastnorm._apply import files; from fastnorm.__main__ import main; {}; sys.exit(main(sys.argv[1:]))"
# A shell's background jobs ignore Ctrl-C, and so would what the tests start there.
SLOW = (
    "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); files.CHUNK = 4096; "
    "files.let_go = lambda mapping: (print('chunk', flush=True), time.sleep(60))"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny(monkeypatch):
    """Chunks of 1 KB, so that small files have many; and no waiting for the disk, 10 ms a file."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(files, "CHUNK", 1024)


def save(name, array):
    np.save(name, array)
    return array


def same(y, expected):
    """The same bits, shape and dtype."""
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    assert y.tobytes() == expected.tobytes()


def started(program, *arguments, **options):
    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(program), "apply", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def refused(capsys, *arguments):
    """The complaint about arguments that are refused; nothing was written anywhere."""
    before = {p: p.read_bytes() for p in pathlib.Path().rglob("*") if p.is_file()}
    assert main(["apply", *map(str, arguments)]) == 2
    assert {p: p.read_bytes() for p in pathlib.Path().rglob("*") if p.is_file()} == before
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fastnorm apply: ")
    return printed.err


# ---------------------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(300,), (50, 40), (40, 50), (7, 30, 20), (2, 3, 5, 70), (1, 900), (900, 1), (1, 1, 3)])
def test_any_axis_any_order(folder, tiny, rng, shape, order, in_place):
    for axis in range(-len(shape), len(shape)):
        x = save("x.npy", np.asarray(rng.standard_normal(shape, np.float32), order=order))
        expected = fastnorm.rms_norm(x, axis=axis)
        assert main(["apply", "rms_norm", "x.npy", "--in-place" if in_place else "y.npy", "--axis", str(axis)]) == 0
        same(np.load("x.npy" if in_place else "y.npy"), expected)
        if not in_place:
            same(np.load("x.npy"), x)
    assert {file.name for file in folder.iterdir()} <= {"x.npy", "y.npy"}


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f2", "i1", "u2", ">i4", "i8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dtypes(folder, tiny, rng, dtype, axis):
    x = save("x.npy", (rng.standard_normal((60, 70)) * 50).astype(dtype))
    for function in ("rms_norm", "layer_norm", "unit_norm", "softmax", "log_softmax", "logsumexp"):
        assert main(["apply", function, "x.npy", "y.npy", "--axis", str(axis)]) == 0
        same(np.load("y.npy"), getattr(fastnorm, function)(x, axis=axis))


def test_weight_bias_and_eps(folder, tiny, rng):
    x, weight, bias = (save(f"{n}.npy", rng.standard_normal(s)) for n, s in (("x", (40, 50)), ("w", 50), ("b", 50)))
    arguments = ["--weight", "w.npy", "--bias", "b.npy", "--eps", "0.5"]
    assert main(["apply", "layer_norm", "x.npy", "y.npy", *arguments]) == 0
    same(np.load("y.npy"), fastnorm.layer_norm(x, weight, bias, eps=0.5))


def test_every_norm_and_softmax_is_there():
    others = {"attention", "merge_attention", "rope", "rope_tables", "attention_scale", "init_std", "warm_up", "show_config"}
    assert set(fastnorm.__all__) - set(calls.FUNCTIONS) == others | {"get_num_threads", "set_num_threads"}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(5, 12), (3, 12, 17), (2, 12, 5, 9), (12, 12, 3), (1, 12, 400)])
def test_groups(folder, tiny, rng, shape, order, in_place):
    """Batches and groups go into chunks of their own, groups with the weights of their channels."""
    weight, bias = (save(f"{name}.npy", rng.standard_normal(12)) for name in "wb")
    for axis in (a for a, n in enumerate(shape) if n == 12):
        for groups in (1, 3, 12):
            x = save("x.npy", np.asarray(rng.standard_normal(shape, np.float32), order=order))
            options = ["--num-groups", str(groups), "--axis", str(axis), "--weight", "w.npy", "--bias", "b.npy"]
            assert main(["apply", "group_norm", "x.npy", "--in-place" if in_place else "y.npy", *options]) == 0
            expected = fastnorm.group_norm(x, groups, weight, bias, axis=axis)
            same(np.load("x.npy" if in_place else "y.npy"), expected)


def test_channels_are_the_second_axis_of_group_norm(folder, tiny, rng):
    x = save("x.npy", rng.standard_normal((9, 6, 50)))
    assert main(["apply", "group_norm", "x.npy", "y.npy", "--num-groups", "2"]) == 0
    same(np.load("y.npy"), fastnorm.group_norm(x, 2))


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("function", ["add_rms_norm", "add_layer_norm"])
def test_sums(folder, tiny, rng, function, orders):
    """The norm, and the sum where it is asked for; either in its own dtype, whatever the order of the residual."""
    x = save("x.npy", np.asarray(rng.standard_normal((60, 70), np.float32), order=orders[0]))
    r = save("r.npy", np.asarray(rng.standard_normal((60, 70)), order=orders[1]))
    for axis in (0, 1):
        y, h = getattr(fastnorm, function)(x, r, axis=axis)
        assert main(["apply", function, "x.npy", "y.npy", "--residual", "r.npy", "--axis", str(axis)]) == 0
        same(np.load("y.npy"), y)
        assert {file.name for file in folder.iterdir()} <= {"x.npy", "r.npy", "y.npy", "h.npy"}
        options = ["--residual", "r.npy", "--residual-out", "h.npy", "--axis", str(axis)]
        assert main(["apply", function, "x.npy", "z.npy", *options]) == 0
        same(np.load("z.npy"), y)
        same(np.load("h.npy"), h)
        os.unlink("z.npy")


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(30,), (50, 40), (7, 30, 20), (2, 3, 5, 70)])
def test_logsumexp_has_an_axis_less(folder, tiny, rng, shape, order):
    x = save("x.npy", np.asarray(rng.standard_normal(shape, np.float32), order=order))
    for axis in range(len(shape)):
        assert main(["apply", "logsumexp", "x.npy", "y.npy", "--axis", str(axis)]) == 0
        same(np.load("y.npy"), fastnorm.logsumexp(x, axis=axis))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("axis", ["1,2", "-2,-1", "0,1,2", "2"])
def test_several_axes(folder, tiny, rng, axis, order):
    axes = tuple(map(int, axis.split(",")))
    x = save("x.npy", np.asarray(rng.standard_normal((40, 6, 20)), order=order))
    weight = save("w.npy", rng.standard_normal([x.shape[a] for a in axes]))
    for function in ("rms_norm", "layer_norm"):
        assert main(["apply", function, "x.npy", "y.npy", "--weight", "w.npy", f"--axis={axis}"]) == 0
        same(np.load("y.npy"), getattr(fastnorm, function)(x, weight, axis=axes))


def test_scale_and_weight_offset(folder, tiny, rng):
    x, weight = save("x.npy", rng.standard_normal((40, 50))), save("w.npy", rng.standard_normal(50))
    assert main(["apply", "softmax", "x.npy", "y.npy", "--scale", "-0.5"]) == 0
    same(np.load("y.npy"), fastnorm.softmax(x, scale=-0.5))
    assert main(["apply", "rms_norm", "x.npy", "y.npy", "--weight", "w.npy", "--weight-offset", "1"]) == 0
    same(np.load("y.npy"), fastnorm.rms_norm(x, weight, weight_offset=1.0))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (3, 0, 5)])
def test_empty_arrays(folder, shape):
    x = save("x.npy", np.zeros(shape, np.int16))
    for output in ("y.npy", "z.npy"):
        assert main(["apply", "softmax", "x.npy", output]) == 0
        same(np.load(output), np.zeros(shape, np.float32))
    assert main(["apply", "logsumexp", "x.npy", "y.npy"]) == 0
    same(np.load("y.npy"), fastnorm.logsumexp(x))
    if len(shape) > 1:
        assert main(["apply", "group_norm", "x.npy", "y.npy", "--num-groups", "1"]) == 0
        same(np.load("y.npy"), np.zeros(shape, np.float32))


def test_a_header_that_leaves_elements_unaligned(folder, tiny, rng):
    x = save("x.npy", rng.standard_normal((30, 40)))
    text = pathlib.Path("x.npy").read_bytes()
    pathlib.Path("x.npy").write_bytes(text[:8] + bytes([text[8] + 3]) + text[9:127] + b"   \n" + text[128:])
    same(np.load("x.npy"), x)
    assert main(["apply", "rms_norm", "x.npy", "y.npy"]) == 0
    same(np.load("y.npy"), fastnorm.rms_norm(x))
    assert main(["apply", "rms_norm", "x.npy", "--in-place"]) == 0
    same(np.load("x.npy"), fastnorm.rms_norm(x))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    ("shape", "least"),
    [
        ((50, 40), (50, 1)),
        ((2, 3, 5, 70), (1, 3, 1, 1)),
        ((6, 7), (1, 7)),
        ((1000,), (1000,)),
        ((9, 9, 9), (1, 9, 1)),
        ((4, 30, 11), (1, 5, 11)),
        ((3, 7, 24), (1, 7, 4)),
    ],
)
def test_chunks_hold_each_element_once_and_what_belongs_together(monkeypatch, shape, least, order):
    monkeypatch.setattr(files, "CHUNK", 800)
    seen = np.zeros(shape, int, order)
    for block in files.blocks_of(seen, least, 8):
        seen[block] += 1
        assert not any(n % together for n, together in zip(seen[block].shape, least, strict=True))
        assert seen[block].size <= max(100, np.prod(least))
    assert (seen == 1).all()


def test_the_last_line_says_what_was_written(folder, capsys):
    save("x.npy", np.ones((3, 4), np.int8))
    assert main(["apply", "rms_norm", "x.npy", "y.npy"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"wrote {folder / 'y.npy'}: shape (3, 4), dtype float32, ")
    assert printed.out.endswith(" GB/s read and written\n")


def test_in_place_says_what_an_interruption_leaves(folder, capsys):
    save("x.npy", np.ones((3, 4)))
    assert main(["apply", "rms_norm", "x.npy", "--in-place"]) == 0
    assert f"an interruption leaves the first chunks of {folder / 'x.npy'} normalised" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["apply", "--help"])
    assert "an interruption leaves its first chunks normalised" in " ".join(capsys.readouterr().out.split())


def test_what_is_replaced_keeps_its_permissions_and_its_link(folder):
    save("x.npy", np.ones((3, 4)))
    save("y.npy", np.ones(3))
    os.chmod("y.npy", 0o600)
    os.symlink("y.npy", "link.npy")
    assert main(["apply", "rms_norm", "x.npy", "link.npy"]) == 0
    assert os.path.islink("link.npy")
    assert os.stat("y.npy").st_mode & 0o777 == 0o600
    assert np.load("y.npy").shape == (3, 4)


def test_a_new_file_has_the_permissions_of_others(folder):
    save("x.npy", np.ones((3, 4)))
    before = os.umask(0o027)
    try:
        assert main(["apply", "rms_norm", "x.npy", "y.npy"]) == 0
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert os.stat("y.npy").st_mode & 0o777 == 0o640


def test_nobody_else_reads_what_is_being_written(folder, rng):
    """What it will replace may be private."""
    save("x.npy", rng.standard_normal((200, 300)))
    save("y.npy", np.ones(3))
    os.chmod("y.npy", 0o600)
    process = started(SLOW, "softmax", "x.npy", "y.npy")
    assert process.stdout.readline() == "chunk\n"
    (temporary,) = folder.glob(".fastnorm-*")
    mode = os.stat(temporary).st_mode & 0o777
    process.terminate()
    process.communicate(timeout=30)
    assert mode == 0o600


def test_a_bar_on_a_terminal(folder):
    save("x.npy", np.ones((300, 400)))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fastnorm", "apply", "rms_norm", "x.npy", "y.npy"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True, env=environment)
    os.close(theirs)
    assert "100%" in os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert run.stdout.startswith("wrote ")


# --------------------------------------------------------------------------------------------------------------- refusals
def test_functions_and_their_options(folder, capsys):
    save("x.npy", np.ones((3, 4)))
    save("w.npy", np.ones(3))
    with pytest.raises(SystemExit) as caught:
        main(["apply", "norm", "x.npy", "y.npy"])
    assert caught.value.code == 2
    assert "choose from" in capsys.readouterr().err
    assert "weight must have shape (4,)" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--weight", "w.npy")
    assert "softmax takes no --weight" in refused(capsys, "softmax", "x.npy", "y.npy", "--weight", "w.npy")
    assert "rms_norm takes no --bias" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--bias", "w.npy")
    assert "eps must not be negative" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--eps", "-1")
    assert "axis must be within the 2 axes" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--axis", "2")
    assert "unit_norm: axis must be an integer, got (0, 1)" in refused(capsys, "unit_norm", "x.npy", "y.npy", "--axis", "0,1")
    assert "must name the last axes of x in order, got (1, 0)" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--axis", "1,0")
    with pytest.raises(SystemExit):
        main(["apply", "rms_norm", "x.npy", "y.npy", "--axis", "last"])
    expected = "argument --axis: must be an integer, or several with commas between them, got 'last'"
    assert expected in capsys.readouterr().err
    assert "group_norm needs --num-groups" in refused(capsys, "group_norm", "x.npy", "y.npy")
    assert "divide the 4 channels of x, got 3" in refused(capsys, "group_norm", "x.npy", "y.npy", "--num-groups", "3")
    assert "at least 1 and divide" in refused(capsys, "group_norm", "x.npy", "y.npy", "--num-groups", "0")
    assert "softmax takes no --num-groups" in refused(capsys, "softmax", "x.npy", "y.npy", "--num-groups", "2")
    assert "layer_norm takes no --weight-offset" in refused(capsys, "layer_norm", "x.npy", "y.npy", "--weight-offset", "1")
    assert "rms_norm takes no --scale" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--scale", "1")
    assert "OUT.npy or --in-place" in refused(capsys, "rms_norm", "x.npy")
    assert "OUT.npy or --in-place" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--in-place")


def test_residuals(folder, capsys):
    save("x.npy", np.ones((3, 4)))
    save("r.npy", np.ones((4, 3)))
    assert "add_rms_norm needs --residual" in refused(capsys, "add_rms_norm", "x.npy", "y.npy")
    assert "rms_norm takes no --residual" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--residual", "r.npy")
    assert "rms_norm takes no --residual-out" in refused(capsys, "rms_norm", "x.npy", "y.npy", "--residual-out", "h.npy")
    shapes = "residual must have the shape of x, (3, 4), got (4, 3)"
    assert shapes in refused(capsys, "add_rms_norm", "x.npy", "y.npy", "--residual", "r.npy")
    save("r.npy", np.ones((3, 4)))
    given = ("add_rms_norm", "x.npy", "y.npy", "--residual", "r.npy", "--residual-out")
    assert "is the file of --residual" in refused(capsys, *given, "r.npy")
    assert "is the file of IN.npy" in refused(capsys, *given, "x.npy")
    assert "OUT.npy and --residual-out are both" in refused(capsys, *given, "y.npy")
    assert "there is no folder" in refused(capsys, *given, "none/h.npy")
    assert "--in-place is for functions of one array" in refused(
        capsys, "add_rms_norm", "x.npy", "--in-place", "--residual", "r.npy"
    )


def test_headers_that_are_damaged(folder, capsys, rng):
    """In any way at all: a complaint, or an array of which the header tells."""
    save("whole.npy", np.ones((3, 4)))
    whole, complaints = pathlib.Path("whole.npy").read_bytes(), 0
    for _ in range(300):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[rng.integers(0, 70, 3)] = rng.choice(np.frombuffer(b"(,'{\\0\n", np.uint8), 3)
        damaged.tofile("x.npy")
        status = main(["apply", "rms_norm", "x.npy", "y.npy"])
        complaint = capsys.readouterr().err
        assert complaint.startswith("fastnorm apply: ") if status else not complaint
        complaints += status == 2
    assert complaints > 250


def test_what_cannot_be_mapped(folder, capsys):
    os.mkfifo("pipe.npy")
    os.mkdir("sub")
    for name in ("pipe.npy", "sub"):
        assert f"{name} is not a file" in refused(capsys, "rms_norm", name, "y.npy")


def test_files_that_hold_no_numbers(folder, capsys):
    save("object.npy", np.array([{}, 1], object))
    save("complex.npy", np.ones(3, complex))
    save("scalar.npy", np.float32(1))
    save("bfloat16.npy", np.ones((2, 3), ml_dtypes.bfloat16))
    save("whole.npy", np.ones((3, 4)))
    whole = pathlib.Path("whole.npy").read_bytes()
    for name, content in (("truncated", whole[:-1]), ("header", whole[:70]), ("text", b"1 2 3"), ("nothing", b"")):
        pathlib.Path(f"{name}.npy").write_bytes(content)
    np.savez("archive.npz", np.ones(3))
    for name in ("object.npy", "truncated.npy", "header.npy", "text.npy", "nothing.npy", "archive.npz"):
        assert f"{name} is not a .npy file of numbers" in refused(capsys, "rms_norm", name, "y.npy")
        assert f"{name} is not a .npy file of numbers" in refused(capsys, "rms_norm", name, "--in-place")
        assert f"{name} is not a .npy" in refused(capsys, "rms_norm", "whole.npy", "y.npy", "--weight", name)
    missing = "fastnorm apply: missing.npy: No such file or directory\n"
    assert refused(capsys, "rms_norm", "missing.npy", "y.npy") == missing
    assert refused(capsys, "rms_norm", "whole.npy", "y.npy", "--weight", "missing.npy") == missing
    assert "got complex128" in refused(capsys, "rms_norm", "complex.npy", "y.npy")
    assert "0-dimensional" in refused(capsys, "rms_norm", "scalar.npy", "y.npy")
    assert "bfloat16.npy has dtype V2" in refused(capsys, "rms_norm", "bfloat16.npy", "y.npy")


def test_targets_that_are_sources(folder, capsys):
    for name in "xwb":
        save(f"{name}.npy", np.ones(4))
    os.link("x.npy", "hard.npy")
    os.symlink("x.npy", "soft.npy")
    os.mkdir("sub")
    for path in ("x.npy", "sub/../x.npy", folder / "x.npy", "hard.npy", "soft.npy"):
        assert "is the file of IN.npy: --in-place" in refused(capsys, "rms_norm", "x.npy", path)
    assert "is the file of --weight" in refused(capsys, "rms_norm", "x.npy", "w.npy", "--weight", "w.npy")
    assert "is the file of --bias" in refused(capsys, "layer_norm", "x.npy", "b.npy", "--bias", "b.npy")
    assert "is the file of --weight" in refused(capsys, "rms_norm", "x.npy", "--in-place", "--weight", "hard.npy")


def test_in_place_needs_the_shape_of_the_result(folder, capsys):
    save("x.npy", np.ones((3, 4)))
    assert "--in-place: the result has shape (3,), but" in refused(capsys, "logsumexp", "x.npy", "--in-place")


@pytest.mark.parametrize("dtype", ["i4", ">f4"])
def test_in_place_needs_the_dtype_of_the_result(folder, capsys, dtype):
    save("x.npy", np.ones((3, 4), dtype))
    assert "--in-place: the result has dtype <f" in refused(capsys, "rms_norm", "x.npy", "--in-place")


def test_targets_that_cannot_be(folder, capsys, monkeypatch):
    save("x.npy", np.ones((3, 4)))
    os.mkdir("sub")
    assert "there is no folder" in refused(capsys, "rms_norm", "x.npy", "none/y.npy")
    assert "sub is not a file" in refused(capsys, "rms_norm", "x.npy", "sub")
    usage = type("Usage", (), {"free": 95})
    monkeypatch.setattr(command.shutil, "disk_usage", lambda path: usage)
    assert f"y.npy needs 96 bytes, but {folder} has 95 left" in refused(capsys, "rms_norm", "x.npy", "y.npy")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a test may run as root, who may write anywhere
    assert f"{folder} is not writeable" in refused(capsys, "rms_norm", "x.npy", "y.npy")
    assert "x.npy is not writeable" in refused(capsys, "rms_norm", "x.npy", "--in-place")


# ----------------------------------------------------------------------------------------------------------- interruptions
@pytest.mark.parametrize(("number", "axis"), [(signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGTERM, 1)])
def test_a_signal_leaves_nothing(folder, rng, number, axis):
    x = save("x.npy", rng.standard_normal((200, 300)))
    save("y.npy", x[0])
    process = started(SLOW, "softmax", "x.npy", "y.npy", "--axis", axis)
    assert process.stdout.readline() == "chunk\n"
    assert len(list(folder.iterdir())) == 3
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert (out, err) == ("", "fastnorm apply: interrupted, nothing was written\n")
    assert {file.name for file in folder.iterdir()} == {"x.npy", "y.npy"}
    same(np.load("x.npy"), x)
    same(np.load("y.npy"), x[0])


def test_a_second_signal_does_not_stop_the_clean_up(folder, rng, monkeypatch, capsys):
    """Of two temporary files; that to remove a large one takes long enough for an impatient second Ctrl-C."""
    x, unlink = save("x.npy", rng.standard_normal((20, 30))), os.unlink
    monkeypatch.setattr(os, "fsync", lambda descriptor: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(os, "unlink", lambda path: (unlink(path), signal.raise_signal(signal.SIGTERM)))
    save("r.npy", x)
    line = ["apply", "add_rms_norm", "x.npy", "y.npy", "--residual", "r.npy", "--residual-out", "h.npy"]
    assert main(line) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "fastnorm apply: interrupted, nothing was written\n"
    assert {file.name for file in folder.iterdir()} == {"x.npy", "r.npy"}


def test_a_signal_in_place_leaves_what_was_said(folder, rng):
    x = save("x.npy", rng.standard_normal((200, 300)))
    process = started(SLOW, "softmax", "x.npy", "--in-place")
    assert process.stdout.readline() == "chunk\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1].endswith("interrupted, the first chunks of x.npy are normalised\n")
    assert process.returncode == 130
    rows = (np.load("x.npy") == fastnorm.softmax(x)).all(axis=1)
    assert rows.any()
    assert not rows.all()
    same(np.load("x.npy")[~rows], x[~rows])


def test_a_full_disk_leaves_nothing(folder, rng):
    x = save("x.npy", rng.standard_normal((200, 300), np.float32))
    limited = "import resource; files.CHUNK = 4096; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    process = started(limited, "softmax", "x.npy", "y.npy")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("fastnorm apply: [Errno 27] File too large")
    assert [file.name for file in folder.iterdir()] == ["x.npy"]
    same(np.load("x.npy"), x)


def test_an_error_in_the_middle_leaves_nothing(folder, tiny, monkeypatch, capsys):
    save("x.npy", np.ones((200, 300)))
    chunks = []

    def full(mapping):
        chunks.append(mapping)
        if len(chunks) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "let_go", full)
    assert refused(capsys, "rms_norm", "x.npy", "y.npy") == "fastnorm apply: [Errno 28] No space left on device\n"
    assert len(chunks) == 3


def test_an_error_in_place_says_what_it_leaves(folder, tiny, monkeypatch, capsys):
    save("x.npy", np.ones((200, 300)))

    def full(mapping):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "let_go", full)
    assert main(["apply", "rms_norm", "x.npy", "--in-place"]) == 2
    assert capsys.readouterr().err.endswith("No space left on device; the first chunks of x.npy are normalised\n")


def test_an_interruption_after_the_end_does_not_deny_it(folder, monkeypatch, capsys):
    save("x.npy", np.ones((200, 300)))
    replace = os.replace

    def interrupted(temporary, path):
        replace(temporary, path)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(os, "replace", interrupted)
    assert main(["apply", "rms_norm", "x.npy", "y.npy"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"fastnorm apply: interrupted, wrote {folder / 'y.npy'}\n"
    assert np.load("y.npy").shape == (200, 300)


# ---------------------------------------------------------------------------------------------------------------- memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of resident memory from /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        ("rms_norm", "x.npy", "y.npy"),
        ("rms_norm", "x.npy", "--in-place", "--axis", "0"),
        ("add_rms_norm", "x.npy", "y.npy", "--residual", "r.npy", "--residual-out", "h.npy"),
        *(
            pytest.param(arguments, marks=pytest.mark.slow)
            for arguments in (
                ("rms_norm", "x.npy", "--in-place"),
                ("rms_norm", "x.npy", "y.npy", "--axis", "0"),
                ("group_norm", "x.npy", "y.npy", "--num-groups", "1"),
                ("group_norm", "x.npy", "y.npy", "--num-groups", "32", "--axis", "0"),
                ("logsumexp", "x.npy", "y.npy", "--axis", "0"),
            )
        ),
    ],
)
def test_memory_does_not_grow_with_the_file(folder, arguments):
    """A file of 15 chunks against one of a chunk: `ru_maxrss` would show the parent's, which is why it is not asked."""
    chunk, peaks = 4 << 20, []
    program = (
        f"files.CHUNK = {chunk}; import atexit, re; "
        "atexit.register(lambda: print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]))"
    )
    fastnorm.warm_up([arguments[0]], ["float32"])  # a compiler would take more than all chunks
    for chunks in (1, 15):
        x = save("x.npy", np.ones((chunks * chunk // 4096, 1024), np.float32))
        save("r.npy", np.asfortranarray(x))
        out, err = started(program, *arguments).communicate(timeout=60)
        assert "wrote" in out, err
        peaks.append(int(out.split()[-1]) * 1024)
    assert peaks[1] - peaks[0] < 3 * chunk
