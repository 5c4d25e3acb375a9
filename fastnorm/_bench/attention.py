"""Softmax, RoPE and attention in the bench: their arrays, who takes part, and what is right."""

import functools
from typing import Any, NamedTuple

import numpy as np

import fastnorm

from . import attention_oracles as oracles
from .peers import CONTENDERS as FOR_NORMS
from .peers import COPIES, ROUGH, Absent, Contender, tensor, tensor_as_array, waited_for

SIDE = 1024  # of the matrices whose products are counted against attention's
ALLOWED = {"softmax": 8, "rope": 4, "attention": 64}  # float32 roundings of the largest number of a row
ROUGH_HALF = 0.03 * 2**23  # what other libraries may be off in 16 bits, where some keep 16 bits in between
CHECKED = 16  # rows


class Job(NamedTuple):
    """What all contenders of a case work with."""

    case: Any
    inputs: tuple[np.ndarray, ...]  # x; x and tables; or q, k and v
    options: dict[str, Any]
    out: np.ndarray
    threads: int

    @property
    def outs(self):
        return (self.out,)

    @property
    def bytes(self):
        """Read and written by a call; the tables of RoPE, which all heads share, do not count."""
        inputs = self.inputs if self.case.function == "attention" else self.inputs[:1]
        return sum(array.nbytes for array in (*inputs, self.out))


def prepare(case, threads, normal):
    """The arrays of a case; `normal` gives normally distributed ones of a shape."""
    x = normal(case.shape)
    if case.function == "softmax":
        return Job(case, (x,), {"axis": case.axis}, np.empty_like(x), threads)
    if case.function == "rope":
        tables = fastnorm.rope_tables(np.arange(case.shape[-2]), case.shape[-1])
        return Job(case, (x, *tables), {}, np.empty_like(x), threads)
    options = {"is_causal": True} if case.causal else {}
    options |= {"window": (case.window - 1, 0)} if case.window else {}
    shape = case.shape if not case.keys else (case.shape[0], *case.keys, case.shape[-1])
    return Job(case, (x, normal(shape), normal(shape)), options, np.empty_like(x), threads)


def products(job):
    """Multiplications of an attention: half of them where it is causal."""
    q, k, _ = job.inputs
    return q.size * k.shape[-2] * 2 // (2 if job.case.causal else 1)


# ------------------------------------------------------------------------------------------------- who takes part
def _fastnorm(job):
    function = functools.partial(getattr(fastnorm, job.case.function), *job.inputs, **job.options, out=job.out)
    return Contender(function, ulps=ALLOWED[job.case.function])


def _one_thread(job):
    return _fastnorm(job)._replace(threads=1)


def _gpu(job):
    """The same on CuPy's current device."""
    import cupy

    device = job._replace(inputs=tuple(map(cupy.asarray, job.inputs)), out=cupy.asarray(job.out))
    return waited_for(_fastnorm(device)._replace(read=lambda _: cupy.asnumpy(device.out)))


def _without_window(job):
    options = {name: value for name, value in job.options.items() if name != "window"}
    return _fastnorm(job._replace(options=options))._replace(oracle="causal")


def _in_float32(job):
    wide = job._replace(inputs=tuple(a.astype(np.float32) for a in job.inputs), out=job.out.astype(np.float32))
    return _fastnorm(wide)._replace(read=lambda y: y.astype(job.out.dtype))


def _matmul(job):
    """As many products, in matrix products of NumPy."""
    a, b = np.random.default_rng(0).standard_normal((2, SIDE, SIDE), np.float32)
    times = max(1, round(products(job) / SIDE**3))

    def run():
        for _ in range(times):
            a @ b

    return Contender(run, oracle="none")


def _read(job):
    """Keys and values read once, by sums of NumPy on all threads."""
    from fastnorm._cpu.threads import share

    words = [a.reshape(-1).view(np.uint64) for a in job.inputs[1:]]

    def run():
        for array in words:
            share(lambda start, stop, a=array: np.bitwise_or.reduce(a[start:stop]), array.size, 1 << 17)

    return Contender(run, oracle="none")


def _numpy(job):
    """As people write it."""
    if job.case.function == "rope":
        return Contender(functools.partial(_numpy_rope, *job.inputs))
    if job.case.function == "softmax":
        return Contender(functools.partial(_numpy_softmax, *job.inputs, **job.options))
    if job.out.itemsize == 2 or job.case.window or job.case.shape[-2] > 4096:
        raise Absent("would take minutes, or memory for all scores")
    return Contender(functools.partial(_numpy_attention, *job.inputs, job.case.causal))


def _numpy_softmax(x, axis):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def _numpy_rope(x, cosine, sine):
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def _numpy_attention(q, k, v, causal):
    group, out = q.shape[1] // k.shape[1], np.empty_like(q)
    for b, h in np.ndindex(*q.shape[:2]):
        scores = q[b, h] @ k[b, h // group].T * np.float32(q.shape[-1] ** -0.5)
        if causal:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        out[b, h] = _numpy_softmax(scores, -1) @ v[b, h // group]
    return out


def _torch(job):
    import torch
    import torch.nn.functional as F  # noqa: N812

    torch.set_num_threads(job.threads)
    if job.case.function == "softmax":
        return Contender(functools.partial(torch.softmax, tensor(job.inputs[0]), job.case.axis), tensor_as_array)
    if job.case.function == "rope":
        raise Absent("has no such function")
    if job.case.window:
        raise Absent("would need a mask of all scores")
    q, k, v = map(tensor, job.inputs)
    options = {"is_causal": job.case.causal, "enable_gqa": q.shape[1] != k.shape[1]}
    return Contender(functools.partial(F.scaled_dot_product_attention, q, k, v, **options), tensor_as_array)


def _scipy(job):
    from scipy.special import softmax

    return Contender(functools.partial(softmax, *job.inputs, **job.options))


def _onnxruntime(job):
    if job.case.function != "softmax":
        raise Absent("has no such operator in float32 on the CPU")
    return FOR_NORMS["onnxruntime"](_AsNorm(job))


class _AsNorm:
    """A job of softmax as `peers` takes those of norms."""

    def __init__(self, job):
        self.case, self.x, self.weights, self.threads = job.case, job.inputs[0], (), job.threads
        self.inputs, self.outs = job.inputs, job.outs


def _no_norm(job):
    raise Absent("is for norms")


CONTENDERS = {"fastnorm": _fastnorm, "1 thread": _one_thread, "causal": _without_window, "in float32": _in_float32}
CONTENDERS |= {"matmul": _matmul, "read": _read, "numpy": _numpy, "torch": _torch, "scipy": _scipy, "onnxruntime": _onnxruntime}
CONTENDERS |= {"torch layer_norm": _no_norm, "scikit-learn": _no_norm, "gpu": _gpu}


def _copying(make):
    return lambda job: make(job._replace(inputs=job.inputs[:1]))


CONTENDERS |= {name: _copying(FOR_NORMS[name]) for name in COPIES}


# ---------------------------------------------------------------------------------------------------- what is right
def error_of(result, one, job):
    """The largest error over some rows, in float32 roundings of the largest number of a row; and what is allowed."""
    if one.oracle in ("copy", "none"):
        return 0.0, 0.0
    allowed = one.ulps
    if job.out.itemsize == 2:
        allowed += ROUGH_HALF if one.ulps == ROUGH else 2**16
    rows, wanted = _CHECKS[job.case.function](result, one, job)
    largest = np.abs(wanted).max(-1, keepdims=True)
    return float((np.abs(rows.astype(np.float64) - wanted) / largest).max() * 2**23), allowed


def _softmax_rows(result, one, job):
    x, y = (np.moveaxis(a, job.case.axis, -1).reshape(-1, a.shape[job.case.axis]) for a in (job.inputs[0], result))
    step = max(1, len(x) // CHECKED)
    return y[::step], oracles.softmax(x[::step])


def _rope_rows(result, one, job):
    x, *tables = job.inputs
    step = max(1, x.shape[-2] // CHECKED)
    return result[..., -1, ::step, :], oracles.rope(*(a[::step] for a in (x[0, -1], *tables)))


def _attention_rows(result, one, job):
    """Some queries of the last head, each with its position."""
    q, k, v = (a[-1, -1:] for a in job.inputs)
    options = dict(job.options)
    if one.oracle == "causal":
        options.pop("window")
    rows = range(0, q.shape[-2], max(1, q.shape[-2] // CHECKED))
    late = k.shape[-2] - q.shape[-2]
    wanted = [oracles.attention(q[:, i : i + 1], k, v, q_start=late + i, **options)[0][0, 0] for i in rows]
    return result[-1, -1, list(rows)], np.stack(wanted)


_CHECKS = {"softmax": _softmax_rows, "rope": _rope_rows, "attention": _attention_rows}
FUNCTIONS = tuple(_CHECKS)
