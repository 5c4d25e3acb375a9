"""`show_config`, and the commands that print it."""

import sys

import numpy as np
import pytest

import fastnorm
from fastnorm import _compile, _config
from fastnorm.__main__ import main


def test_dicts_are_returned_and_nothing_is_printed(capsys):
    config = fastnorm.show_config(mode="dicts")
    assert capsys.readouterr().out == ""
    assert config["versions"]["fastnorm"] == fastnorm.__version__
    assert config["versions"]["numpy"] == np.__version__
    assert config["threads"] == {"number": fastnorm.get_num_threads()}
    assert config["processor"]["name"]
    assert isinstance(config["cache"]["usable"], bool)
    assert config["gpu"]["devices"] or config["gpu"]["reason"]


def test_printing_says_the_same(capsys):
    assert fastnorm.show_config() is None
    out = capsys.readouterr().out
    config = fastnorm.show_config(mode="dicts")
    for title in config:
        assert f"{title}:\n" in out
    assert f"  numpy: {np.__version__}\n" in out
    assert f"  name: {config['processor']['name']}\n" in out


def test_info_prints_it(capsys):
    assert main(["info"]) == 0
    assert f"  fastnorm: {fastnorm.__version__}\n" in capsys.readouterr().out


def test_the_version_by_itself(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fastnorm {fastnorm.__version__}\n"


@pytest.mark.parametrize("command", ["bench", "warm", "apply", "info"])
def test_every_command_says_what_it_is(command, capsys):
    told = []
    for arguments in (["--help"], [command, "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
        told.append(" ".join(capsys.readouterr().out.split()))
    summary = told[1].partition("] ")[2].partition(". ")[0].rpartition("] ")[2]
    assert f" {command} " in told[0]
    assert len(summary) > 20


@pytest.mark.parametrize("mode", ["dict", None, 1])
def test_unknown_mode(mode):
    with pytest.raises(ValueError, match=r"show_config: mode must be 'stdout' or 'dicts', got"):
        fastnorm.show_config(mode=mode)


def test_why_the_cache_is_unusable(monkeypatch, capsys):
    folder = _compile.Folder(None, False, "/somewhere belongs to another user")
    monkeypatch.setattr(_compile, "cache_folder", lambda: folder)
    assert _config.show_config(mode="dicts")["cache"] == {"folder": None, "usable": False, "reason": folder.reason}
    _config.show_config()
    assert "  usable: False\n  reason: /somewhere belongs to another user\n" in capsys.readouterr().out


def test_a_broken_cupy_is_reported(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert _config.show_config(mode="dicts")["gpu"] == {"devices": [], "reason": "RuntimeError: no driver"}
