"""Fixtures of the whole suite."""

import pathlib

import numpy as np
import pytest

import fastnorm


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="run the tests marked gpu, on a real device")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--gpu"):
        gpu = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if item not in gpu]
        config.hook.pytest_deselected(items=gpu)


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
