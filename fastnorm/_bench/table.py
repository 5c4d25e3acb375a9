"""The results for a reader: two tables that fit 80 columns, and JSON that says the same and more.

Plain ASCII and no meaning in colour alone, so that a pipe, a log file and NO_COLOR lose nothing.
"""

import statistics

from rich import box
from rich.table import Table

from .measure import met

SCHEMA = 1  # of the JSON: rises when a name in it changes its meaning
_HEADERS = {  # short enough for 80 columns
    "onnxruntime": "onnx-\nruntime",
    "torch": "torch\nsame",
    "torch layer_norm": "torch\nlayer",
    "scikit-learn": "scikit-\nlearn",
}


def speeds(results, peers):
    """Table of rates: GB/s, per cent of copy, and how many times as fast as each peer."""
    gpu = any("gpu" in r.seconds for r in results)
    peers = [peer for peer in peers if any(peer in r.seconds for r in results)]  # the remarks name those that are absent
    table = _table("Speed: beside the fastest copy, and how many times as fast as others")
    table.add_column("work", overflow="fold", ratio=1)
    for header in ["time", "GB/s", "% of\ncopy", *(_HEADERS.get(p, p) for p in peers), *(["GPU\nGB/s"] if gpu else [])]:
        table.add_column(header, justify="right", no_wrap=True)
    for result in results:
        if not result.bytes:
            if result.skipped:
                table.add_row(result.case.title, "-", *["-"] * (2 + len(peers) + gpu))
            continue
        took = statistics.median(result.seconds["fastnorm"])
        of_copy = result.speed("fastnorm", "copy")
        cells = [duration(took), f"{result.bytes / took / 1e9:.1f}", f"{100 * of_copy[0]:.0f}" if of_copy else "-"]
        for peer in peers:
            speed = result.speed("fastnorm", peer)
            cells.append(f"{figure(speed[0])}x" if speed else "-")
        if gpu:
            seconds = result.seconds.get("gpu")
            cells.append(f"{result.bytes / statistics.median(seconds) / 1e9:.0f}" if seconds else "-")
        table.add_row(result.case.title, *cells)
    return table


def targets(results):
    """Table of targets: what was to be reached, what was reached (median of the rounds, best), and whether that is enough."""
    table = _table("Targets: median of the rounds, and by the best times")
    table.add_column("work", overflow="fold", ratio=1)
    for header, justify in [("measure", "left"), ("target", "right"), ("reached", "right"), ("best", "right"), ("met", "left")]:
        table.add_column(header, justify=justify, no_wrap=True)
    for result in results:
        if result.skipped:
            table.add_row(result.case.title, "not measured", "-", "-", "-", "-")
            continue
        for i, target in enumerate(result.case.targets):
            goal, reached = f"{target.relation} {target.limit:g}", result.reached(target)
            if reached is None:
                cells = ["-", "-", "-"]
            else:
                enough = met(target, reached)
                cells = [figure(reached[0]), figure(reached[1]), "yes" if enough else "[bold]NO[/bold]"]
            table.add_row(result.case.title if i == 0 else "", wording(target), goal, *cells)
    return table


def remarks(results):
    """Lines on what a '-' in the tables means, each reason once."""
    lines = [f"{r.case.title}: not measured, {r.skipped}" for r in results if r.skipped]
    where = {}
    for result in results:
        for name, reason in result.absent.items():
            where.setdefault((name, reason), []).append(result.case.title)
    who = {}
    for (name, reason), titles in where.items():
        everywhere = not any(name in r.seconds for r in results)
        who.setdefault((reason, "" if everywhere else f" ({', '.join(titles)})"), []).append(name)
    return lines + [f"{', '.join(names)}: {reason}{titles}" for (reason, titles), names in who.items()]


def wording(target):
    """A target's measure in words."""
    if target.against == "seconds":
        return "seconds"
    if target.against == "copy":
        return "speed / copy"
    return f"x {target.against}" if target.relation == ">=" else f"time / {target.against}"


def duration(seconds):
    """Three digits and a unit."""
    for unit, size in [("s", 1), ("ms", 1e-3), ("us", 1e-6)]:
        if seconds >= size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds / 1e-9)} ns"


def figure(number):
    """Three digits, or the whole part if that is longer."""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.{1 if number >= 9.995 else 2 if number >= 0.0995 else 3}f}"


def _table(title):
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)


# -------------------------------------------------------------------------------------------------------------- JSON
def as_json(results, machine, options, libraries):
    """All that was measured, as plain dicts and lists."""
    return {
        "schema": SCHEMA,
        "machine": machine,
        "options": options,
        "libraries": libraries,
        "cases": [_case(result) for result in results],
    }


def _case(result):
    case = result.case
    told = {"row": case.row, "title": case.title, "skipped": result.skipped, "absent": result.absent}
    if hasattr(case, "shape"):
        told |= {"function": case.function, "shape": list(case.shape), "dtype": case.dtype, "axis": case.axis}
        told |= {"bytes": result.bytes, "copy": result.copy()}
    told["contenders"] = {name: _contender(result, name) for name in result.seconds}
    told["targets"] = [_target(result, target) for target in case.targets]
    return told


def _contender(result, name):
    seconds = result.seconds[name]
    median = statistics.median(seconds)
    told = {"median_seconds": median, "best_seconds": min(seconds), "rounds": len(seconds)}
    if result.bytes:
        told["gb_per_s"] = result.bytes / median / 1e9
    speed = result.speed("fastnorm", name)
    if speed and name != "fastnorm":
        told["fastnorm_is_times_as_fast"] = {"median": speed[0], "best": speed[1]}
    return told


def _target(result, target):
    reached = result.reached(target)
    told = {"against": target.against, "relation": target.relation, "limit": target.limit}
    if reached is None:
        return told | {"median": None, "best": None, "met": None}
    return told | {"median": reached[0], "best": reached[1], "met": met(target, reached)}


__all__ = ["as_json", "remarks", "speeds", "targets"]
