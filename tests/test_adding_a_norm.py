"""The page on adding a norm is carried out, word for word, on a copy of the package; then the new norm is put to the test.

Run as a program, this file is that test: it imports whatever `fastnorm` the path leads to.
"""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding-a-norm.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installation without the repository")


def blocks():
    """(file, place, code) of each block that the page adds somewhere."""
    found = re.findall(r"^```\{code-block\} python\n:caption: (\S+), ([^\n]+)\n\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(found) == PAGE.read_text().count("{code-block}"), "a block without a place"
    return found


def statement_of(tree, name):
    """The one statement at the top of a module that defines `name`; or imports from it, for a module's name."""

    def defines(statement):
        if isinstance(statement, ast.ImportFrom):
            return name == "the import from " + "." * statement.level + (statement.module or "")
        names = [getattr(target, "id", None) for target in getattr(statement, "targets", [])]
        return name in [getattr(statement, "name", None), *names]

    (statement,) = filter(defines, tree.body)
    return statement


def put(text, place, code):
    """`text` with `code` where the page says: after a definition, or as further members of a list, dict or import."""
    how, _, name = place.partition(" ")
    statement = statement_of(ast.parse(text), name)
    lines = text.splitlines(keepends=True)
    if how == "after":
        end, column = statement.end_lineno, None
        code = "\n\n" * isinstance(statement, ast.FunctionDef) + code
    else:
        assert how == "in", place
        members = getattr(statement, "names", None) or getattr(statement.value, "elts", None) or statement.value.values
        end, column = members[-1].end_lineno, members[-1].end_col_offset
        code = ", " + code.strip()
    if column is None:
        return "".join([*lines[:end], code, *lines[end:]])
    last = lines[end - 1]
    return "".join([*lines[: end - 1], last[:column], code, last[column:], *lines[end:]])


def carry_out(folder):
    """A copy of the package with what the page adds to it."""
    shutil.copytree(ROOT / "fastnorm", folder / "fastnorm", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for name in ("conftest.py", "test_house.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    for path, place, code in blocks():
        file = folder / path
        if place == "a new file":
            assert not (ROOT / path).exists()
            file.write_text(code)
        else:
            file.write_text(put(file.read_text(), place, code))


@pytest.mark.slow
def test_the_page_adds_a_norm(tmp_path):
    carry_out(tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    environment = dict(os.environ, PYTHONPATH=str(tmp_path), FASTNORM_CACHE_DIR=str(cache), PYTHONDONTWRITEBYTECODE="1")
    ran = subprocess.run([sys.executable, __file__], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for backend in ("_cpu", "_cuda"):
        init = ast.parse((tmp_path / "fastnorm" / backend / "__init__.py").read_text())
        assert "std_norm" in ast.literal_eval(statement_of(init, "__all__").value)


def oracle(x, weight, eps):
    """Independent of the page's."""
    x = x.astype(np.float64)
    distance = x - x[:, :1]
    variance = (distance**2).mean(1, keepdims=True) - distance.mean(1, keepdims=True) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(x / np.sqrt(variance + eps) * weight.astype(np.float64), posinf=0, neginf=0)


def main():
    """Check the norm that the page has added, with numbers of its own."""
    from compare import assert_same_bits, ulps

    import fastnorm

    assert pathlib.Path(fastnorm.__file__).parent.parent == pathlib.Path.cwd(), fastnorm.__file__
    rng = np.random.default_rng(0)
    scales = np.array([1, 1e30, 3e35, 1e-30, 1e-42, 0], np.float32)
    for n in (1, 2, 7, 8, 9, 64, 65, 513, 700):
        x = (rng.standard_normal((60, n)) + rng.integers(0, 3, (60, 1)) * 5).astype(np.float32) * rng.choice(scales, (60, 1))
        x[::7] = x[::7, :1]  # equal numbers
        weight = rng.standard_normal(n).astype(np.float32)
        for eps in (0.0, 0.01, 1.0):
            y, wanted = fastnorm.std_norm(x, weight, eps=eps), oracle(x, weight, eps)
            assert ulps(y, wanted) <= 4, (n, eps)
            assert_same_bits(fastnorm.std_norm(np.ascontiguousarray(x.T), weight, eps=eps, axis=0).T, y)
            assert_same_bits(fastnorm.std_norm(x[5], weight, eps=eps), y[5])
        half = (rng.standard_normal((5, n)) + 3).astype(np.float16)
        wanted = oracle(half, weight, 1e-3)
        got = fastnorm.std_norm(half, weight, eps=1e-3)
        assert got.dtype == np.float16
        assert np.abs(got - wanted).max() <= np.spacing(np.float16(np.abs(wanted).max()))


if __name__ == "__main__":
    main()
    # And those of the page, and the rules for formulas.
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", ".", "-k", "std_norm or formula", "tests"]))
