"""Every formula, once. No loop, no branch, no literal, no backend: operators and the words of `_vocabulary`.

Schedules (which piece of a row when, on which thread) belong to the backends.
"""

from .._vocabulary import functions_of
from . import attention, norms
from .attention import *  # noqa: F403
from .norms import *  # noqa: F403

FORMULAS = functions_of(vars(norms)) + functions_of(vars(attention))
