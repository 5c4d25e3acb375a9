"""What is measured and what it should reach. Adding a case, a dtype or a norm's shape is a line in `CASES`."""

from typing import NamedTuple


class Target(NamedTuple):
    """What a case should reach.

    ``Target("numpy", ">=", 12)``: 12 times as fast as numpy, or faster. ``Target("raw ufunc", "<=", 2)``: twice the time
    of it, or less. ``Target("seconds", "<=", 0.4)``: that much time. "copy" is the best of all copies.
    """

    against: str
    relation: str
    limit: float


class Case(NamedTuple):
    """One piece of work for this library and for whoever else can do it."""

    row: int  # one number for work of one kind
    function: str
    shape: tuple[int, ...]
    targets: tuple[Target, ...]
    dtype: str = "float32"
    axis: int = -1
    groups: int = 0  # of channels, for `group_norm`
    keys: tuple[int, ...] = ()  # of attention, whose shape is that of the queries: heads and length; (): the same
    causal: bool = False
    window: int = 0  # keys that a query sees
    out: bool = True  # with `out=`, without page faults; False: a new result each time
    peers: bool = True  # other libraries, too
    busy: bool = False  # while another process keeps one core busy
    data: str = ""  # "minilm": real data; "": normally distributed
    quick: tuple[int, ...] = ()  # the shape for --quick; (): the same

    @property
    def title(self):
        """The work in words: ``rms_norm 16384x4096``."""
        notes = [self.dtype if self.dtype != "float32" else "", f"axis {self.axis}" if self.axis != -1 else ""]
        notes += [f"{self.groups} groups" if self.groups else "", f"on {'x'.join(map(str, self.keys))}" if self.keys else ""]
        notes += [f"window {self.window}" if self.window else "causal" if self.causal else ""]
        notes += ["" if self.out else "new", "core busy" if self.busy else "", "MiniLM" if self.data else ""]
        notes += ["threads" if not self.busy and any(target.against == "1 thread" for target in self.targets) else ""]
        return " ".join([self.function, "x".join(map(str, self.shape)), *filter(None, notes)])


class Start(NamedTuple):
    """A program in a process of its own, which prints the seconds to report."""

    row: int
    title: str
    program: str
    targets: tuple[Target, ...]
    cold: bool = False  # with an empty cache folder


def at_least(against, limit):
    """So many times as fast."""
    return Target(against, ">=", limit)


def at_most(against, limit):
    """So many times the time."""
    return Target(against, "<=", limit)


_LARGE = (at_least("copy", 0.95), at_least("onnxruntime", 1.5), at_least("torch layer_norm", 4), at_least("numpy", 12))
_HALF = (at_least("copy", 0.90), *[at_least(peer, 4) for peer in ("onnxruntime", "torch layer_norm", "numpy")])
_BYTES = (at_least("copy", 0.90),)
# A slab of columns does not fit the second cache, so x is read twice: 0.67 of copy is the limit.
_TWICE, _ONCE = (at_least("copy", 0.58),), (at_least("copy", 0.75),)
_CACHED = (at_least("onnxruntime", 1.3),)
_ONE_ROW = (at_most("raw ufunc", 2.0), at_most("onnxruntime", 0.6))
_ROWS = (at_least("copy", 0.80), at_least("scipy", 1))
_BYTES_OF_ROPE = (at_least("copy", 0.80),)
_PREFILL = (at_least("torch", 1.05), at_least("matmul", 0.85))
_CAUSAL = (at_least("torch", 1.4), at_least("matmul", 0.85))
_DECODE = (at_least("read", 0.85), at_least("torch", 2))
_WINDOW = (at_least("causal", 11),)
_HALF_RATE = (at_least("in float32", 0.9),)
_IMPORT = "import numpy, time; start = time.perf_counter(); import fastnorm; print(time.perf_counter() - start)"


def _first_call(function, dtype):
    return (
        f"import numpy, time, fastnorm; x = numpy.ones((8, 768), {dtype!r}); start = time.perf_counter(); "
        f"fastnorm.{function}(x); print(time.perf_counter() - start)"
    )


_FIRST_ATTENTION = (
    "import numpy, time, fastnorm; q = numpy.ones((1, 4, 64), 'f4'); start = time.perf_counter(); "
    "fastnorm.attention(q, q, q); print(time.perf_counter() - start)"
)


def _large(row, function, targets, dtype="float32", rows=8192):
    """A matrix that no cache holds."""
    return Case(row, function, (rows, 4096), targets, dtype, quick=(max(rows // 4, 2048), 4096))


CASES = (
    _large(1, "rms_norm", _LARGE, rows=16384),
    _large(1, "layer_norm", _LARGE, rows=16384),
    _large(1, "unit_norm", _LARGE, rows=16384),
    Case(1, "rms_norm", (30522, 384), _LARGE, data="minilm"),
    _large(2, "rms_norm", _HALF, "float16"),
    _large(2, "rms_norm", _HALF, "bfloat16"),
    _large(2, "layer_norm", _HALF, "float16"),
    _large(2, "layer_norm", _HALF, "bfloat16"),
    _large(2, "unit_norm", _HALF, "bfloat16"),
    _large(3, "rms_norm", _BYTES, "float64", rows=4096),
    _large(3, "layer_norm", _BYTES, "float64", rows=4096),
    _large(3, "add_rms_norm", _BYTES),
    _large(3, "add_layer_norm", _BYTES),
    _large(3, "add_rms_norm", _BYTES, "bfloat16"),
    Case(4, "rms_norm", (4096, 4096), _TWICE, axis=0),
    Case(4, "layer_norm", (4096, 4096), _TWICE, axis=0),
    Case(4, "rms_norm", (32, 256, 56, 56), _ONCE, axis=1, quick=(8, 256, 56, 56)),
    Case(4, "layer_norm", (32, 256, 56, 56), _ONCE, axis=1, quick=(8, 256, 56, 56)),
    Case(4, "group_norm", (32, 256, 56, 56), _ONCE, axis=1, groups=32, quick=(8, 256, 56, 56)),
    Case(5, "rms_norm", (128, 4096), _CACHED),
    Case(5, "layer_norm", (128, 4096), _CACHED),
    Case(5, "add_rms_norm", (128, 4096), _CACHED),
    Case(5, "rms_norm", (8, 768), _CACHED),
    Case(5, "layer_norm", (8, 768), _CACHED),
    Case(6, "rms_norm", (1, 4096), _ONE_ROW, out=False),
    Case(6, "rms_norm", (1, 64), _ONE_ROW[:1], out=False),
    Case(6, "layer_norm", (1, 4096), _ONE_ROW, out=False),
    Case(6, "layer_norm", (1, 64), _ONE_ROW[:1], out=False),
    Case(7, "softmax", (16384, 4096), _ROWS, quick=(4096, 4096)),
    Case(7, "softmax", (4096, 4096), (), axis=0),
    Case(7, "softmax", (128, 4096), ()),
    Case(7, "rope", (1, 32, 4096, 128), _BYTES_OF_ROPE, quick=(1, 8, 4096, 128)),
    Case(8, "attention", (1, 8, 1024, 64), _PREFILL),
    Case(8, "attention", (1, 8, 1024, 64), _CAUSAL, causal=True),
    Case(8, "attention", (1, 32, 2048, 128), _PREFILL, quick=(1, 8, 1024, 128)),
    Case(8, "attention", (1, 32, 2048, 128), _CAUSAL, causal=True, quick=(1, 8, 1024, 128)),
    Case(9, "attention", (1, 32, 1, 128), _DECODE, keys=(8, 4096)),
    Case(9, "attention", (1, 32, 1, 128), _DECODE, "bfloat16", keys=(8, 4096)),
    Case(10, "attention", (1, 2, 16384, 64), _WINDOW, causal=True, window=512, quick=(1, 2, 4096, 64)),
    Case(11, "attention", (1, 8, 1024, 128), _HALF_RATE, "float16"),
    Case(11, "attention", (1, 8, 1024, 128), _HALF_RATE, "bfloat16"),
    Case(13, "attention", (1, 8, 1024, 64), (at_least("1 thread", 1.8),), peers=False),
    Case(13, "rms_norm", (2048, 4096), (at_least("1 thread", 1.8),), peers=False),
    Case(13, "layer_norm", (2048, 4096), (at_least("1 thread", 1.8),), peers=False),
    Case(13, "rms_norm", (8, 768), (at_most("1 thread", 1.1),), peers=False),
    Case(13, "rms_norm", (2048, 4096), (at_most("1 thread", 1.3),), peers=False, busy=True),
)

STARTS = (
    Start(14, "import fastnorm, after numpy", _IMPORT, (at_most("seconds", 0.05),)),
    Start(14, "first call, warm cache", _first_call("rms_norm", "float32"), (at_most("seconds", 0.4),)),
    Start(14, "first call, cold cache", _first_call("rms_norm", "float32"), (at_most("seconds", 2.0),), cold=True),
    Start(
        14, "first call of layer_norm, cold cache", _first_call("layer_norm", "float32"), (at_most("seconds", 2.0),), cold=True
    ),
    Start(14, "first call of attention, cold cache", _FIRST_ATTENTION, (at_most("seconds", 5.0),), cold=True),
)


def starts(size, only=()):
    """The starts for a size; none where `only` some functions are asked for."""
    if only:
        return ()
    return STARTS if size != "smoke" else tuple(start for start in STARTS if not start.cold)


def cases(size, only=()):
    """The cases for a size: "full"; "quick"; "smoke", which only shows that everything runs. `only` those of some functions."""
    chosen = [case for case in CASES if not only or case.function in only]
    if size == "full":
        return tuple(chosen)
    if size == "quick":
        return tuple(case._replace(shape=case.quick or case.shape) for case in chosen)
    return tuple(_tiny(case) for case in chosen if not case.data)


def _tiny(case):
    """A case of a few numbers."""
    small = lambda sizes: tuple(min(n, case.groups or 40) for n in sizes)  # noqa: E731
    return case._replace(shape=small(case.shape), keys=small(case.keys))
