"""The library, copies and other libraries under pytest-benchmark: a group a case.

``fastnorm bench`` is the one to quote: it times everybody in turn, so that a machine that drifts does not favour anybody.
pytest-benchmark finishes with one before it goes on to the next; its strength is to compare with earlier runs
(``--benchmark-autosave``, then ``--benchmark-compare``). Imports and first calls, which take processes, are in
``fastnorm bench`` alone.
"""

import fastnorm
from fastnorm._bench.measure import settle
from fastnorm._bench.processes import busy_core


def bench_case(benchmark, case, name, job, contender):
    """One call, its result checked before."""
    benchmark.group = f"row {case.row}: {case.title}"
    benchmark.name = name
    benchmark.extra_info.update(bytes=job.bytes, threads=contender.threads or job.threads)
    settle()
    with busy_core(case.busy), fastnorm.set_num_threads(contender.threads or job.threads):
        benchmark(contender.call)
