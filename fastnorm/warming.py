"""Compiling ahead: what a program will need, before it needs it."""

from ._compile import kernel
from ._vocabulary import STORED


def warm_up(functions=None, dtypes=("float32",)):
    """Compile the CPU kernels that functions may need, or load them from the cache, so that no later call has to.

    A kernel is compiled when it is first needed, which takes a second or two, and kept on disk if there is a place for it.
    A server calls this before its first request; an image is built with ``fastnorm warm``, which does the same.

    Parameters
    ----------
    functions : iterable of str, optional
        Names of functions of this library, such as ``"rms_norm"``. None, the default, means all that have kernels. Those
        of ``"attention"`` are for keys and values of the dtype of the queries.
    dtypes : iterable of str or dtype, default: ("float32",)
        The dtypes of `x` to be ready for: float16, bfloat16, float32, float64.

    Returns
    -------
    int
        The number of kernels that are ready.

    Raises
    ------
    TypeError
        If `functions` or `dtypes` is a single string or cannot be iterated over.
    ValueError
        If one of the functions or dtypes has no kernels.

    Examples
    --------
    >>> import fastnorm
    >>> fastnorm.warm_up(["unit_norm"], ["float32"])
    6
    """
    names = kernels_among(functions, dtypes)
    for name in names:
        kernel(*name)
    return len(names)


def kernels_among(functions, dtypes):
    """The names of what `warm_up` compiles, each once."""
    from ._cpu.needed import FUNCTIONS, kernels_for

    functions = names_among("functions", FUNCTIONS if functions is None else functions, FUNCTIONS)
    dtypes = names_among("dtypes", dtypes, tuple(STORED))
    return dict.fromkeys(name for function in functions for dtype in dtypes for name in kernels_for(function, dtype))


def names_among(argument, values, known):
    """Names out of `known`, as given or by their `name`."""
    if isinstance(values, str):
        raise TypeError(f"warm_up: {argument} must be an iterable of names, got the single string {values!r}")
    try:
        values = list(values)
    except TypeError:
        raise TypeError(f"warm_up: {argument} must be an iterable of names, got {values!r}") from None
    names = [getattr(value, "name", getattr(value, "__name__", value)) for value in values]
    for name in names:
        if name not in known:
            raise ValueError(f"warm_up: {argument} must be among {', '.join(known)}, got {name!r}")
    return names
