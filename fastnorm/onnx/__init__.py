"""The functions of fastnorm as operators of ONNX, for the evaluator that comes with the package onnx.

`OPERATORS` is what ``onnx.reference.ReferenceEvaluator`` takes as `new_ops`. A model runs with them unchanged, and every
operator that is not among them stays onnx's own. Needs the package onnx, 1.19 or newer; ``import fastnorm`` does not.

Examples
--------
>>> import numpy as np
>>> from onnx import parser
>>> from onnx.reference import ReferenceEvaluator
>>> import fastnorm.onnx
>>> model = parser.parse_model('''
...     <ir_version: 10, opset_import: ["" : 23]>
...     example (float[n, d] x, float[d] scale) => (float[n, d] y) { y = RMSNormalization (x, scale) }
... ''')
>>> evaluator = ReferenceEvaluator(model, new_ops=fastnorm.onnx.OPERATORS)
>>> evaluator.run(None, {"x": np.array([[3e30, -3e30]], np.float32), "scale": np.array([1, 2], np.float32)})
[array([[ 1., -2.]], dtype=float32)]
"""

try:
    from . import _operator as _operator
except ImportError as error:
    raise ImportError("fastnorm.onnx needs the package onnx, 1.19 or newer: pip install onnx") from error

from ._attention import Attention
from ._norms import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from ._rotary import RotaryEmbedding
from ._softmax import LogSoftmax, Softmax

__all__ = ["OPERATORS"]

#: Classes of operators, for ``ReferenceEvaluator(model, new_ops=fastnorm.onnx.OPERATORS)``. Each has the name of its operator
#: and its domain, `op_domain`; a part of the list will do as well.
OPERATORS = [
    Attention,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LogSoftmax,
    LpNormalization,
    RMSNormalization,
    RotaryEmbedding,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
    Softmax,
]
