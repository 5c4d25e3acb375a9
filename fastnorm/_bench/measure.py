"""Measuring: a result is checked against the oracle before it is timed, and all contenders are timed in turn.

Machines drift, and neighbours come and go: what counts are ratios within a round. In each round everybody is timed
once, one after the other; a ratio is taken in each round, and its median over the rounds is what is reported. Beside it stands
the ratio of the best times, which is what a quiet machine would show.
"""

import math
import statistics
import time
import timeit
from typing import Any, NamedTuple

import numpy as np

import fastnorm

from . import attention, oracles
from .peers import CONTENDERS, COPIES, EPS, EXACT, PEERS, Absent, Job, has_gpu
from .processes import busy_core, start_times
from .realdata import embeddings

BATCH = 2e-3  # seconds that a timing should take at least: the clock, the caches and the call into it are then below 1 %
LONG = 0.05  # seconds from which a single call is timed, without one before that wakes threads: they are below 2 % of it
SECONDS = {"full": 2.5, "quick": 0.2, "smoke": 0.0}  # a case, as long as there are enough rounds
ROUNDS = {"full": (5, 41), "quick": (3, 11), "smoke": (2, 2)}  # at least, at most; an odd number has a median of its own
WEIGHTS = {"rms_norm": 1, "layer_norm": 2, "unit_norm": 0, "group_norm": 2}  # weight and bias: how many of them a function has
WEIGHTS |= {"add_rms_norm": 1, "add_layer_norm": 2}
CHECKED = 1 << 23, 1 << 21  # elements that are checked of this library's results, and of others': of more, some rows
ROUNDED = 0.51  # units in the last place, for what this library promises to round once to 16 bits
ROUGH_HALF, ROUGH_DOUBLE = 8, 1e6  # what others may be off in 16 bits, and in float64: onnxruntime's eps is a float32


class WrongResult(Exception):  # noqa: N818 - what it is
    """A contender's result is not the oracle's: there is nothing to time."""


class Result(NamedTuple):
    """What a case or a start gave."""

    case: Any
    seconds: dict[str, list[float]]  # a contender: seconds a call, in each round
    absent: dict[str, str]  # a contender that does not take part: why
    skipped: str = ""  # why nothing was measured
    bytes: int = 0  # read and written by a call: the input once, the output once

    def copy(self):
        """The fastest of the copies."""
        copies = [name for name in COPIES if name in self.seconds]
        return min(copies, key=lambda name: statistics.median(self.seconds[name]), default=None)

    def speed(self, name, against):
        """How many times as fast `name` is as `against`: the median of the rounds, and by the best times; None if unknown."""
        if against == "copy":
            against = self.copy()
        if name not in self.seconds or against not in self.seconds:
            return None
        ours, theirs = self.seconds[name], self.seconds[against]
        return statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), min(theirs) / min(ours)

    def reached(self, target):
        """What stands beside a `Target`: the median and the best; None if it could not be measured."""
        if target.against == "seconds":
            seconds = self.seconds.get("fastnorm")
            return (statistics.median(seconds), min(seconds)) if seconds else None
        speed = self.speed("fastnorm", target.against)
        if speed is None or target.relation == ">=":
            return speed
        return tuple(1 / s for s in speed)


def met(target, reached):
    """True if the median is within the target."""
    return reached[0] >= target.limit if target.relation == ">=" else reached[0] <= target.limit


# ----------------------------------------------------------------------------------------------------- the measuring
def measure(case, size, threads, peers=tuple(PEERS), advance=lambda share: None):
    """Check and time everybody on a `Case`; `advance` is told the share of the work that is done."""
    try:
        job = prepare(case, threads)
    except Absent as reason:
        return Result(case, {}, {}, skipped=str(reason))
    contenders, absent = {}, {}
    for name in line_up(case, peers):
        try:
            contenders[name] = contender(name, job)
        except Absent as reason:
            absent[name] = str(reason)
    for name, one in contenders.items():
        check(name, one, job)
    with busy_core(case.busy):
        seconds = rounds(contenders, size, threads, advance)
    return Result(case, seconds, absent, bytes=job.bytes)


def measure_start(start, size):
    """Run the processes of a `Start`."""
    return Result(start, {"fastnorm": start_times(start, size)}, {})


def contender(name, job):
    """The contender of this name, ready to be called; `Absent` if there is none."""
    makers = attention.CONTENDERS if job.case.function in attention.FUNCTIONS else CONTENDERS
    try:
        return makers[name](job)
    except ImportError as error:
        raise Absent(f"{(error.name or str(error)).partition('.')[0]} is not installed") from None


def line_up(case, peers):
    """The names of all who take part in a case, this library first."""
    names = ["fastnorm", *(COPIES if case.out and case.function != "attention" else ()), *(p for p in peers if case.peers)]
    names += [t.against for t in case.targets if t.against != "copy" and t.against not in PEERS]
    return [*names, "gpu"] if case.out and case.peers and has_gpu() else names


def prepare(case, threads):
    """The arrays of a case. Its numbers are the same in each run."""
    generator = np.random.default_rng(2024)
    dtype = _dtype(case.dtype)

    def normal(shape):
        return generator.standard_normal(shape, np.float32).astype(dtype)

    if case.function in attention.FUNCTIONS:
        return attention.prepare(case, threads, normal)
    x = embeddings() if case.data else normal(case.shape)
    n = x.shape[case.axis]
    weights = [(1 + 0.1 * generator.standard_normal(n, np.float32)).astype(dtype) for _ in range(WEIGHTS[case.function])]
    job = Job(case, x, tuple(weights), np.empty_like(x), threads)
    if case.function.startswith("add_"):
        job = job._replace(residual=normal(x.shape), kept=np.empty_like(x))
    return job


def _dtype(name):
    """A dtype by its name, that of `ml_dtypes` included."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise Absent("ml_dtypes, which has bfloat16, is not installed") from None
    return np.dtype(ml_dtypes.bfloat16)


def rounds(contenders, size, threads, advance=lambda share: None):
    """Seconds a call for each contender, in each round."""
    counts = {name: _count(one, threads) for name, one in contenders.items()}
    seconds = {name: [] for name in contenders}
    least, most = ROUNDS[size]
    end = time.perf_counter() + SECONDS[size]
    for done in range(most):
        if done >= least and time.perf_counter() > end:
            break
        for name, one in contenders.items():
            seconds[name].append(_time(one, *counts[name], threads))
        advance((done + 1) / most)
    return seconds


def _count(one, threads):
    """Calls that take `BATCH` together, and whether one that is not timed should come before."""
    number, took = 1, _time(one, 1, True, threads)
    while took < BATCH / 4 and number < 1 << 20:  # a first guess by a single call is off by its cold caches
        number *= 4
        took = _time(one, number, True, threads) * number
    return max(1, math.ceil(number * BATCH / took)), took < LONG


def _time(one, number, wake, threads):
    """Seconds a call, of `number` calls in a row."""
    settle()
    with fastnorm.set_num_threads(one.threads or threads):
        if wake:  # threads and processor, from the wait above: up to a millisecond of what is timed
            one.call()
        return timeit.Timer(one.call).timeit(number) / number


def settle(patience=0.25):
    """Wait until no thread of this process works any more: onnxruntime's spin for 50 to 80 ms after a call."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.004)
        if time.process_time() - before < 0.001:
            break


# ----------------------------------------------------------------------------------------------------- the checking
def check(name, one, job):
    """Raise `WrongResult` unless a contender's results are the oracle's, within its `ulps` of the largest number of a row."""
    for out in job.outs:
        out.fill(np.nan)  # so that nothing counts that somebody else has left there
    with fastnorm.set_num_threads(one.threads or job.threads):
        results = one.read(one.call())
    if job.case.function in attention.FUNCTIONS:
        error, allowed = attention.error_of(np.asarray(results), one, job)
        if not error <= allowed:
            raise WrongResult(f"{name}: {job.case.title}: off by {error:.3g} roundings of the largest, allowed are {allowed}")
        return
    results = results if isinstance(results, tuple) else (results,)
    axis = job.case.axis if not job.case.groups else -1  # the rows of a group norm are images
    results, inputs = ([np.moveaxis(np.asarray(a), axis, -1) for a in arrays] for arrays in (results, job.inputs))
    x = inputs[0]
    for y in results:
        if y.shape != x.shape or y.dtype != x.dtype:
            raise WrongResult(f"{name}: {job.case.title}: {y.dtype} of shape {y.shape} came back for {x.dtype} of {x.shape}")
    allowed = one.ulps
    if allowed and x.itemsize != 4:
        allowed = {2: (ROUNDED, ROUGH_HALF), 8: (EXACT, ROUGH_DOUBLE)}[x.itemsize][allowed > EXACT]
    every = max(1, x.size // CHECKED[one.ulps > EXACT])
    every += 1 - every % 2  # odd, so that rows of all kinds come up
    step = max(1, (1 << 21) // (x.size // len(x))) * every
    for start in range(0, len(x), step):
        rows = slice(start, start + step, every)
        wanted = _expected(one, job, [array[rows] for array in inputs])
        for y, expected in zip(results, wanted, strict=False):
            error = _ulps(y[rows], expected, job) if one.oracle != "copy" else float((y[rows] != expected).any())
            if not error <= allowed:
                where = f"rows {start} to {min(start + step, len(x)) - 1}"
                raise WrongResult(f"{name}: {job.case.title}: off by {error:.3g} ulp in {where}, allowed are {allowed}")


def _expected(one, job, inputs):
    """The results for some rows, as a tuple."""
    function = one.oracle or job.case.function
    if function == "copy":
        return tuple(inputs)
    weights = job.weights[: WEIGHTS[function]] if WEIGHTS[job.case.function] else ()
    groups = [job.case.groups] if job.case.groups else []
    results = getattr(oracles, function)(*inputs, *groups, *weights, eps=EPS[function])
    return results if isinstance(results, tuple) else (results,)


def _ulps(y, expected, job):
    """The largest error, in units in the last place of the largest number of a row, or group."""
    if job.case.groups:
        y, expected = (a.reshape(len(a), job.case.groups, -1) for a in (y, expected))
    largest = np.max(np.abs(expected), axis=-1, keepdims=True)
    wide = np.float64 if expected.dtype == y.dtype or y.itemsize < 8 else expected.dtype
    unit = np.spacing(largest.astype(y.dtype)).astype(wide)
    return float(np.max(np.abs(y.astype(wide) - expected.astype(wide)) / unit))
