"""The rules of the house that a machine can check."""

import ast
import inspect

import numpy as np
import pytest

from fastnorm import _math, _vocabulary

LOOPS_AND_BRANCHES = (ast.For, ast.While, ast.If, ast.IfExp, ast.Try, ast.With, ast.comprehension, ast.BoolOp)


@pytest.mark.parametrize("file", ["norms.py", "attention.py"])
def test_formulas_have_no_loop_no_branch_no_literal(source, file):
    """What would run differently on lanes, or widen a GPU's float32 to double."""
    tree = ast.parse((source / "_math" / file).read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, LOOPS_AND_BRANCHES), ast.unparse(node)
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, str | bool), f"literal {node.value!r}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert node.module in {"typing", "_vocabulary"}, ast.unparse(node)


@pytest.mark.parametrize("name", [name for name, norm in _math.NORMS.items() if not norm.biased])
def test_formulas_of_a_norm_without_a_bias_do_not_look_at_one(name):
    """What stands in the place of a bias that a norm does not take is anything: on a CPU its weight, on a GPU 0."""
    norm, bounds = _math.NORMS[name], _vocabulary.RANGES["float32"]
    one, zero, nan = bounds.one, bounds.zero, np.float32(np.nan)
    for common in (True, False):
        factors = _math.CentredFactors(one, one, common, zero, zero, one) if norm.centred else _math.Factors(one, one, common)
        assert norm.apply_common(one, factors, one, nan) == one
        assert norm.apply_any(one, factors, one, nan, bounds) == one


def test_every_formula_is_registered():
    functions = [f for _, f in inspect.getmembers(_math, inspect.isfunction) if f.__module__.startswith(_math.__name__)]
    assert set(functions) == set(_math.FORMULAS)


def test_no_file_is_too_long(source):
    for file in source.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 420, file


@pytest.mark.parametrize("file", ["norms.py", "residual.py", "softmax.py", "attention.py"])
def test_public_functions_never_loop(source, file):
    tree = ast.parse((source / file).read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.comprehension)]


@pytest.mark.parametrize("backend", ["_cpu", "_cuda"])
def test_backends_never_validate(source, backend):
    """They know nothing of checks and arguments: what reaches them is prepared. But that `set_num_threads` is at home there."""
    for file in (source / backend).rglob("*.py"):
        tree = ast.parse(file.read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 2}
        allowed = {None, "_attention_options", "_compile", "_math", "_two_passes", "_vocabulary", "consistency"}
        allowed |= {"_cpu.layout", "_cpu.attention_layout"} if backend == "_cuda" else set()
        allowed |= {"_checks"} if file.name == "threads.py" else set()
        assert imported <= allowed, (file.name, imported - allowed)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ranges_hold_what_they_promise(dtype):
    """The thresholds of the rescue, worked out anew from the dtype itself."""
    bounds, info = _vocabulary.RANGES[dtype], np.finfo(dtype)
    log2 = lambda value: int(np.log2(np.longdouble(value)))  # noqa: E731
    largest, smallest = log2(info.max) + 1, log2(info.smallest_subnormal)
    mantissa = info.nmant + 1
    block, blocks = 9, 27  # log2 of the elements of a block, and of the blocks of the longest row
    assert 2 * smallest + 2 * log2(bounds.lift) > info.minexp, "a lifted square is normal"
    assert log2(bounds.small) + 2 * log2(bounds.lift) + blocks < largest, "lifted sums have room"
    assert 2 * (largest + log2(bounds.drop)) + block + blocks < largest, "dropped sums have room"
    assert log2(bounds.large) + blocks < largest, "plain sums have room"
    assert log2(bounds.large) + 2 * log2(bounds.drop) > info.minexp + mantissa, "dropped sums keep their bits"
    assert log2(bounds.small) > info.minexp + mantissa, "plain sums lose nothing to underflow"
    faint = log2(bounds.faint_eps) - 2 * log2(bounds.lift)  # the eps from which nothing is lifted
    assert smallest <= faint - mantissa - 1, "eps outweighs what underflows"
