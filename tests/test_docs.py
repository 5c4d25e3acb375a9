"""The documentation names what exists, all of it, and nothing else."""

import pathlib
import re

import pytest

import fastnorm

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NOT_THERE = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="an installation without the repository")

pytestmark = NOT_THERE


def test_the_api_page_lists_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(fastnorm.__all__)


def listed_files():
    """Paths on the architecture page: a folder stands for all that is in it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.split("## Where things are")[1].split("```")[1]
    return [line.split()[0] for line in block.splitlines()[1:] if line.strip()]


def test_the_architecture_page_lists_files_that_exist():
    for path in listed_files():
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path


def test_the_architecture_page_lists_every_module():
    listed = listed_files()
    folders = tuple(path for path in listed if path.endswith("/"))
    for file in (ROOT / "fastnorm").rglob("*.py"):
        path = file.relative_to(ROOT).as_posix()
        inner_init = file.name == "__init__.py" and any(other.startswith(path.removesuffix("__init__.py")) for other in listed)
        assert inner_init or path in listed or path.startswith(folders), path


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_nobody_is_sent_to_another_distribution():
    """The name of the import belongs to somebody else where distributions are named."""
    wrong = re.compile(r"pip3? install (-\S+ )*['\"]?fast" + r"norm(?![-\w])")
    suffixes = {".md", ".py", ".toml", ".cfg", ".yml", ".yaml", ".txt", ".rst", ""}
    folders = ("fastnorm", "docs", "tests", "bench", ".ci")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    for file in files:
        if file.is_file() and file.suffix in suffixes and "_build" not in file.parts:
            assert not wrong.search(file.read_text(errors="replace")), file


def test_the_checks_run_the_command_of_the_readme():
    run = ROOT / ".ci" / "run"
    if not run.exists():
        pytest.skip("a source distribution has no .ci")
    command = re.search(r"^(pip install -e .*) && (pytest.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    lines = run.read_text().splitlines()
    assert command[1].replace("install -e", "install -qq -e") in lines
    assert command[2] in lines
