"""The results as a picture: a group of bars a case, the rate of the fastest copy as a line across it."""

import statistics

from matplotlib.figure import Figure

from .peers import COPIES

COLOURS = {"fastnorm": "#d62728", "gpu": "#7f2728"}  # the others take matplotlib's cycle, in their order
BAR = 0.8  # of the room of a case


def plot(results, path):
    """Write the rates of all cases to an image file; the ending of its name decides the format."""
    shown = [r for r in results if r.copy() and r.case.peers]
    names = list(dict.fromkeys(name for r in shown for name in r.seconds if name not in COPIES))
    figure = Figure(figsize=(9, 1.2 + 0.16 * len(names) * len(shown)), layout="constrained")
    axes = figure.subplots()
    colours = {name: COLOURS.get(name, f"C{(0, 1, 2, 4, 5, 6, 7, 8, 9)[i % 9]}") for i, name in enumerate(names)}
    for name_index, name in enumerate(names):
        places = [i for i, r in enumerate(shown) if name in r.seconds]
        rates = [_rate(shown[i], name) for i in places]
        heights = [i + BAR * ((name_index + 0.5) / len(names) - 0.5) for i in places]
        axes.barh(heights, rates, BAR / len(names), label=name, color=colours[name])
    for i, result in enumerate(shown):
        label = "copy" if i == 0 else None
        axes.plot([_rate(result, result.copy())] * 2, [i - BAR / 2, i + BAR / 2], color="black", linewidth=1.2, label=label)
    axes.set_yticks(range(len(shown)), [r.case.title for r in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("GB/s: the input read once and the output written once, median of the rounds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def _rate(result, name):
    return result.bytes / statistics.median(result.seconds[name]) / 1e9
