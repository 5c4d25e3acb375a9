"""Softmax and its logarithm."""

import math

from numpy.lib.array_utils import normalize_axis_index

from ..softmax import log_softmax, softmax
from ._operator import Operator


class Softmax(Operator):
    """`fastnorm.softmax` along an axis; before opset 13, of all axes from there on taken together."""

    _function = staticmethod(softmax)

    def _run(self, x, axis=None):
        if self.opset >= 13:
            return (self._function(x, axis=axis),)
        axis = normalize_axis_index(axis, x.ndim)
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (self._function(rows).reshape(x.shape),)


class LogSoftmax(Softmax):
    """`fastnorm.log_softmax`, likewise."""

    _function = staticmethod(log_softmax)
