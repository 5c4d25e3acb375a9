"""bench/gpu_session.py on a small scale: all that it does on a GPU but the clock, with kernels interpreted."""

import importlib.util
import json
import pathlib

import cuda_devices  # first: it skips where there is no CuPy
import cupy
import pytest

from fastnorm._bench import oracles

SCRIPT = pathlib.Path(__file__).parent.parent / "bench" / "gpu_session.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installation without the repository")


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_session", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = {
        "DTYPES": ["float32", "bfloat16"],
        "ROWS": [(6, 64), (5, 1000)],
        "HEADS": [((1, 2, 2, 20, 20, 8), {"is_causal": True}), ((1, 2, 1, 1, 600, 8), {})],
    }
    small["OTHERS"] = [(f, o, [tuple(min(n, 8) for n in shape) for shape in shapes]) for f, o, shapes in module.OTHERS[:-1]]
    small["OTHERS"] = [(f, {n: min(v, 4) for n, v in o.items()}, shapes) for f, o, shapes in small["OTHERS"]]
    small["OTHERS"] += [("rope", {}, [(1, 2, 8, 16), (8, 8), (8, 8)])]
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "seconds", lambda run: (run(), (1e-3, 1e-6))[1])
    with cuda_devices.interpreted() as device:
        monkeypatch.setattr(cupy, "asnumpy", device.host)
        yield module


@pytest.mark.slow
def test_everything_is_checked_and_told(script, tmp_path):
    session = script.Session(tmp_path / "result.json", 600)
    script.rows(session, None)
    script.heads(session, None)
    script.others(session)
    found = json.loads((tmp_path / "result.json").read_text())["measured"]
    works = {one["work"] for one in found}
    assert len(works) == 2 * (2 * 3 + 2 + 5)  # dtypes; rows of three functions, heads, others
    assert all("seconds" in one for one in found if one["who"] != "cupy")
    assert {one["who"] for one in found} == {"fastnorm", "copy", "cupy"}


@pytest.mark.slow
def test_a_wrong_result_is_told_and_not_timed(script, tmp_path, monkeypatch):
    right = oracles.layer_norm
    monkeypatch.setattr(oracles, "layer_norm", lambda x, *others, **options: right(x, *others, **options) + 0.5)
    session = script.Session(tmp_path / "result.json", 600)
    script.rows(session, None)
    wrong = {one["work"] for one in session.found["measured"] if "wrong" in one}
    assert len(wrong) == 4
    assert all(work.startswith("layer_norm") for work in wrong)
    assert not any("seconds" in one for one in session.found["measured"] if one["work"] in wrong)
    assert session.found["wrong"] is True


def test_a_session_that_is_over_stops(script, tmp_path):
    session = script.Session(tmp_path / "result.json", 0)
    script.rows(session, None)
    assert session.found["measured"] == []
