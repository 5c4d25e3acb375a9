"""Which norm goes with which constant."""

import math

from ._checks import integer_of


def attention_scale(head_dim, *, qk_norm="rms"):
    """Return the factor for ``q @ k`` that gives scores of unit variance after a norm of q and k.

    Parameters
    ----------
    head_dim : int
        Number of features of a head, D. At least 1.
    qk_norm : {"rms", "unit"}, default: "rms"
        The norm that q and k come from, without weights: `rms_norm` makes them ``sqrt(D)`` long, `unit_norm` 1.

    Returns
    -------
    float
        ``1 / sqrt(D)`` after RMSNorm, ``sqrt(D)`` after UnitNorm: both give the same scores.

    Raises
    ------
    TypeError
        If `head_dim` is not an integer.
    ValueError
        If `head_dim` is below 1, or `qk_norm` none of those above.

    Examples
    --------
    >>> import fastnorm
    >>> fastnorm.attention_scale(64), fastnorm.attention_scale(64, qk_norm="unit")
    (0.125, 8.0)
    """
    root = math.sqrt(_count("attention_scale", "head_dim", head_dim))
    return _choose("attention_scale", "qk_norm", qk_norm, {"rms": 1 / root, "unit": root})


def init_std(fan_in, *, norm="rms"):
    """Return the standard deviation of weights that keeps a linear layer's outputs of order 1 after a norm.

    Parameters
    ----------
    fan_in : int
        Number of inputs of the layer, d. At least 1.
    norm : {"rms", "unit"}, default: "rms"
        The norm that the inputs come from, with a weight of mean square 1, or none.

    Returns
    -------
    float
        ``1 / sqrt(d)`` after RMSNorm, which for a square layer is Glorot's; 1 after UnitNorm.

    Raises
    ------
    TypeError
        If `fan_in` is not an integer.
    ValueError
        If `fan_in` is below 1, or `norm` none of those above.

    Examples
    --------
    >>> import fastnorm
    >>> fastnorm.init_std(1024), fastnorm.init_std(1024, norm="unit")
    (0.03125, 1.0)
    """
    root = math.sqrt(_count("init_std", "fan_in", fan_in))
    return _choose("init_std", "norm", norm, {"rms": 1 / root, "unit": 1.0})


def _count(function, name, value):
    value = integer_of(function, name, value)
    if value < 1:
        raise ValueError(f"{function}: {name} must be at least 1, got {value}")
    return value


def _choose(function, name, key, values):
    try:
        return values[key]
    except (KeyError, TypeError):
        raise ValueError(f"{function}: {name} must be one of {', '.join(map(repr, values))}, got {key!r}") from None
