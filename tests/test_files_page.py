"""What docs/files.md tells a reader to type does what it says."""

import pathlib
import re
import shlex

import numpy as np
import pytest

import fastnorm
from fastnorm.__main__ import main
from fastnorm._apply.calls import ARRAYS, NUMBERS, parameters_of

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "files.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installation without the repository")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_commands(folder, rng, capsys):
    shapes = {"embeddings": (10, 64), "images": (2, 64, 5, 6), "scores": (3, 4, 5), "x": (7, 8), "stream": (7, 8)}
    for name, shape in (shapes | {"weight": (64,), "bias": (64,)}).items():
        np.save(f"{name}.npy", rng.standard_normal(shape))
    commands = [shlex.split(line) for line in re.findall(r"^\$ fastnorm (.*)$", PAGE.read_text(), re.MULTILINE)]
    local = [command for command in commands if "--scheduler" not in command]
    assert len(local) == len(commands) - 1 == 6
    for command in local:
        assert main(command) == 0, capsys.readouterr().err
        assert np.load(command[3]).shape == np.load(command[2]).shape


def test_the_table_of_options():
    """Each function with all that it takes."""
    rows = re.findall(r"^\| (`\w+`.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    options = {name: set(re.findall(r"--[a-z-]+", line)) for names, line in rows for name in re.findall(r"`(\w+)`", names)}
    for name in ("rms_norm", "layer_norm"):
        options[f"add_{name}"] |= options[name]
    for name, listed in options.items():
        taken = [p for p in parameters_of(name) if p in (*ARRAYS, *NUMBERS, "axis", "residual_out")]
        assert listed == {f"--{p.replace('_', '-')}" for p in taken}, name
    assert len(options) == 9


def test_zarr(folder, rng):
    zarr = pytest.importorskip("zarr")
    (recipe,) = re.findall(r"^```\{code-block\} python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    x = rng.standard_normal((100, 64))
    zarr.create_array("embeddings.zarr", data=x, chunks=(30, 20))
    exec(recipe, {})
    assert sorted(file.name for file in folder.iterdir()) == ["embeddings.zarr", "normalised.zarr"]
    np.testing.assert_allclose(zarr.open_array("normalised.zarr")[:], fastnorm.rms_norm(x, eps=1e-5), rtol=1e-14)
