"""One command for a machine with a GPU, of a few minutes: the tests on the device, then every kernel timed.

``python bench/gpu_session.py result.json [--minutes 8] [--no-tests]``. A figure is the median over rounds, by the device's own
events, of a result that was checked against float64 before. Each is written to the file at once, so that a run that is cut
short still tells what it has found. With ``FASTNORM_PTX_DIR`` no compiler is needed (``fastnorm warm --ptx``).
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

import fastnorm
from fastnorm._bench import attention_oracles, oracles

ROUNDS, CALLS = 11, 5
TESTS = [f"tests/test_cuda_{what}.py" for what in ("norms", "layouts", "attention", "tensor_cores")]
ROWS = [(16384, 4096), (65536, 1024), (1 << 20, 128), (64, 1 << 20), (128, 4096)]
DTYPES = ["float32", "float16", "bfloat16"]
HEADS = [  # (batch, heads, heads of keys, queries, keys, head size), options
    ((1, 32, 32, 2048, 2048, 128), {}),
    ((1, 32, 32, 2048, 2048, 128), {"is_causal": True}),
    ((1, 32, 8, 1, 4096, 128), {}),
    ((8, 32, 8, 1, 32768, 128), {}),
]
OTHERS = [  # what is along another axis, in groups, a sum, or turned: the function, and shapes of its arrays
    ("rms_norm", {"axis": 0}, [(8192, 8192)]),
    ("layer_norm", {"axis": 1}, [(32, 256, 56, 56)]),
    ("group_norm", {"num_groups": 32}, [(32, 256, 56, 56)]),
    ("add_rms_norm", {}, [(16384, 4096), (16384, 4096)]),
    ("rope", {}, [(1, 32, 4096, 128), (4096, 64), (4096, 64)]),
]
CHECKED = 4  # rows, or queries, of each result


class Session:
    """What is measured, and the file that it goes to."""

    def __init__(self, path, seconds):
        self.path, self.end, self.found = path, time.monotonic() + seconds, {"measured": []}

    def tell(self, **what):
        """Add to the file, and print a line."""
        if "work" in what:
            self.found["measured"].append(what)
            print("  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in what.values()), flush=True)
        else:
            self.found |= what
        self.path.write_text(json.dumps(self.found, indent=1))

    @property
    def over(self):
        return time.monotonic() > self.end


def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def seconds(run):
    """The median time of a call, by events on the current stream; and that of a call's start on the host."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    times, host = [], []
    for _ in range(ROUNDS):
        run()
        cupy.cuda.get_current_stream().synchronize()
        start.record()
        began = time.perf_counter()
        for _ in range(CALLS):
            run()
        host.append((time.perf_counter() - began) / CALLS)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / CALLS)
    return statistics.median(times), statistics.median(host)


def time_all(session, work, runs, moved):
    """Everybody's time for a piece of work; `moved` bytes are what it must read and write."""
    for name, run in runs.items():
        if session.over:
            return
        try:
            took, host = seconds(run)
        except Exception as error:  # somebody else's failure is worth a line, and no more
            session.tell(work=work, who=name, error=f"{type(error).__name__}: {error}"[:200])
            continue
        session.tell(work=work, who=name, seconds=took, gb_per_s=moved / took / 1e9, host_us=host * 1e6)


def is_right(session, work, result, wanted, dtype, roundings):
    """False for a result that is off by more than so many roundings of the largest number of a row, which is told."""
    unit = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    largest = np.abs(wanted).max(-1, keepdims=True)
    error = float((np.abs(result.astype(np.float64) - wanted) / largest).max() / unit)
    if not error <= roundings:
        session.tell(work=work, who="fastnorm", wrong=f"off by {error:.3g} roundings of {dtype}, allowed are {roundings}")
        session.tell(wrong=True)
    return error <= roundings


def rows(session, torch):
    """Norms and softmax of rows, beside the device's copy, CuPy's expressions and torch."""
    import cupy

    for shape in ROWS:
        for name in DTYPES:
            few = np.random.default_rng(0).standard_normal((CHECKED, shape[1]), np.float32).astype(dtype_of(name))
            x = cupy.asarray(np.tile(few, (-(-shape[0] // CHECKED), 1))[: shape[0]])
            out, weight = cupy.empty(x.shape, x.dtype), cupy.asarray(np.ones(shape[1], np.float32))
            for function, oracle in (
                ("rms_norm", oracles.rms_norm), ("layer_norm", oracles.layer_norm), ("softmax", attention_oracles.softmax)
            ):  # fmt: skip
                given = () if function == "softmax" else (weight,)
                run = functools.partial(getattr(fastnorm, function), x, *given, out=out)
                run()
                work = f"{function} {shape[0]}x{shape[1]} {name}"
                if not is_right(session, work, cupy.asnumpy(out[:CHECKED]), oracle(few), name, 8):
                    continue
                runs = {"fastnorm": run, "copy": functools.partial(cupy.copyto, out, x)}
                if function == "rms_norm" and name == "float32":
                    runs["cupy"] = lambda x=x: x / cupy.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
                if torch is not None:
                    runs["torch"] = torch_rows(torch, function, shape, name)
                time_all(session, work, runs, 2 * x.nbytes)
                if session.over:
                    return


def others(session):
    """Other functions and axes, beside the device's copy of what they read and write."""
    import cupy

    for function, options, shapes in OTHERS:
        for name in DTYPES:
            generator = np.random.default_rng(0)
            host = [generator.standard_normal(shape, np.float32).astype(dtype_of(name)) for shape in shapes]
            arrays = [cupy.asarray(a) for a in host]
            if function == "rope":
                host[1:] = fastnorm.rope_tables(np.arange(shapes[0][-2]), shapes[0][-1])
                arrays[1:] = map(cupy.asarray, host[1:])
            out = [cupy.empty(a.shape, a.dtype) for a in (arrays[:2] if function.startswith("add_") else arrays[:1])]
            targets = dict(zip(("out", "residual_out"), out, strict=False))
            run = functools.partial(getattr(fastnorm, function), *arrays, **options, **targets)
            run()
            axis, work = options.get("axis", -1), f"{function} {'x'.join(map(str, shapes[0]))} {options or ''} {name}"
            if function == "rope":
                wanted, result = (
                    attention_oracles.rope(*(a[..., :CHECKED, :] for a in host)),
                    cupy.asnumpy(out[0])[..., :CHECKED, :],
                )
            else:
                some = (slice(None), slice(CHECKED)) if options.get("axis") == 0 else slice(CHECKED)
                wanted = getattr(oracles, function)(*(a[some] for a in host), **options)
                wanted, result = wanted[0] if isinstance(wanted, tuple) else wanted, cupy.asnumpy(out[0])[some]
                if "num_groups" in options:  # a group is a row
                    wanted, result = (a.reshape(len(a), options["num_groups"], -1) for a in (wanted, result))
            if not is_right(session, work, *(np.moveaxis(a, axis, -1) for a in (result, wanted)), name, 8):
                continue
            moved = sum(a.nbytes for a in (arrays[:1] if function == "rope" else arrays))

            def copy(out=out, arrays=arrays):
                for target, array in zip(out, arrays, strict=False):
                    cupy.copyto(target, array)

            time_all(session, work, {"fastnorm": run, "copy": copy}, 2 * moved)
            if session.over:
                return


def torch_rows(torch, function, shape, name):
    x = torch.randn(shape, device="cuda", dtype=getattr(torch, name))
    weight = torch.ones(shape[1], device="cuda", dtype=x.dtype)
    if function == "softmax":
        return functools.partial(torch.softmax, x, -1)
    return functools.partial(getattr(torch.nn.functional, function), x, shape[1:], weight)


def heads(session, torch):
    """Attention, beside torch's."""
    import cupy

    for (batch, n_heads, key_heads, n, n_keys, size), options in HEADS:
        for name in DTYPES:
            generator = np.random.default_rng(0)
            q, k, v = (
                generator.standard_normal(shape, np.float32).astype(dtype_of(name))
                for shape in ((batch, n_heads, n, size), (batch, key_heads, n_keys, size), (batch, key_heads, n_keys, size))
            )
            on_device = [cupy.asarray(a) for a in (q, k, v)]
            run = functools.partial(fastnorm.attention, *on_device, **options)
            result = cupy.asnumpy(run())[-1, -1, -1:]
            wanted = attention_oracles.attention(q[-1, -1:, -1:], k[-1, -1:], v[-1, -1:], **options)[0][0]
            work = f"attention {batch}x{n_heads}/{key_heads}x{n}x{n_keys}x{size} {name} {' '.join(options)}"
            if not is_right(session, work, result, wanted, name, 200 if name == "float32" else 8):
                continue
            runs = {"fastnorm": run}
            if torch is not None:
                tensors = [torch.randn(a.shape, device="cuda", dtype=getattr(torch, name)) for a in (q, k, v)]
                attention = torch.nn.functional.scaled_dot_product_attention
                runs["torch"] = functools.partial(attention, *tensors, **options, enable_gqa=n_heads != key_heads)
            time_all(session, work, runs, q.nbytes * 2 + k.nbytes * 2)
            if session.over:
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--no-tests", action="store_true")
    options = parser.parse_args()
    try:
        import cupy

        if not cupy.is_available():
            raise SystemExit("gpu_session: CuPy finds no device")
    except ImportError:
        raise SystemExit("gpu_session: needs CuPy") from None
    try:
        import torch
    except ImportError:
        torch = None
    session = Session(options.file, 60 * options.minutes)
    device = cupy.cuda.runtime.getDeviceProperties(0)
    session.tell(device=device["name"].decode(), driver=cupy.cuda.runtime.driverGetVersion(), cupy=cupy.__version__)
    if not options.no_tests:
        command = [sys.executable, "-m", "pytest", "-q", "--backend", "cupy", *TESTS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30 * options.minutes, check=False)
            session.tell(tests=done.stdout[-2000:], tests_passed=done.returncode == 0)
        except subprocess.TimeoutExpired:
            session.tell(tests="not finished in half of the time")
    heads(session, torch)
    rows(session, torch)
    others(session)
    session.tell(complete=not session.over)
    return 1 if "wrong" in session.found else 0


if __name__ == "__main__":
    sys.exit(main())
