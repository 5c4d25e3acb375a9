"""Joining attention over parts of the keys: the formulas of `_math` on whole arrays, since a merge reads little."""

import functools

import numpy as np

from .. import _math
from .._vocabulary import EXPONENTIALS


def merge_attention(outs, lses, out, lse):
    """The parts joined, in the dtype of `lses`; all at once, so that their order is that of one sum."""
    numbers = EXPONENTIALS[lse.dtype.name]
    with np.errstate(all="ignore"):
        largest = functools.reduce(np.maximum, lses)
        shares = [_math.share_of(one, largest, numbers) for one in lses]
        total = functools.reduce(np.add, shares)
        shares = [np.where(share == 0, 0, share / total) for share in shares]  # a mean's terms: none beyond the largest
        terms = [s[..., None] * np.where((s == 0)[..., None], 0, one) for s, one in zip(shares, outs, strict=True)]
        out[...] = functools.reduce(np.add, terms)
        lse[...] = np.where(total == 0, -np.inf, _math.log_sum(_math.Weights(largest, total), numbers))
