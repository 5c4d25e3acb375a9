"""What was asked of attention besides its arrays, and how backends go through a batch."""

from typing import Any, NamedTuple


class Options(NamedTuple):
    """What was asked for besides q, k and v. Arrays have the batch axes of the call first."""

    mask: Any  # (..., heads, queries, keys) of truth values or of floats; None: there is none
    starts: Any  # (...,): the position of the first query
    lengths: Any  # (...,): keys that are there
    left: int | None  # keys seen before the position; None: all
    right: int | None  # and after it
    scale: float
    softcap: float | None
    slopes: Any  # (heads,) in the dtype of the computation, or None
    sinks: Any
    qk_norm: str | None
    eps: float

    def at(self, i):
        """Those of one element of the first batch axis."""
        mask = self.mask if self.mask is None else self.mask[i]
        return self._replace(mask=mask, starts=self.starts[i], lengths=self.lengths[i])


def over_batch(attend, q, k, v, options, out, lse):
    """Call `attend` with arrays of four axes, (batch, heads, length, size), for as many batch axes as there are."""
    if out.size + lse.size == 0:
        return
    if q.ndim > 4:
        for i in range(len(q)):
            over_batch(attend, q[i], k[i], v[i], options.at(i), out[i], lse[i])
    elif q.ndim == 4:
        attend(q, k, v, options, out, lse)
    else:
        mask = None if options.mask is None else options.mask[None]
        options = options._replace(mask=mask, starts=options.starts[None], lengths=options.lengths[None])
        over_batch(attend, q[None], k[None], v[None], options, out[None], lse[None])
