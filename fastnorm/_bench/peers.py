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

EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5, "unit_norm": 0.0, "group_norm": 1e-5}
EPS |= {"add_rms_norm": 1e-6, "add_layer_norm": 1e-5}
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
    residual: np.ndarray | None = None  # of the norm of a sum
    kept: np.ndarray | None = None  # where the sum goes

    @property
    def inputs(self):
        """x, or x and residual."""
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def outs(self):
        """Where the results go: that of the norm, and the sum if there is one."""
        return (self.out,) if self.kept is None else (self.out, self.kept)

    @property
    def bytes(self):
        """Read and written by a call: each input once, each output once."""
        return sum(array.nbytes for array in self.inputs + self.outs)


class Contender(NamedTuple):
    """Somebody who does a case's work."""

    call: Callable[[], Any]
    read: Callable[[Any], Any] = lambda result: result  # from what `call` returns to the result, or a tuple of results
    oracle: str = ""  # the function of `oracles` that it computes; "": the case's own
    ulps: float = ROUGH
    threads: int | None = None  # of fastnorm, if other than the job's


class Absent(Exception):  # noqa: N818 - no error: a library that cannot do the work of a case
    """Why a contender does not take part."""


def versions():
    """Versions of the peers' libraries; None where one is not installed."""
    return {name: _version(name) for name in ("numpy", "onnxruntime", "torch", "scikit-learn", "scipy")}


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
        options |= dict(zip(("out", "residual_out"), job.outs, strict=False))
    groups = [case.groups] if case.groups else []
    return Contender(
        functools.partial(getattr(fastnorm, case.function), *job.inputs, *groups, *job.weights, **options), ulps=EXACT
    )


def _one_thread(job):
    return _fastnorm(job)._replace(threads=1)


def _raw_ufunc(job):
    """What is left of a call without arguments to check and a result to allocate."""
    from fastnorm._cpu.norms import small_plan

    plan = small_plan(job.case.function, job.x.dtype, EPS[job.case.function])
    run = functools.partial(plan.ufunc, job.x, *job.weights, plan.eps, job.out)
    return Contender(run, lambda _: job.out, ulps=EXACT)


def _gpu(job):
    """The same on CuPy's current device."""
    import cupy

    device = job._replace(**{k: cupy.asarray(v) for k, v in job._asdict().items() if isinstance(v, np.ndarray)})
    one = _fastnorm(device._replace(weights=tuple(map(cupy.asarray, job.weights))))
    return waited_for(one._replace(read=lambda _: tuple(map(cupy.asnumpy, device.outs))))


def waited_for(one):
    """A contender on the GPU, whose calls end when the device is done."""
    import cupy

    wait = cupy.cuda.get_current_stream().synchronize
    return one._replace(call=lambda: (one.call(), wait()))


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
        pairs = [(_words(x), _words(out)) for x, out in zip(job.inputs, job.outs, strict=True)]

        def run():
            for x, out in pairs:
                copy(x, flag, out)

        return Contender(run, lambda _: job.outs, "copy", 0, threads)

    return make


def _words(array):
    """The same bytes as numbers that a copy has kernels for."""
    if array.itemsize > 2:
        return array
    if array.nbytes % 4:
        raise Absent("copies an even number of 16-bit numbers")
    return array.reshape(-1).view(np.float32)


def _numpy_copy(job):
    def run():
        for x, out in zip(job.inputs, job.outs, strict=True):
            np.copyto(out, x)

    return Contender(run, lambda _: job.outs, "copy", 0)


# ----------------------------------------------------------------------------------------------- other libraries
def _numpy(job):
    """As people write it: the formula, in the dtype of x; 16 bits by way of float32."""
    function, axis, n_groups, dtype = job.case.function, job.case.axis, job.case.groups, job.x.dtype
    shape = [-1 if a == axis % job.x.ndim else 1 for a in range(job.x.ndim)]
    weights = [w.reshape(shape) for w in job.weights]
    formula = _FORMULAS.get(function.removeprefix("add_"))
    if n_groups:
        formula = functools.partial(_numpy_group_norm, n_groups=n_groups)
    elif formula is None:
        raise Absent("has no formula for it here")

    def run():
        h = job.x + job.residual if len(job.inputs) == 2 else job.x
        if dtype.itemsize > 2:
            y = formula(h, *weights, axis=axis)
        else:
            y = formula(h.astype(np.float32), *[w.astype(np.float32) for w in weights], axis=axis).astype(dtype)
        return (y, h) if len(job.inputs) == 2 else y

    return Contender(run)


def _numpy_rms_norm(x, weight, axis):
    return x / np.sqrt(np.mean(x * x, axis=axis, keepdims=True) + x.dtype.type(EPS["rms_norm"])) * weight


def _numpy_layer_norm(x, weight, bias, axis):
    centred = x - np.mean(x, axis=axis, keepdims=True)
    variance = np.mean(centred * centred, axis=axis, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(EPS["layer_norm"])) * weight + bias


def _numpy_unit_norm(x, axis):
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def _numpy_group_norm(x, weight, bias, axis, n_groups):
    """Channels on axis 1."""
    groups = x.reshape(len(x), n_groups, -1)
    centred = groups - np.mean(groups, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return (centred / np.sqrt(variance + x.dtype.type(EPS["group_norm"]))).reshape(x.shape) * weight + bias


_FORMULAS = {"rms_norm": _numpy_rms_norm, "layer_norm": _numpy_layer_norm, "unit_norm": _numpy_unit_norm}


def _last_axis_only(job):
    if job.case.axis not in (-1, job.x.ndim - 1) and not job.case.groups:
        raise Absent("takes the last axis only")


def _onnxruntime(job):
    """One operator, with the caller's arrays bound as its input and output: no copy, no allocation."""
    import onnxruntime

    _last_axis_only(job)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(_model(job), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes for an operator without this dtype, which cannot be named without importing it
        raise Absent(f"has no such operator of {job.x.dtype} ({type(error).__name__})") from None
    binding = session.io_binding()
    inputs, outputs = [*job.inputs, *job.weights], job.outs
    for name, array in zip(_names(job), inputs, strict=True):
        binding.bind_input(name, "cpu", 0, _element_type(array), array.shape, array.ctypes.data)
    for name, array in zip(("y", "h"), outputs, strict=False):
        binding.bind_output(name, "cpu", 0, _element_type(array), array.shape, array.ctypes.data)
    return Contender(functools.partial(session.run_with_iobinding, binding), lambda _: outputs)


def _names(job):
    """What the inputs of a model are called."""
    return [*("x", "residual")[: len(job.inputs)], *("weight", "bias")[: len(job.weights)]]


def _element_type(array):
    """A dtype as onnxruntime takes it: bfloat16 by number."""
    from onnx import helper

    return array.dtype if array.dtype.name != "bfloat16" else helper.np_dtype_to_tensor_dtype(array.dtype)


def _model(job):
    from onnx import helper

    epsilon = {"epsilon": EPS.get(job.case.function)}
    stash = 11 if job.x.dtype == np.float64 else 1  # what it computes in: float64, or float32
    # "Simplified" and "Skip" are onnxruntime's own; the standard's RMSNormalization is younger and takes the same time.
    operator, domain, attributes = {
        "rms_norm": ("SimplifiedLayerNormalization", "", {"axis": -1, **epsilon}),
        "layer_norm": ("LayerNormalization", "", {"axis": -1, **epsilon}),
        "unit_norm": ("LpNormalization", "", {"axis": -1, "p": 2}),
        "group_norm": ("GroupNormalization", "", {"num_groups": job.case.groups, "stash_type": stash, **epsilon}),
        "add_rms_norm": ("SkipSimplifiedLayerNormalization", "com.microsoft", epsilon),
        "softmax": ("Softmax", "", {"axis": -1}),
        "add_layer_norm": ("SkipLayerNormalization", "com.microsoft", epsilon),
    }[job.case.function]
    names, outputs = _names(job), ["y", "", "", "h"] if domain else ["y"]
    kind = helper.np_dtype_to_tensor_dtype(job.x.dtype)
    shapes = [array.shape for array in (*job.inputs, *job.weights)]
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, shapes, strict=True)]
    results = [helper.make_tensor_value_info(n, kind, job.x.shape) for n in outputs if n]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = helper.make_graph([node], "norm", inputs, results)
    opsets = [helper.make_opsetid("", 21 if job.case.groups else 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _torch(job):
    """The function of the same name in torch (`layer_norm` has a line of its own). It has no `out`."""
    import torch.nn.functional as F  # noqa: N812

    _last_axis_only(job)
    x, *weights = _tensors(job)
    if job.case.function == "rms_norm" and hasattr(F, "rms_norm"):
        return Contender(functools.partial(F.rms_norm, x, x.shape[-1:], *weights, EPS["rms_norm"]), tensor_as_array)
    if job.case.function == "unit_norm":
        return Contender(functools.partial(F.normalize, x, dim=-1), tensor_as_array)
    if job.case.function == "group_norm":
        return Contender(functools.partial(F.group_norm, x, job.case.groups, *weights, eps=EPS["group_norm"]), tensor_as_array)
    raise Absent("has no such function")


def _torch_layer_norm(job):
    """The one norm that torch has tuned, as a mark for all of them: about the same work."""
    import torch.nn.functional as F  # noqa: N812

    _last_axis_only(job)
    if job.case.groups or len(job.inputs) > 1:
        raise Absent("is another kind of work")
    x, *weights = _tensors(job)
    run = functools.partial(F.layer_norm, x, x.shape[-1:], *weights, eps=EPS["layer_norm"])
    return Contender(run, tensor_as_array, oracle="layer_norm")


def _tensors(job):
    import torch

    # Small work goes to one thread, which serves torch better: its `layer_norm` of 8 x 40 takes 6 us on one, and between 6 us
    # and 12 ms on two, whenever a neighbour has the core that its barrier waits for.
    torch.set_num_threads(job.threads if job.x.size > TORCH_SMALL else 1)
    return [tensor(array) for array in (job.x, *job.weights)]


def tensor(array):
    """The same memory for torch, which knows only a bfloat16 of its own."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensor_as_array(tensor):
    """And back."""
    import torch

    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _scikit_learn(job):
    """`normalize`: rows of length 1. Another norm without a weight, and about the same work."""
    from sklearn.preprocessing import normalize

    _last_axis_only(job)
    if job.x.ndim != 2:
        raise Absent("takes matrices only")
    if job.x.itemsize == 2 or len(job.inputs) > 1:
        raise Absent("takes one matrix, of float32 or float64")
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
