"""Compiling ahead: after it, nothing is left to compile."""

import numpy as np
import pytest
from calls import call, inputs

import fastnorm
from fastnorm import _compile
from fastnorm.__main__ import main
from fastnorm._cpu import norms as schedules
from fastnorm._cpu.needed import FUNCTIONS, kernels_for

SHAPES = [(4, 33), (2000, 700), (3, 700_001), (40, 300, 200)]


def test_functions_are_all_that_have_kernels():
    others = {"softmax", "log_softmax", "logsumexp", "rope", "attention"}
    assert set(FUNCTIONS) == {name for name in fastnorm.__all__ if name.endswith("_norm")} | others


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name.endswith("_norm")])
def test_nothing_is_left_to_compile(rng, monkeypatch, function, dtype):
    names = set(kernels_for(function, dtype))
    assert fastnorm.warm_up([function], [dtype]) == len(names)
    monkeypatch.setattr(_compile, "_kernels", {name: _compile._kernels[name] for name in names})
    monkeypatch.setattr(_compile, "_load", lambda name: pytest.fail(f"{name} was not compiled ahead"))
    asked = set()
    monkeypatch.setattr(schedules, "kernel", lambda *name: asked.add(name) or _compile.kernel(*name))
    for shape in SHAPES:
        for axis in range(len(shape)):
            arrays = inputs(function, rng, shape, dtype)
            call(function, arrays, axis=axis)
            call(function, [a.swapaxes(0, -1) for a in arrays], axis=axis)
    assert asked <= names


@pytest.mark.parametrize("function", ["softmax", "log_softmax", "logsumexp", "rope", "attention"])
def test_nothing_is_left_to_compile_of_others(rng, monkeypatch, function):
    names = set(kernels_for(function, "float32"))
    assert fastnorm.warm_up([function]) == len(names)
    monkeypatch.setattr(_compile, "_kernels", {name: _compile._kernels[name] for name in names})
    monkeypatch.setattr(_compile, "_load", lambda name: pytest.fail(f"{name} was not compiled ahead"))
    for shape in [(3, 4, 10), (2, 3, 700_001)]:
        x = rng.standard_normal(shape, np.float32)
        if function == "attention":
            fastnorm.attention(x[..., :8], x[:1, :, :8], x[:1, :, :8])
        elif function == "rope":
            fastnorm.rope(x, *[rng.standard_normal((4,), np.float32)] * 2)
        else:
            for axis in range(3):
                getattr(fastnorm, function)(x, axis=axis)


def test_the_command(capsys):
    assert main(["warm", "unit_norm"]) == 0
    assert "6 kernels are ready in " in capsys.readouterr().out
    assert main(["warm", "--dtypes", "int8", "unit_norm"]) == 2
    assert "dtypes must be among" in capsys.readouterr().err
    assert main(["warm", "--capabilities", "80"]) == 2
    assert capsys.readouterr().err == "fastnorm warm: --capabilities goes with --ptx\n"


def test_an_interruption_of_the_command(monkeypatch, capsys):
    def interrupt(*name):
        raise KeyboardInterrupt

    monkeypatch.setattr(_compile, "kernel", interrupt)
    assert main(["warm", "unit_norm"]) == 130
    assert capsys.readouterr() == ("", "fastnorm warm: interrupted\n")


@pytest.mark.parametrize(
    ("functions", "dtypes", "error", "words"),
    [
        ("rms_norm", ["float32"], TypeError, "functions must be an iterable of names, got the single string 'rms_norm'"),
        (["rms_norm"], 7, TypeError, "dtypes must be an iterable of names, got 7"),
        (["norm"], ["float32"], ValueError, "functions must be among"),
        (["rms_norm"], ["int8"], ValueError, "dtypes must be among float16, bfloat16, float32, float64, got 'int8'"),
    ],
)
def test_errors(functions, dtypes, error, words):
    with pytest.raises(error, match=r"^warm_up: ") as caught:
        fastnorm.warm_up(functions, dtypes)
    assert words in str(caught.value)
