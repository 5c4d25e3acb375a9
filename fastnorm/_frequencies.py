"""How fast each pair of features turns, and what longer contexts make of that. Plain NumPy, in float64."""

import math
import numbers

import numpy as np

from ._checks import number_of


def frequencies(dim, base, scaling):
    """Angles a position, for each of dim / 2 pairs, and the factor of the tables."""
    base = number_of("rope_tables", "base", base)
    if not 0 < base < math.inf:
        raise ValueError(f"rope_tables: base must be a positive number, got {base!r}")
    if scaling is None:
        return _plain(dim, base), 1.0
    kind, options = _options(scaling)
    return _KINDS[kind][0](dim, base, **options)


def _plain(dim, base):
    """``base ** (-2 i / dim)``."""
    return base ** (-np.arange(0, dim, 2, dtype=np.float64) / max(dim, 1))


def _linear(dim, base, *, factor):
    """Positions divided by a factor: position interpolation."""
    return _plain(dim, base) / factor, 1.0


def _ntk(dim, base, *, factor):
    """A larger base, with which the slowest pair is divided by the factor and the fastest stays."""
    return _plain(dim, base * factor ** (dim / (dim - 2)) if dim > 2 else base), 1.0


def _yarn(dim, base, *, factor, original_max_position_embeddings, beta_fast=32.0, beta_slow=1.0, attention_factor=None):
    """Pairs that turn often in the original context stay, those that turn less than once are divided, a ramp lies between."""
    plain = _plain(dim, base)
    if base <= 1:
        raise ValueError(f"rope_tables: base must be above 1 for a scaling of type 'yarn', got {base!r}")

    def pair_of(turns):
        return dim * math.log(original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_of(beta_fast)), 0), min(math.ceil(pair_of(beta_slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return plain / factor * ramp + plain * (1 - ramp), float(attention_factor)


def _llama3(dim, base, *, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """Short waves stay, long ones are divided, those between are mixed by how often they fit into the original context."""
    plain = _plain(dim, base)
    turns = original_max_position_embeddings * plain / (2 * math.pi)
    mix = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return (1 - mix) * plain / factor + mix * plain, 1.0


# Kind -> (its function, options it needs, options it may have).
_ORIGINAL = "original_max_position_embeddings"
_KINDS = {
    "linear": (_linear, ("factor",), ()),
    "ntk": (_ntk, ("factor",), ()),
    "yarn": (_yarn, ("factor", _ORIGINAL), ("beta_fast", "beta_slow", "attention_factor")),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), ()),
}
_NAMES = ("rope_type", "type")  # both are found in the configuration files of models


def _options(scaling):
    """The kind of a scaling and its options, all positive numbers."""
    try:
        options = dict(scaling)
    except (TypeError, ValueError):
        raise TypeError(f"rope_tables: scaling must be a dict or None, got {scaling!r}") from None
    kinds = [options.pop(name) for name in _NAMES if name in options]
    kind = kinds[0] if kinds and kinds.count(kinds[0]) == len(kinds) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"rope_tables: scaling must have one 'rope_type' of {', '.join(map(repr, _KINDS))}, got {scaling!r}")
    _, needed, possible = _KINDS[kind]
    missing = [name for name in needed if name not in options]
    unknown = [name for name in options if name not in needed + possible]
    if missing or unknown:
        wrong = f"without {', '.join(missing)}" if missing else f"with {', '.join(map(str, unknown))}"
        raise ValueError(f"rope_tables: scaling of type {kind!r} must have {', '.join(needed)}, got one {wrong}")
    for name, value in options.items():
        if value is None and name in possible:
            continue
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"rope_tables: scaling must have positive numbers, got {name}={value!r}")
    if kind == "llama3" and not options["low_freq_factor"] < options["high_freq_factor"]:
        raise ValueError(f"rope_tables: scaling must have low_freq_factor below high_freq_factor, got {scaling!r}")
    return kind, {name: value for name, value in options.items() if value is not None}
