"""Fixtures of the whole suite."""

import pathlib

import numpy as np
import pytest

import fastnorm


def pytest_addoption(parser):
    parser.addoption("--backend", choices=["numpy", "cupy"], default="numpy", help="cupy: the tests that run on a real device")


def pytest_collection_modifyitems(config, items):
    on_device = config.getoption("--backend") == "cupy"
    others = [item for item in items if (item.get_closest_marker("gpu") is not None) != on_device]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20261129)


@pytest.fixture
def threads():
    """`fastnorm.set_num_threads`, undone at the end of the test."""
    with fastnorm.set_num_threads(fastnorm.get_num_threads()):
        yield fastnorm.set_num_threads


@pytest.fixture
def source():
    """The package's folder."""
    return pathlib.Path(fastnorm.__file__).parent
