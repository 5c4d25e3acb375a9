"""Attention."""

from ._arguments import deliver
from ._attention_arguments import attention_arguments, merge_arguments, parts_of, small_attention
from ._dispatch import adapter_of


def attention(
    q,
    k,
    v,
    *,
    mask=None,
    is_causal=False,
    q_start=None,
    window=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    alibi_slopes=None,
    sinks=None,
    qk_norm=None,
    eps=None,
    return_lse=False,
    out=None,
):
    """Give each query the mean of the values, weighted by how well their keys fit.

    ``softmax(scale * q @ k.T) @ v`` for each head, with the options below. Scores of queries times keys are never stored.

    Parameters
    ----------
    q : array_like
        Queries, of shape ``(..., Hq, Lq, D)``, or ``(Lq, D)`` for one head: an array or a list, of float16, bfloat16
        (`ml_dtypes`), float32, float64 or integers, of any strides and byte order: of NumPy, of CuPy, of Dask (lazy), or in
        the CPU's memory and with DLPack, as torch's and JAX's. It decides the library of all arrays of the call, and the dtype
        of the result.
    k, v : array_like
        Keys ``(..., Hkv, Lk, D)`` and values ``(..., Hkv, Lk, Dv)``, of one dtype, which may differ from that of `q`. `Hkv`
        divides `Hq`: query head h reads key head ``h // (Hq // Hkv)``. Batch axes broadcast. Slices of a larger cache are
        read in place.
    mask : array_like, optional
        What broadcasts to ``(..., Hq, Lq, Lk)``: truth values, True for keys that may be attended to; or floats, added to
        the scores, of which minus infinity forbids a key and a finite number never does.
    is_causal : bool, default: False
        Allow key j for a query at position p only if ``j <= p``.
    q_start : int or array of int, optional
        Position of the first query; key j stands at j. One number, or what broadcasts to the batch axes. The default is
        ``Lk - Lq``, or ``kv_lengths - Lq``: the last query sees every key, as in decoding with a cache. 0 is the
        upper-left alignment of PyTorch and JAX.
    window : (int, int), optional
        Allow keys from ``p - left`` to ``p + right`` only, both included; -1 is no bound.
    kv_lengths : int or array of int, optional
        Keys that are there, within 0 and Lk; what broadcasts to the batch axes. Later ones are not read.
    scale : float, optional
        Factor of the scores. The default is `attention_scale` of D and `qk_norm`: ``1 / sqrt(D)``, or ``sqrt(D)`` for
        ``qk_norm="unit"``. 0 is a value.
    softcap : float, optional
        Keep scores within this bound: ``softcap * tanh(score / softcap)``. Positive.
    alibi_slopes : array_like, optional
        Of shape ``(Hq,)``: ``slope * abs(p - j)`` is subtracted from scores.
    sinks : array_like, optional
        Of shape ``(Hq,)``: a score for each head that takes weight and brings no value. It counts in `lse`, so that of
        parts to be merged one alone may have it.
    qk_norm : {None, "rms", "unit"}, optional
        Normalise q and k first, as `rms_norm` or `unit_norm` without a weight. (A weight does not commute with RoPE: apply such
        a norm yourself, before the rotation.)
    eps : float, optional
        That of the norm, in its units; the default is that of `rms_norm`, 1e-6, or of `unit_norm`, 0.
    return_lse : bool, default: False
        Return the logarithms of the sums of exponentials, too, for `merge_attention`.
    out : array, optional
        Where to write the result: writeable, of the shape and dtype of the result; it may be `q`. Any other overlap gives
        what it would if the inputs had been copied first. By default a new array.

    Returns
    -------
    out : array
        Of shape ``(..., Hq, Lq, Dv)`` and the dtype of `q`; integers become ``numpy.result_type(q.dtype, numpy.float32)``. A
        query that may attend to no key gives zeros.
    lse : array
        With ``return_lse=True``: of shape ``(..., Hq, Lq)``, natural logarithms in float32, or float64 for a result of
        float64; minus infinity where there is no key and no sink.

    Raises
    ------
    TypeError
        If an array is not of the kinds and dtypes above, of another library than `q`, or `v` of another dtype than `k`; if
        `mask` is of integers; if `window` is no pair of integers; if a number is not one.
    ValueError
        If shapes do not fit each other as above, or D is 0; if a length is not within 0 and Lk; if `window` has a side below
        -1; if `scale` is infinite or NaN, `softcap` not positive, or `eps` negative or NaN; if `qk_norm` is none of those
        above; if `out` has another shape or dtype than the result, is read-only, or has a stride of 0 along an axis longer
        than 1.

    See Also
    --------
    attention_scale : The scale that goes with a norm of q and k.
    merge_attention : Results over parts of the keys, joined.

    Notes
    -----
    This is scaled dot-product attention [1]_ in one pass over the keys [2]_ [3]_, with grouped heads [4]_, ALiBi [5]_
    and attention sinks [6]_. The order is: scale, soft cap, ALiBi, the mask's floats, the rules about which keys are allowed,
    softmax. Everything is computed in float32, or in float64 for a result of float64.

    A key that is not allowed is skipped, not multiplied by 0: what is not a number there does not reach the result. A query's
    bits do not depend on the batch, other heads, the number of threads or the layout. Memory beyond inputs and result does not
    grow with Lq times Lk.

    References
    ----------
    .. [1] Ashish Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762.
    .. [2] Maxim Milakov and Natalia Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867.
    .. [3] Tri Dao et al., "FlashAttention", 2022, arXiv:2205.14135.
    .. [4] Joshua Ainslie et al., "GQA", 2023, arXiv:2305.13245.
    .. [5] Ofir Press et al., "Train Short, Test Long", 2022, arXiv:2108.12409.
    .. [6] Guangxuan Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, arXiv:2309.17453.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> q, k = np.array([[1.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 9.0]])
    >>> fastnorm.attention(q, k, np.array([[1.0], [2.0]]), scale=0.0)
    array([[1.5]])
    >>> fastnorm.attention(q, k, np.array([[1.0], [np.nan]]), mask=[True, False])
    array([[1.]])

    One more token for a cache with room for 512, of which 3 are there:

    >>> cache = np.zeros((2, 1, 8, 512, 64), np.float32)
    >>> fastnorm.attention(np.ones((1, 32, 1, 64), np.float32), *cache[..., :3, :], is_causal=True).shape
    (1, 32, 1, 64)
    """
    others = mask, q_start, window, kv_lengths, scale, softcap, alibi_slopes, sinks, qk_norm, eps, out
    y = small_attention(q, k, v, is_causal, return_lse, others)
    if y is not None:
        return y
    if adapter := adapter_of(q):
        return adapter(attention, locals())
    function, q, k, v, options, target, lse, out, one_head = attention_arguments(
        q,
        k,
        v,
        mask,
        is_causal,
        q_start,
        window,
        kv_lengths,
        scale,
        softcap,
        alibi_slopes,
        sinks,
        qk_norm,
        eps,
        return_lse,
        out,
    )
    function(q, k, v, options, target, lse)
    out = deliver(out)
    if not return_lse:
        return out
    return out, lse[0] if one_head else lse


def merge_attention(outs, lses):
    """Join the results of attention over disjoint sets of keys.

    ``lse = log(sum(exp(lses)))`` and ``out = sum(exp(lses - lse) * outs)``.

    Parameters
    ----------
    outs : sequence of array_like
        Results of `attention`, of one shape ``(..., L, Dv)``. The first decides the library and the dtype of the result.
    lses : sequence of array_like
        The logarithms that came with them, each of shape ``(..., L)``.

    Returns
    -------
    out : array
        What attention over all keys gives.
    lse : array
        Its logarithms, in float32, or float64 for a result of float64.

    Raises
    ------
    TypeError
        If `outs` or `lses` is not a sequence of arrays of one library, of the dtypes of `attention`.
    ValueError
        If there is none, or not as many of both; if shapes differ.

    See Also
    --------
    attention : With ``return_lse=True`` it returns both.

    Examples
    --------
    >>> import numpy as np
    >>> import fastnorm
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 10, 4))
    >>> parts = [fastnorm.attention(q, k[:, i : i + 5], v[:, i : i + 5], return_lse=True) for i in (0, 5)]
    >>> out, lse = fastnorm.merge_attention(*zip(*parts))
    >>> np.allclose(out, fastnorm.attention(q, k, v))
    True
    """
    outs, lses = parts_of(outs, lses)
    if adapter := adapter_of(outs[0]):
        return adapter(merge_attention, locals())
    function, outs, lses, out, lse = merge_arguments(outs, lses)
    function(outs, lses, out, lse)
    return out, lse
