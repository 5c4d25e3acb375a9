"""Who takes part: this library, the copies, and other libraries, each in the form that serves it best.

To add a peer: a function from a `Job` to a `Contender`, and a line in `CONTENDERS`. It raises ImportError if the library
is missing, `Absent` if it cannot do the work.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fastnorm

EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5, "unit_norm": 0.0}
ROUGH = 1000  # units in the last place that other libraries may be off: they do the work, if less exactly
TORCH_SMALL = 1 << 16  # elements
EXACT = 4  # what this library promises


class Job(NamedTuple):
    """What all contenders of a case work with: the same arrays, in the same memory."""

    case: Any
    x: np.ndarray
    weights: tuple[np.ndarray, ...]  # weight, then bias: those that the function has
    out: np.ndarray
    threads: int


class Contender(NamedTuple):
    """Somebody who does a case's work."""

    call: Callable[[], Any]
    read: Callable[[Any], Any] = np.asarray  # from what `call` returns to the result
    oracle: str = ""  # the function of `oracles` that it computes; "": the case's own
    ulps: float = ROUGH
    threads: int | None = None  # of fastnorm, if other than the job's


class Absent(Exception):  # noqa: N818 - no error: a library that cannot do the work of a case
    """Why a contender does not take part."""


def contender(name, job):
    """The contender of this name, ready to be called; `Absent` if there is none."""
    try:
        return CONTENDERS[name](job)
    except ImportError as error:
        raise Absent(f"{(error.name or str(error)).partition('.')[0]} is not installed") from None


def versions():
    """Versions of the peers' libraries; None where one is not installed."""
    return {name: _version(name) for name in ("numpy", "onnxruntime", "torch", "scikit-learn")}


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------ this library
def _fastnorm(job):
    case = job.case
    options = {} if case.axis == -1 else {"axis": case.axis}
    if case.out:
        options["out"] = job.out
    return Contender(functools.partial(getattr(fastnorm, case.function), job.x, *job.weights, **options), ulps=EXACT)


def _one_thread(job):
    return _fastnorm(job)._replace(threads=1)


def _raw_ufunc(job):
    """What is left of a call without arguments to check and a result to allocate."""
    from fastnorm._cpu.norms import small_plan

    plan = small_plan(job.case.function, job.x.dtype, EPS[job.case.function])
    run = functools.partial(plan.ufunc, job.x, *job.weights, plan.eps, job.out)
    return Contender(run, lambda _: job.out, ulps=EXACT)


def _gpu(job):
    """The same on CuPy's current device, waited for."""
    import cupy

    x, out, weights = cupy.asarray(job.x), cupy.empty_like(job.out), map(cupy.asarray, job.weights)
    norm = functools.partial(getattr(fastnorm, job.case.function), x, *weights, axis=job.case.axis, out=out)
    wait = cupy.cuda.get_current_stream().synchronize
    return Contender(lambda: (norm(), wait()), lambda _: cupy.asnumpy(out))


def has_gpu():
    """True if CuPy is installed and finds a device."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:  # CuPy without a driver has errors of its own, which cannot be named without importing it
        return False


# ---------------------------------------------------------------------------------------------------- the copies
def _copy(streaming, threads=None):
    def make(job):
        from fastnorm._cpu.copy import copy

        flag = np.array([streaming])
        return Contender(functools.partial(copy, job.x, flag, job.out), lambda _: job.out, "copy", 0, threads)

    return make


def _numpy_copy(job):
    return Contender(functools.partial(np.copyto, job.out, job.x), lambda _: job.out, "copy", 0)


# ----------------------------------------------------------------------------------------------- other libraries
def _numpy(job):
    """As people write it: the formula, in the dtype of x."""
    shape = [-1 if a == job.case.axis % job.x.ndim else 1 for a in range(job.x.ndim)]
    weights = [w.reshape(shape) for w in job.weights]
    formula = {"rms_norm": _numpy_rms_norm, "layer_norm": _numpy_layer_norm, "unit_norm": _numpy_unit_norm}[job.case.function]
    return Contender(functools.partial(formula, job.x, *weights, axis=job.case.axis))


def _numpy_rms_norm(x, weight, axis):
    return x / np.sqrt(np.mean(x * x, axis=axis, keepdims=True) + np.float32(EPS["rms_norm"])) * weight


def _numpy_layer_norm(x, weight, bias, axis):
    centred = x - np.mean(x, axis=axis, keepdims=True)
    variance = np.mean(centred * centred, axis=axis, keepdims=True)
    return centred / np.sqrt(variance + np.float32(EPS["layer_norm"])) * weight + bias


def _numpy_unit_norm(x, axis):
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def _last_axis_only(job):
    if job.case.axis not in (-1, job.x.ndim - 1):
        raise Absent("takes the last axis only")


def _onnxruntime(job):
    """One operator, with the caller's arrays bound as its input and output: no copy, no allocation."""
    import onnxruntime

    _last_axis_only(job)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_model(job), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in zip(["x", "weight", "bias"], [job.x, *job.weights], strict=False):
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, job.out.dtype, job.out.shape, job.out.ctypes.data)
    return Contender(functools.partial(session.run_with_iobinding, binding), lambda _: job.out)


def _model(job):
    from onnx import helper

    # onnxruntime's own name for it, which older releases know, too; the standard's RMSNormalization takes the same time
    operator, attributes = {
        "rms_norm": ("SimplifiedLayerNormalization", {"axis": -1, "epsilon": EPS["rms_norm"]}),
        "layer_norm": ("LayerNormalization", {"axis": -1, "epsilon": EPS["layer_norm"]}),
        "unit_norm": ("LpNormalization", {"axis": -1, "p": 2}),
    }[job.case.function]
    names = ["x", "weight", "bias"][: 1 + len(job.weights)]
    kind = helper.np_dtype_to_tensor_dtype(job.x.dtype)
    shapes = [job.x.shape, *[w.shape for w in job.weights]]
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, shapes, strict=True)]
    output = helper.make_tensor_value_info("y", kind, job.x.shape)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "norm", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _torch(job):
    """The function of the same name in torch (`layer_norm` has a line of its own). It has no `out`."""
    import torch.nn.functional as F  # noqa: N812

    _last_axis_only(job)
    x, *weights = _tensors(job)
    if job.case.function == "rms_norm" and hasattr(F, "rms_norm"):
        return Contender(functools.partial(F.rms_norm, x, x.shape[-1:], *weights, EPS["rms_norm"]))
    if job.case.function == "unit_norm":
        return Contender(functools.partial(F.normalize, x, dim=-1))
    raise Absent("has no such function")


def _torch_layer_norm(job):
    """The one norm that torch has tuned, as a mark for all of them: about the same work."""
    import torch.nn.functional as F  # noqa: N812

    _last_axis_only(job)
    x, *weights = _tensors(job)
    return Contender(functools.partial(F.layer_norm, x, x.shape[-1:], *weights, eps=EPS["layer_norm"]), oracle="layer_norm")


def _tensors(job):
    import torch

    # Small work goes to one thread, which serves torch better: its `layer_norm` of 8 x 40 takes 6 us on one, and between 6 us
    # and 12 ms on two, whenever a neighbour has the core that its barrier waits for.
    torch.set_num_threads(job.threads if job.x.size > TORCH_SMALL else 1)
    return map(torch.from_numpy, [job.x, *job.weights])


def _scikit_learn(job):
    """`normalize`: rows of length 1. Another norm without a weight, and about the same work."""
    from sklearn.preprocessing import normalize

    _last_axis_only(job)
    if job.x.ndim != 2:
        raise Absent("takes matrices only")
    return Contender(functools.partial(normalize, job.x), oracle="unit_norm")


COPIES = {
    "copy, streaming, all threads": _copy(True),
    "copy, streaming, 1 thread": _copy(True, 1),
    "copy, plain, all threads": _copy(False),
    "copy, plain, 1 thread": _copy(False, 1),
    "copy, numpy": _numpy_copy,
}
PEERS = {
    "numpy": _numpy,
    "onnxruntime": _onnxruntime,
    "torch": _torch,
    "torch layer_norm": _torch_layer_norm,
    "scikit-learn": _scikit_learn,
}
CONTENDERS = {"fastnorm": _fastnorm, "1 thread": _one_thread, "raw ufunc": _raw_ufunc, "gpu": _gpu, **COPIES, **PEERS}
