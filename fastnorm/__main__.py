"""The commands: ``fastnorm apply``, ``bench``, ``warm`` and ``info``, also as ``python -m fastnorm ...``."""

import argparse
import signal
import sys

from . import __version__
from ._apply.calls import FUNCTIONS
from ._apply.command import apply
from ._apply.progress import shown


def main(arguments=None):
    """Run a command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print(f"fastnorm {options.command}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _parser():
    parser = argparse.ArgumentParser(
        prog="fastnorm", description="Transformer normalisation and attention for NumPy and CuPy arrays."
    )
    parser.add_argument("--version", action="version", version=f"fastnorm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    bench = _command(commands, "bench", "how fast the functions are here, beside a copy and other libraries")
    quick = "smaller arrays, fewer rounds: about a minute, and two more where kernels have yet to be compiled"
    bench.add_argument("--quick", action="store_true", help=quick)
    bench.add_argument("--json", metavar="FILE", help="also write everything measured to FILE")
    bench.add_argument("--plot", metavar="FILE", help="also draw the rates; .png, .svg or .pdf")
    bench.add_argument("--peers", metavar="NAMES", default="all", help="other libraries: all, none, or such as numpy,torch")
    bench.add_argument("--only", metavar="NAMES", default="", help="functions, such as layer_norm,add_rms_norm (default: all)")
    bench.add_argument("--threads", metavar="N", type=_positive, help="threads, for every library (default: this library's)")
    bench.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)  # tiny arrays, for the tests
    bench.set_defaults(run=_bench)

    warm = _command(commands, "warm", "compile ahead what a program will need, and keep it in the cache")
    warm.add_argument("functions", nargs="*", metavar="FUNCTION", help="such as rms_norm (default: all)")
    warm.add_argument("--dtypes", metavar="NAMES", default="float32", help="such as float32,bfloat16 (default: float32)")
    warm.add_argument("--ptx", metavar="DIR", help="compile for GPUs instead, into DIR, which FASTNORM_PTX_DIR then names")
    newer = "of GPUs, such as 80,90 (default: 80, whose code newer ones run, too)"
    warm.add_argument("--capabilities", metavar="NUMBERS", type=_capabilities, help=newer)
    warm.set_defaults(run=_warm)

    on_file = _command(commands, "apply", "a norm or softmax of an array in a .npy file, in constant memory")
    on_file.add_argument("function", metavar="FUNCTION", choices=FUNCTIONS, help=", ".join(FUNCTIONS))
    on_file.add_argument("input", metavar="IN.npy", help="the .npy file of x")
    on_file.add_argument("output", metavar="OUT.npy", nargs="?", help="the file to write; it appears once it is whole")
    on_file.add_argument("--weight", metavar="W.npy", help="the file of the weight")
    on_file.add_argument("--bias", metavar="B.npy", help="the file of the bias")
    on_file.add_argument("--residual", metavar="R.npy", help="the file of what is added to x")
    on_file.add_argument("--residual-out", metavar="H.npy", help="also write the sum, to this file")
    axes = "the axis to normalise along, or the last few: --axis 1,2 or --axis=-2,-1 (default: that of the function)"
    on_file.add_argument("--axis", metavar="N", type=_axes, help=axes)
    on_file.add_argument("--num-groups", metavar="G", type=int, help="the number of groups of channels")
    on_file.add_argument("--eps", metavar="E", type=float, help="default: that of the function")
    on_file.add_argument("--weight-offset", metavar="C", type=float, help="added to the weight (default: 0)")
    on_file.add_argument("--scale", metavar="S", type=float, help="factor of the scores (default: 1)")
    warning = "write to IN.npy itself; an interruption leaves its first chunks normalised, which cannot be undone"
    on_file.add_argument("--in-place", action="store_true", help=warning)
    cluster = on_file.add_mutually_exclusive_group()
    cluster.add_argument("--workers", metavar="N", type=_positive, help="share the work among N processes of this machine")
    there = "or among the workers of a Dask scheduler, such as tcp://10.0.0.1:8786, who see the same files"
    cluster.add_argument("--scheduler", metavar="ADDRESS", help=there)
    on_file.set_defaults(run=apply)

    info = _command(commands, "info", "versions, processor, threads, cache folder and GPU")
    info.set_defaults(run=_info)
    return parser


def _command(commands, name, what):
    """The parser of a command, which its own help and that of all describe by the same words."""
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")


def _positive(text):
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _axes(text):
    """One axis, or a tuple of several."""
    try:
        axes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, or several with commas between them, got {text!r}") from None
    return axes if len(axes) > 1 else axes[0]


def _capabilities(text):
    """Compute capabilities as PTX writes them: 80 of 8.0."""
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, such as 80 for 8.0, got {text!r}")
    return numbers


def _bench(options):
    try:
        import rich
    except ImportError:
        print("fastnorm bench needs rich, onnx and others: pip install '.[bench]' in a checkout of fastnorm", file=sys.stderr)
        return 2
    assert rich
    from ._bench.command import bench

    return bench(options)


def _warm(options):
    if options.ptx:
        return _write_ptx(options)
    from ._compile import cache_folder, kernel
    from .warming import kernels_among

    if options.capabilities:
        print("fastnorm warm: --capabilities goes with --ptx", file=sys.stderr)
        return 2
    try:
        names = kernels_among(options.functions or None, options.dtypes.split(","))
    except ValueError as error:
        print(f"fastnorm warm: {error}", file=sys.stderr)
        return 2
    with shown(len(names), "kernels") as advance:
        for name in names:
            kernel(*name)
            advance()
    folder = cache_folder()
    where = f" in {folder.path}" if folder.usable else f", but only in this process: {folder.reason}"
    print(f"{len(names)} kernels are ready{where}")
    return 0 if folder.usable else 1


def _write_ptx(options):
    try:
        from ._cuda import launch
        from ._cuda.needed import FUNCTIONS, kernels_for
    except ImportError as error:
        needs = "--ptx needs CuPy and numba-cuda: pip install '.[cuda13]', or '.[cuda12]', in a checkout of fastnorm"
        print(f"fastnorm warm: {needs} ({error})", file=sys.stderr)
        return 2
    from ._vocabulary import STORED
    from .warming import names_among

    try:
        functions = names_among("functions", options.functions or FUNCTIONS, FUNCTIONS)
        dtypes = names_among("dtypes", options.dtypes.split(","), tuple(STORED))
        wanted = dict.fromkeys(
            (name, capability)
            for capability in options.capabilities or ("80",)
            for function in functions
            for dtype in dtypes
            for name in kernels_for(function, dtype, capability)
        )
        with shown(len(wanted), "kernels") as advance:
            for one in wanted:
                launch.write_ahead(options.ptx, [one])
                advance()
    except (OSError, ValueError) as error:
        print(f"fastnorm warm: {error}", file=sys.stderr)
        return 2
    use = "a process whose FASTNORM_PTX_DIR is that folder compiles none of them"
    print(f"{len(wanted)} kernels are ready in {options.ptx}; {use}")
    return 0


def _info(options):
    from ._config import show_config

    show_config()
    return 0


if __name__ == "__main__":
    sys.exit(main())
