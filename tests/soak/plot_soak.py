"""Draws what a soak has recorded; needs matplotlib.

usage: plot_soak.py SOAK.json FILE.png
"""

import itertools
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

PANELS = {
    "memory, MB": {"memory_mb": "anonymous", "heap_mb": "allocated", "shared_mb": "shared with clients"},
    "file descriptors, threads": {"descriptors": "descriptors", "threads": "threads"},
    "probe, ms": {"probe_median_ms": "median", "probe_p99_ms": "99th percentile"},
    "prefills per second": {"prefills": ""},
}


def main() -> None:
    file, picture = sys.argv[1:]
    samples = json.loads(pathlib.Path(file).read_text())["samples"]
    unit, length = ("hours", 3600) if samples[-1]["seconds"] >= 3600 else ("minutes", 60)
    times = [sample["seconds"] / length for sample in samples]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 5.5), layout="constrained", sharex=True)
    for axis, (title, series) in zip(axes.flat, PANELS.items(), strict=True):
        for name, label in series.items():
            if name not in samples[0]:  # recorded before there was one
                continue
            values = [sample[name] for sample in samples]
            if name == "prefills":
                pairs = itertools.pairwise(samples)
                values = [0] + [(b[name] - a[name]) / (b["seconds"] - a["seconds"]) for a, b in pairs]
            axis.plot(times, values, linewidth=1, label=label)
        axis.set_title(title, fontsize=10, loc="left")
        axis.grid(alpha=0.3)
        if "probe" in title:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        if len(series) > 1:
            axis.legend(fontsize=8)
    figure.supxlabel(unit, fontsize=9)
    figure.savefig(picture)


main()
