"""Options and fixtures of the benchmarks: ``pytest bench --benchmark-only [--size quick]``."""

import functools

import pytest

import fastnorm
from fastnorm._bench import measure, peers
from fastnorm._bench.cases import cases


def pytest_addoption(parser):
    parser.addoption("--size", choices=["full", "quick", "smoke"], default="full", help="of the arrays; see `fastnorm bench`")


def pytest_generate_tests(metafunc):
    """Everybody who takes part in each case of `fastnorm bench`, as a benchmark of its own."""
    if {"case", "name"} <= set(metafunc.fixturenames):
        size = metafunc.config.getoption("--size")
        pairs = [(case, name) for case in cases(size) for name in measure.line_up(case, tuple(peers.PEERS))]
        metafunc.parametrize(("case", "name"), pairs, ids=[f"{case.title}: {name}" for case, name in pairs])


@functools.lru_cache(maxsize=1)  # the largest case is half a gigabyte
def _job(case):
    return measure.prepare(case, fastnorm.get_num_threads())


@pytest.fixture
def job(case):
    """The arrays of a case, the same ones for all its benchmarks."""
    try:
        return _job(case)
    except peers.Absent as reason:
        pytest.skip(str(reason))


@pytest.fixture
def contender(job, name):
    """Somebody whose result has been checked."""
    try:
        one = measure.contender(name, job)
    except peers.Absent as reason:
        pytest.skip(f"{name}: {reason}")
    measure.check(name, one, job)
    return one
