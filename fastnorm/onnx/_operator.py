"""What all operators share: the version of the operator that a model means, and outputs that nobody asked for."""

import contextlib

import numpy as np
import onnx.defs
from onnx.reference.op_run import OpRun

from .._two_passes import for_rounding

NOT_WANTED = np.empty(0)  # in the place of an output that no one reads


class Operator(OpRun):
    """An operator of ONNX by functions of fastnorm. `opset` is the version of its domain that the model imports."""

    def __init__(self, onnx_node, run_params, schema=None):
        self.opset = run_params["opsets"].get(self.op_domain)
        if schema is None and not self.op_domain:  # onnx would take defaults from the newest version
            with contextlib.suppress(
                onnx.defs.SchemaError
            ):  # older than the operator, as onnxruntime's optimiser leaves models
                schema = onnx.defs.get_schema(type(self).__name__, self.opset, self.op_domain)
        super().__init__(onnx_node, run_params, schema)

    def wants(self, index):
        """True if the node names this output."""
        return index < len(self.output) and bool(self.output[index])

    def run(self, *args, **kwargs):
        """None for outputs without a name: the evaluator keeps them, and gives them to inputs without one."""
        outputs = super().run(*args, **kwargs)
        return tuple(value if name else None for name, value in zip(self.output, outputs, strict=False))


def rounded(wide, dtype):
    """`wide` in `dtype`, rounded once."""
    if wide.dtype == dtype:
        return wide
    result = np.empty(wide.shape, dtype)
    with np.errstate(all="ignore"):
        result[...] = for_rounding(wide, result)
    return result
