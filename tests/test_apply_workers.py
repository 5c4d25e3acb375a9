"""`fastnorm apply` on processes of this machine and on a cluster: the bits of the plain command, or nothing at all."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import distributed
import numpy as np
import pytest

import fastnorm
from fastnorm.__main__ import main
from fastnorm._apply import cluster, files

pytestmark = pytest.mark.slow

# Small chunks, each of which says that it is done. A worker gets a function of this program as its source, so that
# `chunk` may be told to do what a test needs there.
PROGRAM = """
import contextlib, os, signal, sys, time
from fastnorm.__main__ import main
from fastnorm._apply import cluster, command, files

@contextlib.contextmanager
def shown(total, title):
    yield lambda: print("chunk", flush=True)

def chunk(block, **arguments):
    from fastnorm._apply import cluster
    {}
    cluster.fill_one(block, **arguments)

signal.signal(signal.SIGINT, signal.default_int_handler)
command.shown, cluster.fill_one, files.CHUNK = shown, chunk, 8192
sys.exit(main(sys.argv[1:]))
"""
SLOW = "time.sleep(0.1)"


@pytest.fixture(scope="module")
def scheduler():
    options = {"threads_per_worker": 2, "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=2, **options) as local:
        yield local.scheduler_address


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def x(folder, rng):
    x = rng.standard_normal((100, 200))
    np.save("x.npy", x)
    return x


@pytest.fixture
def start(folder):
    """Start the command, with a line of Python before each chunk; end its whole process group after the test."""
    processes = []

    def start(line, *arguments):
        command = [sys.executable, "-W", "error", "-c", PROGRAM.format(line), "apply", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, **pipes, start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def workers_of(process):
    """Processes of the command that work: not what keeps track of shared memory."""
    children = [int(pid) for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir() for pid in children_of(task)]
    return [pid for pid in children if b"spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]


def children_of(task):
    return (task / "children").read_text().split()


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def refused(capsys, *arguments):
    assert main(["apply", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


# ---------------------------------------------------------------------------------------------------------------- results
def test_the_bits_of_the_plain_command(start, x, folder):
    process = start("pass", "softmax", "x.npy", "y.npy", "--workers", 2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    assert out.count("chunk\n") == 20
    assert np.load("y.npy").tobytes() == fastnorm.softmax(x).tobytes()
    assert names(folder) == ["x.npy", "y.npy"]


def test_a_chunk_spread_over_the_file(start, x):
    process = start("pass", "rms_norm", "x.npy", "y.npy", "--axis", 0, "--workers", 2)
    assert process.communicate(timeout=120)[1] == ""
    assert np.load("y.npy").tobytes() == fastnorm.rms_norm(x, axis=0).tobytes()


@pytest.mark.parametrize("order", "CF")
def test_a_cluster_that_is_there(scheduler, folder, rng, monkeypatch, order):
    monkeypatch.setattr(files, "CHUNK", 8192)
    axis = 1 if order == "C" else 0
    shape = (70, 300)
    x, r, w = (np.asarray(rng.standard_normal(s, np.float32), order=order) for s in (shape, shape, shape[axis]))
    for name, array in {"x": x, "r": r, "w": w}.items():
        np.save(f"{name}.npy", array)
    arguments = ["--residual", "r.npy", "--residual-out", "h.npy", "--weight", "w.npy", "--axis", str(axis)]
    assert main(["apply", "add_rms_norm", "x.npy", "y.npy", *arguments, "--scheduler", scheduler]) == 0
    for name, expected in zip("yh", fastnorm.add_rms_norm(x, r, w, axis=axis), strict=True):
        assert np.load(f"{name}.npy").tobytes("A") == np.asarray(expected, order=order).tobytes("A")


# ----------------------------------------------------------------------------------------------- interruptions and failures
def test_a_worker_that_is_killed(start, x, folder):
    """Its chunk is done again by another, and the bits are the same."""
    process = start(SLOW, "softmax", "x.npy", "y.npy", "--workers", 2)
    assert process.stdout.readline() == "chunk\n"
    before = workers_of(process)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("chunk\n") == 19
    assert np.load("y.npy").tobytes() == fastnorm.softmax(x).tobytes()
    assert names(folder) == ["x.npy", "y.npy"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(start, x, folder, number):
    """Ctrl-C goes to all processes of a terminal, a signal to terminate to the command alone; no worker complains or stays."""
    process = start(SLOW, "softmax", "x.npy", "y.npy", "--workers", 2)
    assert process.stdout.readline() == "chunk\n"
    before = workers_of(process)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.communicate(timeout=60)[1] == "fastnorm apply: interrupted, nothing was written\n"
    assert process.returncode == 128 + number
    assert not [pid for pid in before if pathlib.Path(f"/proc/{pid}").exists()]
    assert names(folder) == ["x.npy"]


def test_a_chunk_that_kills_every_worker(start, x, folder):
    process = start("os.kill(os.getpid(), signal.SIGKILL)", "softmax", "x.npy", "y.npy", "--workers", 1)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert err.startswith("fastnorm apply: the cluster gave up: KilledWorker: ")
    assert names(folder) == ["x.npy"]


def test_a_signal_while_workers_start(start, x, folder):
    """It waits for them: half a cluster could not be closed."""
    process = start(SLOW, "softmax", "x.npy", "y.npy", "--workers", 2)
    while process.poll() is None and not workers_of(process):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "fastnorm apply: interrupted, nothing was written\n")
    assert process.returncode == 128 + signal.SIGTERM
    assert names(folder) == ["x.npy"]


def test_workers_that_do_not_start(x, capsys, monkeypatch, folder):
    """As where processes are killed for memory, or there may be no more of them."""
    monkeypatch.setattr(distributed.Nanny, "start_unsafe", lambda nanny: fail())

    async def fail():
        raise RuntimeError("no process")

    complaint = refused(capsys, "softmax", "x.npy", "y.npy", "--workers", "1")
    assert complaint == "fastnorm apply: --workers: no process\n"
    assert names(folder) == ["x.npy"]


def test_a_worker_that_sees_other_files(start, x, folder):
    """It says which it is, on which machine, and what it lacks."""
    lacks = "arguments['sources']['x'] = type(arguments['sources']['x'])('/nowhere/x.npy', 0, 0)"
    err = start(lacks, "softmax", "x.npy", "y.npy", "--workers", 1).communicate(timeout=120)[1]
    assert err.startswith("fastnorm apply: worker tcp://127.0.0.1:")
    assert err.endswith("): [Errno 2] No such file or directory: '/nowhere/x.npy'\n")
    changed = "os.utime('x.npy', (0, 0))"
    err = start(changed, "softmax", "x.npy", "y.npy", "--workers", 1).communicate(timeout=120)[1]
    assert f"{folder / 'x.npy'} is not the file that it was when the command began, or on the machine of the command" in err
    lacks = "arguments['targets'] = [path + '0' for path in arguments['targets']]"
    err = start(lacks, "softmax", "x.npy", "y.npy", "--workers", 1).communicate(timeout=120)[1]
    assert "No such file or directory" in err
    assert ".fastnorm-" in err
    assert names(folder) == ["x.npy"]


def test_a_worker_with_another_version(start, x):
    err = start("arguments['version'] = '0'", "softmax", "x.npy", "y.npy", "--workers", 1).communicate(timeout=120)[1]
    assert err.endswith(f"has fastnorm {fastnorm.__version__}, the command 0\n")


# --------------------------------------------------------------------------------------------------------------- refusals
def test_a_scheduler_that_is_not_there_or_has_no_workers(x, capsys, monkeypatch, folder):
    monkeypatch.setattr(cluster, "PATIENCE", 1)
    assert "tcp://127.0.0.1:1" in refused(capsys, "softmax", "x.npy", "y.npy", "--scheduler", "tcp://127.0.0.1:1")
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        complaint = refused(capsys, "softmax", "x.npy", "y.npy", "--scheduler", empty.scheduler_address)
    assert f"{empty.scheduler_address} has no worker" in complaint
    assert names(folder) == ["x.npy"]


@pytest.mark.parametrize("address", ["", "node7", "foo://node7:8786"])
def test_addresses_that_are_none(x, capsys, folder, address):
    """An empty one is that of a shell's variable that is not set: no reason to do all the work here."""
    assert refused(capsys, "softmax", "x.npy", "y.npy", "--scheduler", address).startswith(
        f"fastnorm apply: --scheduler {address}: "
    )
    assert names(folder) == ["x.npy"]


def test_machines_do_not_share_pages(x, capsys, monkeypatch, scheduler, folder):
    monkeypatch.setattr(files, "CHUNK", 8192)
    complaint = refused(capsys, "softmax", "x.npy", "y.npy", "--axis", "0", "--scheduler", scheduler)
    assert "two machines cannot write to at a time; use --workers" in complaint
    assert names(folder) == ["x.npy"]


def test_without_distributed(x, capsys, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "--workers needs distributed: pip install '.[dask]'" in refused(
        capsys, "softmax", "x.npy", "y.npy", "--workers", "2"
    )
    assert "--scheduler needs" in refused(capsys, "softmax", "x.npy", "y.npy", "--scheduler", "tcp://127.0.0.1:8786")
    assert names(folder) == ["x.npy"]


def test_options_that_do_not_go_together(x, capsys):
    for option in (["--workers", "2"], ["--scheduler", "tcp://127.0.0.1:8786"]):
        assert "--in-place goes without --workers and --scheduler" in refused(capsys, "softmax", "x.npy", "--in-place", *option)
    for option in (["--workers", "2", "--scheduler", "tcp://127.0.0.1:8786"], ["--workers", "0"]):
        with pytest.raises(SystemExit):
            main(["apply", "softmax", "x.npy", "y.npy", *option])
    assert "must be at least 1, got 0" in capsys.readouterr().err
