"""Arrays of other libraries in the CPU's memory go in where they lie, and results come back as theirs."""

import doctest
import importlib
import inspect
import itertools
import pathlib
import re
import warnings

import numpy as np
import pytest
from compare import assert_same_bits

import fastnorm
from fastnorm import _borrowed

# ------------------------------------------------------------------------------------------------------ the libraries


class Lent:
    """The least that speaks DLPack: an array of NumPy that does not show itself otherwise."""

    def __init__(self, array):
        self.array, self.dtype, self.shape, self.ndim = array, array.dtype, array.shape, array.ndim

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @staticmethod
    def from_dlpack(other):
        return Lent(np.from_dlpack(other))


class OfTests:
    """The library of `Lent`."""

    dtypes = "float16", "float32", "float64"
    writes = True

    def put(self, array):
        return Lent(array)

    def take(self, lent):
        assert type(lent) is Lent
        return lent.array

    def address(self, lent):
        return lent.array.ctypes.data


class Torch:
    """PyTorch on the CPU."""

    dtypes = "float16", "bfloat16", "float32", "float64"
    writes = True

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def put(self, array):
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def take(self, tensor):
        assert type(tensor) is self.torch.Tensor
        if tensor.dtype == self.torch.bfloat16:
            return tensor.view(self.torch.int16).numpy().view(importlib.import_module("ml_dtypes").bfloat16)
        return tensor.numpy()

    def address(self, tensor):
        return tensor.data_ptr()


class Jax:
    """JAX on the CPU. It has no float64 unless asked for it, and no array that could be written to."""

    dtypes = "float16", "bfloat16", "float32"
    writes = False

    def __init__(self):
        self.jax = pytest.importorskip("jax")

    def put(self, array):
        return self.jax.device_put(array, self.jax.devices("cpu")[0])

    def take(self, array):
        assert isinstance(array, self.jax.Array)
        return np.asarray(array)

    def address(self, array):
        return array.unsafe_buffer_pointer()


LIBRARIES = [OfTests, Torch, Jax]


@pytest.fixture(params=LIBRARIES, ids=lambda kind: kind.__name__)
def library(request):
    return request.param()


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


X, W, B = numbers(6, 8), numbers(8, seed=1), numbers(8, seed=2)
Q, K, V = numbers(2, 4, 5, 8), numbers(2, 2, 7, 8), numbers(2, 2, 7, 6)
COS, SIN = fastnorm.rope_tables(np.arange(6), 8)
OUTS, LSES = ([numbers(2, 4, 5, *size, seed=i) for i in range(2)] for size in ((6,), ()))
CALLS = {  # arguments of every public function that takes arrays, such that each of these is there once
    "rms_norm": {"x": X, "weight": W},
    "layer_norm": {"x": X, "weight": W, "bias": B},
    "unit_norm": {"x": X, "weight": W},
    "group_norm": {"x": X, "num_groups": 2, "weight": W, "bias": B},
    "add_rms_norm": {"x": X, "residual": X[::-1].copy(), "weight": W},
    "add_layer_norm": {"x": X, "residual": X[::-1].copy(), "weight": W, "bias": B},
    "softmax": {"x": X, "axis": 0, "scale": 0.5},
    "log_softmax": {"x": X},
    "logsumexp": {"x": X},
    "rope_tables": {"positions": np.arange(6, dtype=np.int32), "dim": 8},
    "rope": {"x": X, "cos": COS, "sin": SIN},
    "attention": {
        "q": Q,
        "k": K,
        "v": V,
        "mask": numbers(5, 7) > -1,
        "kv_lengths": np.array([7, 5], np.int32),
        "alibi_slopes": numbers(4),
        "sinks": numbers(4, seed=1),
        "return_lse": True,
    },
    "merge_attention": {"outs": OUTS, "lses": LSES},
}
WITH_OUT = [name for name in CALLS if "out" in inspect.signature(getattr(fastnorm, name)).parameters]
each_function = pytest.mark.parametrize("name", CALLS)


def test_every_function_is_called():
    numbers_only = {"attention_scale", "get_num_threads", "init_std", "set_num_threads", "show_config", "warm_up"}
    assert set(CALLS) == set(fastnorm.__all__) - numbers_only


def moved(value, put):
    """A value with its arrays as those of a library."""
    if isinstance(value, list):
        return [moved(one, put) for one in value]
    return put(value) if isinstance(value, np.ndarray) else value


def call(name, put=lambda array: array, **changed):
    """The results of a function, as a list."""
    results = getattr(fastnorm, name)(**{n: moved(value, put) for n, value in CALLS[name].items()} | changed)
    return list(results) if isinstance(results, tuple) else [results]


# ---------------------------------------------------------------------------------------------------------- in and out
@each_function
def test_the_bits_of_numpy_in_the_callers_library(library, name):
    mine = {n: moved(value, library.put) for n, value in CALLS[name].items()}
    results = getattr(fastnorm, name)(**mine)
    wanted = call(name)
    for y, one in zip(results if isinstance(results, tuple) else [results], wanted, strict=True):
        assert_same_bits(library.take(y), one)
    for n, value in CALLS[name].items():  # the arguments are what they were
        for before, after in zip(*[a if isinstance(a, list) else [a] for a in (value, mine[n])], strict=True):
            if isinstance(before, np.ndarray):
                assert_same_bits(library.take(after), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rms_norm", "add_layer_norm", "softmax", "attention"])
def test_dtypes(library, name):
    importlib.import_module("ml_dtypes")
    for dtype in map(np.dtype, library.dtypes):
        arrays = {n: a.astype(dtype) for n, a in CALLS[name].items() if n in ("x", "residual", "weight", "q", "k", "v")}
        results = call(name, library.put, **{n: library.put(a) for n, a in arrays.items()})
        for y, wanted in zip(results, call(name, **arrays), strict=True):
            assert_same_bits(library.take(y), wanted)


def test_integers(library):
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert_same_bits(library.take(fastnorm.rms_norm(library.put(x))), fastnorm.rms_norm(x))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1,), (300, 500), (2, 3, 4, 5)])
def test_shapes(library, shape):
    x = numbers(*shape)
    for name in ("layer_norm", "softmax", "logsumexp"):
        assert_same_bits(library.take(getattr(fastnorm, name)(library.put(x))), getattr(fastnorm, name)(x))


def test_nothing_is_copied(library):
    """What a function sees begins where the caller's array does, and the caller gets the memory that it wrote to."""
    seen = []

    def function(x, residual, weight=None, *, eps=0.0, out=None, residual_out=None):
        seen[:] = eps, x, residual, weight, out, residual_out
        out[...], residual_out[...] = x, residual
        return out, residual_out

    for dtype in map(np.dtype, library.dtypes):
        for shape in ((6, 8), (1000, 3), (7,), (2, 3, 5)):
            x, residual, weight = (library.put(numbers(*shape, seed=i).astype(dtype)) for i in range(3))
            arguments = {"x": x, "residual": residual, "weight": weight, "eps": 0.5, "out": None, "residual_out": None}
            y, h = _borrowed.borrowed(function, arguments | {"nothing": "of the arguments"})
            assert seen[0] == 0.5
            for mine, theirs in zip((x, residual, weight, y, h), seen[1:], strict=True):
                assert theirs.dtype == dtype
                assert theirs.shape == shape
                assert library.address(mine) == theirs.ctypes.data
            assert_same_bits(library.take(y), library.take(x))
            assert_same_bits(library.take(h), library.take(residual))


def test_results_of_attention_are_not_copied(library, monkeypatch):
    given = []
    monkeypatch.setattr(
        _borrowed, "_given", lambda name, y, x, original=_borrowed._given: given.append(y) or original(name, y, x)
    )
    (out, _) = call("attention", library.put)
    assert library.address(out) == given[0].ctypes.data
    q, k, v = (library.put(a) for a in (Q, K[:1], numbers(3, 1, 2, 7, 4)))  # batches that broadcast
    out = fastnorm.attention(q, k, v)
    assert library.address(out) == given[-1].ctypes.data
    assert_same_bits(library.take(out), fastnorm.attention(Q, K[:1], numbers(3, 1, 2, 7, 4)))


def test_results_stay_when_everything_else_is_gone(library):
    ys = [fastnorm.rms_norm(library.put(numbers(64, 100, seed=i))) for i in range(20)]
    for i, y in enumerate(ys):
        assert_same_bits(library.take(y), fastnorm.rms_norm(numbers(64, 100, seed=i)))


# ----------------------------------------------------------------------------------------------------------------- out
@pytest.mark.parametrize("name", WITH_OUT)
def test_out(library, name):
    wanted = call(name)
    names = ["out", "residual_out"][: 1 if name == "attention" else len(wanted)]
    outs = {n: library.put(np.zeros_like(y)) for n, y in zip(names, wanted, strict=False)}
    if not library.writes:
        for n, out in outs.items():
            with pytest.raises(ValueError, match=f"{name}: {n} must be writeable, got a read-only array"):
                call(name, library.put, **{n: out})
            assert not library.take(out).any()
        return
    results = call(name, library.put, **outs)
    for y, out, one in zip(results, outs.values(), wanted, strict=False):
        assert y is out
        assert_same_bits(library.take(out), one)
    if name.startswith("add_"):
        y, h = call(name, library.put, residual_out=outs["residual_out"])
        assert h is outs["residual_out"]
        assert y is not outs["out"]


def test_in_place(library):
    if library.writes:
        x, residual = library.put(X.copy()), library.put(X[::-1].copy())
        wanted = fastnorm.add_rms_norm(X, X[::-1].copy())
        y, h = fastnorm.add_rms_norm(x, residual, out=x, residual_out=residual)
        assert y is x
        assert h is residual
        assert_same_bits(library.take(y), wanted[0])
        assert_same_bits(library.take(h), wanted[1])
        with pytest.raises(ValueError, match="residual_out must not overlap out"):
            fastnorm.add_rms_norm(x, residual, out=x, residual_out=x)


def test_read_only_memory_is_read_and_never_written():
    x = X.copy()
    x.flags.writeable = False
    assert_same_bits(fastnorm.rms_norm(Lent(x)).array, fastnorm.rms_norm(X))
    with pytest.raises(ValueError, match="rms_norm: out must be writeable, got a read-only array"):
        fastnorm.rms_norm(Lent(x), out=Lent(x))
    assert_same_bits(x, X)


# ------------------------------------------------------------------------------------------------------------ mixtures
def arrays_of(name):
    return [n for n, value in CALLS[name].items() if isinstance(value, (np.ndarray, list)) and n != "kv_lengths"]


MIXTURES = [(name, n) for name in CALLS for n in arrays_of(name)[1:]] + [(name, "out") for name in WITH_OUT]


@pytest.mark.parametrize(("name", "argument"), MIXTURES)
def test_libraries_do_not_mix(library, name, argument):
    own = CALLS[name].get(argument, np.zeros_like(call(name)[0]))
    theirs = moved(own, library.put)
    kind = type(theirs[0] if isinstance(theirs, list) else theirs).__name__
    here = f"{argument}[0]" if isinstance(own, list) else argument
    for put, value, other in ((library.put, own, "numpy.ndarray"), (lambda array: array, theirs, kind)):
        with pytest.raises(TypeError) as caught:
            call(name, put, **{argument: value})
        message = str(caught.value)
        assert message.startswith(f"{name}: {here} must be a ")
        assert f"{other}: arrays of different libraries do not mix" in message


@pytest.mark.parametrize(
    "pair", list(itertools.permutations(LIBRARIES, 2)), ids=lambda pair: "-".join(kind.__name__ for kind in pair)
)
def test_nor_do_two_others(pair):
    one, other = (kind() for kind in pair)
    with pytest.raises(TypeError, match=r"rms_norm: weight must be a .* arrays of different libraries do not mix"):
        fastnorm.rms_norm(one.put(X), other.put(W))


def test_what_belongs_to_no_library_goes_with_any(library):
    """Lists, numbers, and counts, which are NumPy's or the library's own."""
    x, wanted = library.put(X), fastnorm.rms_norm(X, W.tolist(), eps=1e-3)
    for eps in (1e-3, np.float64(1e-3), np.array(1e-3)):
        assert_same_bits(library.take(fastnorm.rms_norm(x, W.tolist(), eps=eps, axis=np.int64(1))), wanted)
    q, k, v = map(library.put, (Q, K, V))
    lengths = np.array([7, 5])
    wanted = fastnorm.attention(Q, K, V, kv_lengths=lengths, q_start=np.array([2, 0]), is_causal=True)
    for counts in (lengths, lengths.tolist(), library.put(lengths.astype(np.int32))):
        y = fastnorm.attention(q, k, v, kv_lengths=counts, q_start=[2, 0], is_causal=np.True_)
        assert_same_bits(library.take(y), wanted)


def test_lists_of_arrays_are_no_arrays(library):
    x = library.put(X)
    for arguments in (([x, x],), (x, [x] * 8)):
        with pytest.raises(TypeError, match=r"rms_norm: .* must be a list of numbers, got one that holds"):
            fastnorm.rms_norm(*arguments)


def test_errors_name_what_they_name_for_numpy(library):
    for error, words, changed in (
        (ValueError, r"weight must have shape \(8,\) to match axis -1 of x, got \(6,\)", {"weight": library.put(W[:6].copy())}),
        (TypeError, "x must have dtype .* got bool", {"x": library.put(X > 0)}),
        (TypeError, "axis must be an integer", {"axis": 0.5}),
        (np.exceptions.AxisError, "axis must be within the 2 axes", {"axis": 2}),
        (ValueError, "out must have shape", {"out": library.put(X[:3].copy())}),
        (TypeError, "out must be an array, got list", {"out": [1.0]}),
    ):
        with pytest.raises(error, match=f"rms_norm: {words}"):
            call("rms_norm", library.put, **changed)
    with pytest.raises(ValueError, match="attention: k must have batch axes that broadcast"):
        call("attention", library.put, k=library.put(numbers(3, 2, 7, 8)))
    with pytest.raises(ValueError, match="attention: q must have shape"):
        fastnorm.attention(library.put(W), library.put(X), library.put(X))
    with pytest.raises(ValueError, match="merge_attention: lses must be as many as outs"):
        fastnorm.merge_attention([library.put(X)], [])


# -------------------------------------------------------------------------------------------- what is not plain memory
class Elsewhere(Lent):
    """An array on some other device."""

    def __dlpack_device__(self):
        return 8, 0


class Nowhere(Lent):
    """One without a device."""

    def __dlpack_device__(self):
        raise RuntimeError("being traced")


class Homeless:
    """One whose library has no `from_dlpack` at all."""

    __dlpack__, __dlpack_device__ = Lent.__dlpack__, Lent.__dlpack_device__

    def __init__(self, array):
        self.array = array


Homeless.__module__ = "inspect"


@pytest.mark.parametrize("kind", [Elsewhere, Nowhere, Homeless])
def test_arrays_that_cannot_be_taken(kind):
    with pytest.raises(TypeError, match=f"x must be .* in the CPU's memory that speaks DLPack, .* got .*{kind.__name__}"):
        fastnorm.rms_norm(kind(X))


class OnADevice(Elsewhere):
    """One that says where it is."""

    device = "gizmo:0"


class OnAGpu(OnADevice):
    """One that CuPy would take."""

    __cuda_array_interface__ = {}  # noqa: RUF012


class Column:
    """A column of a data frame."""

    def to_numpy(self):
        return X


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (OnADevice(X), "OnADevice on gizmo:0"),
        (OnAGpu(X), "OnAGpu on gizmo:0: arrays on a GPU need CuPy"),
        (Column(), "Column: its to_numpy() makes one"),
        (np.ma.masked_array(X), "numpy.ma.MaskedArray: it may mean more than its numbers"),
    ],
)
def test_what_to_do_with_what_cannot_be_taken(monkeypatch, value, words):
    monkeypatch.setattr(fastnorm._dispatch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TypeError, match=rf"^rms_norm: x must be .* got .*{re.escape(words)}$"):
        fastnorm.rms_norm(value)


def test_what_is_no_array_is_not_of_a_different_library():
    with pytest.raises(TypeError, match=r"^rms_norm: weight must be a numpy array as x is, got str$"):
        fastnorm.rms_norm(X, "weight")


class Flat(Lent):
    """One of a library whose arrays have one axis, as PyArrow's have."""

    @staticmethod
    def from_dlpack(other):
        array = np.from_dlpack(other)
        if array.ndim != 1:
            raise RuntimeError("one axis, please")
        return Flat(array)


def test_results_that_cannot_be_taken():
    assert_same_bits(fastnorm.softmax(Flat(W)).array, fastnorm.softmax(W))
    for name, arguments in (("logsumexp", (Flat(W),)), ("rope_tables", (Flat(W), 4))):
        with pytest.raises(TypeError, match=rf"{name}: \w+ must be of a library that takes the result, of shape .*: one axis"):
            getattr(fastnorm, name)(*arguments)


def test_the_example_of_the_api_page():
    pytest.importorskip("torch")
    page = pathlib.Path(__file__).parent.parent / "docs" / "api.md"
    if not page.exists():
        pytest.skip("an installation without the repository")
    text = page.read_text().split(":caption: needs torch\n")[1].split("```")[0]
    example = doctest.DocTestParser().get_doctest(text, {}, "api.md", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(example) == (0, 3)


def test_torch_keeps_its_gradients():
    torch = pytest.importorskip("torch")
    x, weight = torch.ones(2, 3), torch.nn.Parameter(torch.ones(3))
    for n, arguments in {"x": [weight], "weight": [x, weight]}.items():
        with pytest.raises(TypeError, match=rf"rms_norm: {n} must be .*require gradient, use tensor.detach\(\)"):
            fastnorm.rms_norm(*arguments)
    assert torch.equal(fastnorm.rms_norm(x, weight.detach()), fastnorm.rms_norm(x))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert type(fastnorm.rms_norm(frozen, frozen)) is torch.Tensor


def test_torch_keeps_its_gradients_that_go_forward():
    torch = pytest.importorskip("torch")
    x, tangent = torch.ones(2, 3), torch.ones(2, 3)
    with torch.autograd.forward_ad.dual_level():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own use of its own
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
        for n, arguments in {"x": [dual], "weight": [x, dual[0]]}.items():
            with pytest.raises(TypeError, match=rf"rms_norm: {n} must be .* it has a tangent, use tensor.detach\(\)"):
                fastnorm.rms_norm(*arguments)
        assert torch.equal(fastnorm.rms_norm(dual.detach()), fastnorm.rms_norm(x))


def test_tensors_of_torch_that_have_no_memory():
    """NumPy would make new memory in its place, with what happens to be there."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    freed, short = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    for one in (freed, short):
        one.untyped_storage().resize_(0)
    for odd in (freed, short, torch._efficientzerotensor((2, 3))):
        with pytest.raises(TypeError, match=r"rms_norm: x must be an array that DLPack can share: it has no memory"):
            fastnorm.rms_norm(odd)
        with pytest.raises(TypeError, match="rms_norm: out must be an array that DLPack can share: it has no memory"):
            fastnorm.rms_norm(x.to(odd.dtype), out=odd)
    with pytest.raises(TypeError, match="it has no memory"):
        torch.func.functionalize(fastnorm.rms_norm)(x)


def test_strides_of_torch(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((6, 5, 8)).astype(np.float32))
    for odd in (
        x.mT,
        x[::2, 1:, ::3],
        x[:1].expand(4, 5, 8),
        x.transpose(0, 2),
        x.contiguous(memory_format=torch.contiguous_format),
    ):
        for axis in range(3):
            y = fastnorm.layer_norm(odd, axis=axis)
            assert_same_bits(y.numpy(), fastnorm.layer_norm(odd.numpy(), axis=axis))
            assert y.stride() == torch.from_numpy(np.empty_like(odd.numpy())).stride()
    out = torch.zeros(8, 5, 6).transpose(0, 2)
    assert fastnorm.rms_norm(x, out=out) is out
    assert_same_bits(out.numpy(), fastnorm.rms_norm(x.numpy()))


def test_tensors_of_torch_that_are_more_than_their_memory():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match="prototype"):
        masked = torch.masked.masked_tensor(x, x > 0)
    refused = [torch._neg_view(x), masked, torch.eye(3).to_sparse(), x.to(torch.float8_e4m3fn), x.to("meta"), x.cfloat()]
    for odd in refused:
        with pytest.raises(TypeError, match="rms_norm: x must"):
            fastnorm.rms_norm(odd)
        with pytest.raises(TypeError, match="rms_norm: weight must"):
            fastnorm.rms_norm(x, odd)
    with pytest.raises(TypeError, match="rms_norm: x must"):
        torch.vmap(fastnorm.rms_norm)(x)
    with pytest.raises(TypeError, match=r"rms_norm: x must be .* use tensor.detach\(\)"):
        torch.func.grad(lambda x: fastnorm.rms_norm(x).sum())(x)


def test_jax_traces_nothing():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((2, 3))
    for transformed in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(
            TypeError, match=r"rms_norm: x must be .* got jax.*Tracer: within jit, grad and vmap there are no arrays"
        ):
            transformed(fastnorm.rms_norm)(x)
    with pytest.raises(TypeError, match="rms_norm: weight must be"):
        jax.jit(lambda weight: fastnorm.rms_norm(x, weight))(x[0])


def test_jax_has_finished(rng):
    """JAX computes behind the caller's back; its results are waited for."""
    jax = pytest.importorskip("jax")
    x = rng.standard_normal((600, 600)).astype(np.float32)
    y = jax.jit(lambda a: a @ a @ a)(x)
    assert_same_bits(np.asarray(fastnorm.rms_norm(y)), fastnorm.rms_norm(np.asarray(y)))


def test_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    if not hasattr(pyarrow.Tensor, "from_dlpack"):
        pytest.skip("a PyArrow that takes nothing by DLPack")
    y = fastnorm.rms_norm(pyarrow.Tensor.from_numpy(X), pyarrow.array(W))
    assert type(y) is pyarrow.Tensor
    assert_same_bits(y.to_numpy(), fastnorm.rms_norm(X, W))


def test_mlx():
    mx = pytest.importorskip("mlx.core")
    if mx.array(X).__dlpack_device__()[0] != 1:
        pytest.skip("an MLX whose arrays lie on a GPU")
    for x in (mx.array(X), mx.array(X).astype(mx.bfloat16)):
        y = fastnorm.rms_norm(x, mx.array(W))
        assert type(y) is mx.array
        assert y.dtype == x.dtype
        assert mx.allclose(y, mx.fast.rms_norm(x, mx.array(W), 1e-6), 1e-2 if x.dtype == mx.bfloat16 else 1e-5)


def test_torch_hears_of_what_is_written():
    """Gradients that rest on what was there are an error, as with torch's own functions."""
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.ones(4, 8))
    h = (p * 2).exp()
    fastnorm.softmax(h.detach(), out=h.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()
