"""The arguments of attention, prepared; as `_arguments` for the norms."""

import sys
from collections.abc import Callable

import numpy as np

from ._arguments import landing, unless_overwritten
from ._attention_options import Options
from ._checks import (
    as_array,
    check_flag,
    check_members,
    check_out,
    computed,
    eps_of,
    finite_of,
    foreign,
    index_of,
    library_for,
    native,
    number_of,
    result_dtype,
)
from ._dispatch import backend_with, describe, library_of
from ._vocabulary import STORED, name_of
from .consistency import attention_scale

_FAR = 1 << 60  # positions are kept within this, so that sums of them fit
_EPS = {"rms": 1e-6, "unit": 0.0, None: 0.0}  # the defaults of rms_norm and unit_norm
_ARRAYS = ("mask", "slopes", "sinks")  # of the options: those that `out` may overlap

_small: dict[np.dtype, Callable] = {}


def small_attention(q, k, v, is_causal, return_lse, others):
    """The result of a small call, as of one token with a cache; None for all but the commonest.

    That is: arrays of NumPy, of one dtype that came by before and the same batch, and none of the other options.
    """
    if not (type(q) is type(k) is type(v) is np.ndarray) or return_lse is not False or type(is_causal) is not bool:
        return None
    attend = _small.get(q.dtype)
    if attend is None or k.dtype != q.dtype or v.dtype != q.dtype or any(other is not None for other in others):
        return None
    ndim = q.ndim
    if ndim == 3:
        q, k, v = q[None], k[None], v[None]
    if not q.ndim == k.ndim == v.ndim == 4 or not q.size or not k.size or not v.size:
        return None
    if k.shape[::3] != q.shape[::3] or v.shape[:3] != k.shape[:3] or q.shape[1] % k.shape[1]:
        return None
    out = attend(q, k, v, is_causal)
    return out[0] if out is not None and ndim == 3 else out


def attention_arguments(
    q, k, v, mask, is_causal, q_start, window, kv_lengths, scale, softcap, slopes, sinks, qk_norm, eps, return_lse, out
):
    """Arguments of attention, prepared.

    Returns
    -------
    attention : function
        Of the backend.
    q, k, v : array
        (..., heads, length, size), all with the same batch axes.
    options : Options
    target : array
        To write to, of the shape of the result.
    lse : array
    out : array or Detour
        For `deliver`.
    one_head : bool
        True if the caller's arrays have no axis of heads.
    """
    name = "attention"
    others = {"k": k, "v": v, "mask": mask, "alibi_slopes": slopes, "sinks": sinks, "out": out}
    library = library_for(q, name, others, "q")
    arrays, backend = sys.modules[library], backend_with(name, library)
    q, k, v = (as_array(name, n, a, arrays, backend.DTYPES) for n, a in (("q", q), ("k", k), ("v", v)))
    dtype = result_dtype(q.dtype)
    q, k, v = native(q, dtype), native(k, result_dtype(k.dtype)), native(v, result_dtype(v.dtype))
    given = mask, is_causal, q_start, window, kv_lengths, scale, softcap, slopes, sinks, qk_norm, eps, return_lse
    q, k, v, options, one_head = asked(name, arrays, q, k, v, *given)
    batch = options.lengths.shape
    shape = (*batch, *q.shape[-3:-1], v.shape[-1])
    wanted = shape[1:] if one_head else shape
    if out is None:
        out = arrays.empty(wanted, dtype)
    else:
        check_out(name, "out", out, wanted, dtype)
    seen = out[None] if one_head else out
    q = unless_overwritten(q, seen, arrays)
    k, v = (one.copy() if arrays.may_share_memory(one, out) else one for one in (k, v))
    apart = {
        n: a.copy() for n, a in options._asdict().items() if n in _ARRAYS and a is not None and arrays.may_share_memory(a, out)
    }
    target, out = landing(out, lambda array: array[None] if one_head else array, arrays)
    lse = arrays.empty(shape[:-1], computed(dtype))
    if library == "numpy" and dtype.itemsize > 2 and dtype not in _small:
        _small[dtype] = backend.small_attention
    q, k, v = (one if one.shape[:-3] == batch else arrays.broadcast_to(one, (*batch, *one.shape[-3:])) for one in (q, k, v))
    return backend.attention, q, k, v, options._replace(**apart), target, lse, out, one_head


def asked(
    name, arrays, q, k, v, mask, is_causal, q_start, window, kv_lengths, scale, softcap, slopes, sinks, qk_norm, eps, return_lse
):
    """What was asked of arrays of these shapes and dtypes, whose elements are not looked at: all with heads, and options."""
    if v.dtype != k.dtype:
        raise TypeError(f"{name}: v must have the dtype of k, {k.dtype}, got {v.dtype}")
    q, k, v, one_head = _heads(name, q, k, v)
    batch = _common_batch(name, q, k, v)
    n_heads, n_queries, head_size = q.shape[-3:]
    n_keys, kind = k.shape[-2], computed(q.dtype)
    check_flag(name, "return_lse", return_lse)
    if not (qk_norm is None or (isinstance(qk_norm, str) and qk_norm in ("rms", "unit"))):
        raise ValueError(f"{name}: qk_norm must be None, 'rms' or 'unit', got {qk_norm!r}")
    lengths = _lengths(name, kv_lengths, batch, n_keys)
    starts = lengths - n_queries if q_start is None else _starts(name, q_start, batch)
    left, right = _bounds(name, window, is_causal)
    options = Options(
        _mask(name, mask, (*batch, n_heads, n_queries, n_keys), one_head, arrays),
        starts,
        lengths,
        left,
        right,
        attention_scale(head_size, qk_norm=qk_norm or "rms") if scale is None else finite_of(name, "scale", scale),
        _softcap(name, softcap, kind),
        _of_heads(name, "alibi_slopes", slopes, n_heads, kind, arrays),
        _of_heads(name, "sinks", sinks, n_heads, kind, arrays),
        qk_norm,
        eps_of(name, _EPS[qk_norm] if eps is None else eps, kind),
    )
    return q, k, v, options, one_head


def _heads(name, q, k, v):
    """All with an axis of heads, of fitting sizes."""
    for letter, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim < 2:
            raise ValueError(f"{name}: {letter} must have shape (..., heads, length, head_dim), got {array.shape}")
    one_head = q.ndim == 2
    for letter, array in (("k", k), ("v", v)):
        if (array.ndim == 2) != one_head:
            raise ValueError(f"{name}: {letter} must have heads if and only if q has, got {array.shape} beside {q.shape}")
    if one_head:
        q, k, v = q[None], k[None], v[None]
    if not q.shape[-1]:
        raise ValueError(f"{name}: q must have a head_dim of at least 1, got shape {q.shape}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"{name}: k must have the head_dim of q, {q.shape[-1]}, got shape {k.shape}")
    if v.shape[-3:-1] != k.shape[-3:-1]:
        raise ValueError(f"{name}: v must have the heads and length of k, {k.shape[-3:-1]}, got shape {v.shape}")
    if q.shape[-3] % k.shape[-3] if k.shape[-3] else q.shape[-3]:
        raise ValueError(f"{name}: q must have a multiple of the {k.shape[-3]} heads of k, got {q.shape[-3]}")
    return q, k, v, one_head


def _common_batch(name, q, k, v):
    batch = q.shape[:-3]
    for letter, array in (("k", k), ("v", v)):
        try:
            batch = np.broadcast_shapes(batch, array.shape[:-3])
        except ValueError:
            raise ValueError(
                f"{name}: {letter} must have batch axes that broadcast with {batch}, got {array.shape[:-3]}"
            ) from None
    return batch


def _mask(name, mask, full, one_head, arrays):
    if mask is None:
        return None
    if not hasattr(mask, "dtype"):
        check_members(name, "mask", mask)
        try:
            mask = arrays.asarray(mask)
        except ValueError as error:
            raise TypeError(f"{name}: mask must be an array or a list of truth values or numbers: {error}") from None
    if mask.dtype != np.bool_ and name_of(mask.dtype) not in STORED:
        raise TypeError(f"{name}: mask must have dtype bool or one of {', '.join(STORED)}, got {mask.dtype}")
    mask = native(mask, mask.dtype.newbyteorder("=") if not mask.dtype.isnative else mask.dtype)
    try:
        return arrays.broadcast_to(mask, full)
    except ValueError:
        shown = full[1:] if one_head else full
        raise ValueError(f"{name}: mask must broadcast to (..., heads, queries, keys), {shown}, got {mask.shape}") from None


def _integers(name, argument, value, batch):
    """Integers, one for each element of the batch."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = min(max(value, -_FAR), _FAR)
    if library_of(value) == "cupy":
        raise TypeError(
            f"{name}: {argument} must be an integer, or a list or NumPy array of one for each batch element, got "
            f"{describe(value)}: the host must know them"
        )
    check_members(name, argument, value)
    try:
        given = np.empty(0, object) if foreign(value) or _holds_truths(value) else np.asarray(value)
    except ValueError:  # lists of different lengths
        given = np.empty(0, object)
    if given.dtype.kind not in "iu":
        got = describe(value) if foreign(value) else repr(value)
        raise TypeError(
            f"{name}: {argument} must be an integer, or a list or NumPy array of one for each batch element, got {got}"
        )
    try:
        return np.full(batch, np.minimum(given, given.dtype.type(min(_FAR, np.iinfo(given.dtype).max))), np.int64)
    except ValueError:
        raise ValueError(f"{name}: {argument} must broadcast to the batch axes, {batch}, got shape {given.shape}") from None


def _holds_truths(value):
    """True for a list with truth values, which NumPy makes 1 and 0 of beside integers."""
    return isinstance(value, (list, tuple)) and any(np.asarray(one).dtype == bool for one in np.array(value, object).flat)


def _starts(name, q_start, batch):
    return np.clip(_integers(name, "q_start", q_start, batch), -_FAR, _FAR)


def _lengths(name, kv_lengths, batch, n_keys):
    if kv_lengths is None:
        return np.full(batch, n_keys, np.int64)
    lengths = _integers(name, "kv_lengths", kv_lengths, batch)
    if lengths.size and (lengths.min() < 0 or lengths.max() > n_keys):
        raise ValueError(f"{name}: kv_lengths must be within 0 and the {n_keys} keys, got {kv_lengths!r}")
    return lengths


def _bounds(name, window, is_causal):
    """How far to the left and to the right a query sees; None: to the end."""
    check_flag(name, "is_causal", is_causal)
    bounds = [None, None]
    if window is not None:
        try:
            bounds = [index_of(side) for side in window]
        except TypeError:
            bounds = []
        if len(bounds) != 2:
            raise TypeError(f"{name}: window must be a pair of integers, (left, right), got {window!r}")
        if min(bounds) < -1:
            raise ValueError(f"{name}: window must have sides of at least 0, or -1 for no bound, got {window!r}")
        bounds = [None if side == -1 else min(side, _FAR) for side in bounds]
    left, right = bounds
    return left, 0 if is_causal else right


def _softcap(name, softcap, dtype):
    """None for a cap that no number of the computation exceeds."""
    if softcap is None:
        return None
    number = number_of(name, "softcap", softcap)
    if not number > 0:
        raise ValueError(f"{name}: softcap must be positive, got {softcap!r}")
    return None if number > float(np.finfo(dtype).max) else number


def _of_heads(name, argument, value, n_heads, dtype, arrays):
    if value is None:
        return None
    value = as_array(name, argument, value, arrays, tuple(STORED))
    if value.shape != (n_heads,):
        raise ValueError(f"{name}: {argument} must have shape ({n_heads},), one for each head of q, got {value.shape}")
    bound = np.finfo(dtype).max
    if value.itemsize > dtype.itemsize and arrays is np:  # what is finite stays so
        value = np.where(np.isfinite(value), np.clip(value, -bound, bound), value)
    with np.errstate(all="ignore"):
        return native(value, dtype)


def parts_of(outs, lses):
    """What is to be merged, as two lists of one length."""
    name, lists = "merge_attention", []
    for argument, value in (("outs", outs), ("lses", lses)):
        try:
            lists.append(list(value))
        except TypeError:
            raise TypeError(f"{name}: {argument} must be a sequence of arrays, got {value!r}") from None
    outs, lses = lists
    if not outs or len(outs) != len(lses):
        raise ValueError(f"{name}: lses must be as many as outs, at least one, got {len(lses)} and {len(outs)}")
    return outs, lses


def merge_arguments(outs, lses):
    """Arguments of a merge: the backend's function, the parts in the dtype of the computation, and room for the result."""
    name = "merge_attention"
    library = library_for(
        outs[0],
        name,
        {f"{what}[{i}]": a for what, many in (("outs", outs), ("lses", lses)) for i, a in enumerate(many)},
        "outs[0]",
    )
    arrays, backend = sys.modules[library], backend_with(name, library)
    outs = [as_array(name, f"outs[{i}]", a, arrays, backend.DTYPES) for i, a in enumerate(outs)]
    lses = [as_array(name, f"lses[{i}]", a, arrays, tuple(STORED)) for i, a in enumerate(lses)]
    check_parts(outs, lses)
    shape, dtype = outs[0].shape, result_dtype(outs[0].dtype)
    with np.errstate(all="ignore"):
        outs, lses = ([native(one, computed(dtype)) for one in many] for many in (outs, lses))
    return backend.merge_attention, outs, lses, arrays.empty(shape, dtype), arrays.empty(shape[:-1], computed(dtype))


def check_parts(outs, lses):
    """Refuse arrays of different shapes. Elements are not looked at."""
    name, shape = "merge_attention", outs[0].shape
    for i, (one, lse) in enumerate(zip(outs, lses, strict=True)):
        if not shape or one.shape != shape:
            raise ValueError(
                f"{name}: outs[{i}] must have an axis of features and the shape of outs[0], {shape}, got {one.shape}"
            )
        if lse.shape != shape[:-1]:
            raise ValueError(f"{name}: lses[{i}] must have shape {shape[:-1]} to match outs, got {lse.shape}")
