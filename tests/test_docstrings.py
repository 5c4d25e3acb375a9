"""Docstrings are complete, and every example in them, in the README and in the documentation runs as printed."""

import doctest
import pathlib
import re
import tomllib

import pytest
from numpydoc.validate import ERROR_MSGS, validate

import fastnorm

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")] if "```python" in page.read_text()]


def checks():
    """The codes that `[tool.numpydoc_validation]` asks for: with "all", the others are exceptions."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        chosen = set(tomllib.load(file)["tool"]["numpydoc_validation"]["checks"])
    return set(ERROR_MSGS) - chosen if "all" in chosen else chosen


@pytest.mark.parametrize("name", fastnorm.__all__)
def test_docstrings_are_complete(name):
    wanted = checks()
    found = [error for error in validate(f"fastnorm.{name}")["errors"] if error[0] in wanted]
    assert not found


def run(text, name):
    """Run examples as a reader would type them."""
    examples = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    report = []
    doctest.DocTestRunner(verbose=False).run(examples, out=report.append)
    assert not report, "".join(report)
    return len(examples.examples)


@pytest.mark.parametrize("name", fastnorm.__all__)
def test_examples_of_docstrings(name):
    assert run(getattr(fastnorm, name).__doc__, name) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_of_pages(page):
    """All blocks of a page, one after the other, in one namespace. A block of Python without a prompt would go unchecked."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert all(block.startswith(">>>") for block in blocks)
    assert run("\n\n".join(blocks), page.name) > 0


def test_the_readme_has_an_example():
    assert ROOT / "README.md" in PAGES
