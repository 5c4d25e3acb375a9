"""`fastnorm bench`: measure, show, and write down."""

import json
import os
import pathlib
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import fastnorm

from .._config import processor_name, show_config
from . import table
from .cases import CASES, STARTS, cases, starts
from .measure import WrongResult, measure, measure_start
from .peers import PEERS, versions

PICTURES = (".png", ".svg", ".pdf")
BUSY = 0.3  # cores in use by others from which they are mentioned


def bench(options):
    """Run all cases; the exit status: 2 if it cannot be done, 1 if a result was wrong, and then nothing of it is shown."""
    size = "smoke" if options.smoke else "quick" if options.quick else "full"
    threads = options.threads or fastnorm.get_num_threads()
    try:
        peers, only = chosen(options.peers), functions(options.only)
        check_files(options)
    except ValueError as error:
        print(f"fastnorm bench: {error}", file=sys.stderr)
        return 2
    console, busy = Console(), busy_cores()
    try:
        results = run(size, threads, peers, only)
    except WrongResult as wrong:
        print(f"fastnorm bench: {wrong}", file=sys.stderr)
        return 1
    console.print(table.speeds(results, peers))
    console.print(table.targets(results))
    for line in table.remarks(results):
        console.print(f"- {line}", highlight=False, markup=False)
    console.print(footnote(size, threads, busy), highlight=False, markup=False)
    if options.json:
        chose = {"size": size, "threads": threads, "peers": list(peers), "only": list(only)}
        told = table.as_json(results, show_config(mode="dicts") | {"busy_cores": busy}, chose, versions())
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
    if options.plot:
        from .plot import plot

        plot(results, options.plot)
    return 0


def run(size, threads, peers, only=()):
    """Results of all cases, with a progress bar where somebody watches; of `only` some functions, and then of no `Start`."""
    work = [*cases(size, only), *starts(size, only)]
    results = []
    console = Console(stderr=True)
    columns = SpinnerColumn(), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn()
    # Drawn between the rounds, never during one: a thread that draws ten times a second would be measured, too.
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(work))

        def advance(share):
            progress.update(task, completed=len(results) + share, refresh=True)

        for case in work:
            progress.update(task, description=case.title, completed=len(results), refresh=True)
            if case in STARTS:
                results.append(measure_start(case, size))
            else:
                results.append(measure(case, size, threads, peers, advance))
    return results


def chosen(names):
    """The peers that the command line asks for."""
    if names == "all":
        return tuple(PEERS)
    if names == "none":
        return ()
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise ValueError(f"--peers: no peer named {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return tuple(wanted)


def functions(names):
    """The functions that the command line asks for; none for all."""
    wanted = tuple(name.strip() for name in names.split(",") if name.strip())
    known = dict.fromkeys(case.function for case in CASES)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"--only: no case of {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def check_files(options):
    """Complain before minutes of work about files that could not be written after it."""
    for name, path in (("--json", options.json), ("--plot", options.plot)):
        if path is None:
            continue
        path = pathlib.Path(path)
        if path.is_dir():
            raise ValueError(f"{name}: {path} is a folder")
        if not path.parent.is_dir():
            raise ValueError(f"{name}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{name}: {path} cannot be written")
        if name == "--plot" and path.suffix not in PICTURES:
            raise ValueError(f"--plot: the name must end in {', '.join(PICTURES)}, got {path}")
    if options.plot:
        try:
            import matplotlib
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install '.[bench]' in a checkout of fastnorm") from None
        assert matplotlib


def footnote(size, threads, busy):
    """Under what conditions the figures hold."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    lines = [
        f"\nfastnorm {fastnorm.__version__}, {threads} thread{'s' if threads > 1 else ''}, {processor_name()}; {installed}.",
        "Every result was checked against float64 before it was timed. Ratios are medians over rounds in which all were timed "
        "in turn; 'best' is the ratio of the best times.",
    ]
    if size != "full":
        lines.append("A quick run: take figures to publish from a full one.")
    if busy > BUSY:
        lines.append(f"Others were at work on this machine ({busy:.1f} cores in use before): take no figures from this run.")
    return "\n".join(lines)


def busy_cores(seconds=0.4):
    """Cores that others keep busy just now; 0 where the system does not say. A load average would count our own start."""
    try:
        before = _ticks()
        time.sleep(seconds)
        after = _ticks()
    except (OSError, ValueError):
        return 0.0
    total, idle = (b - a for a, b in zip(before, after, strict=True))
    return os.cpu_count() * (total - idle) / total if total else 0.0


def _ticks():
    with open("/proc/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]  # all; idle, and idle waiting for a disk
