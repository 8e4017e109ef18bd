"""Draws the dashboard's panels as Prometheus answers them, after a while of traffic on a real server.

Needs the package `prometheus` and matplotlib.

usage: plot_dashboard.py GDPCACHED GDPCACHE PREFIX_REUSE SOURCE-DIRECTORY SECONDS FILE.png
"""

import collections
import math
import re
import sys
import time

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker
from observed_server import ObservedServer, dashboard_queries

COLUMNS = 4
FORMATS = {"bytes": "B", "s": "s", "dtdurations": "s"}


def legend(query, metric):
    return re.sub(r"\{\{(\w+)\}\}", lambda label: metric.get(label.group(1), ""), query.legend)


def main():
    *programs, source, seconds, file = sys.argv[1:]
    panels = collections.defaultdict(list)
    units = {}
    with ObservedServer(*programs, source) as server:
        server.wait_for_samples(int(seconds))
        now = time.time()
        for query in dashboard_queries(source, "10s"):
            units[query.panel] = query.unit
            for one in server.query(query.expression, start=now - int(seconds) + 10, end=now, step=1):
                points = [(at - now, float(value)) for at, value in one["values"]]
                panels[query.panel].append((legend(query, one["metric"]), points))
    rows = math.ceil(len(panels) / COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(4.2 * COLUMNS, 2.5 * rows), layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, series) in zip(axes.flat, panels.items(), strict=False):
        series.sort(key=lambda one: -max(value for _, value in one[1]))
        for place, (name, points) in enumerate(series):
            # matplotlib leaves names that begin with an underscore out of the legend: only the largest are named.
            axis.plot(*zip(*points, strict=True), linewidth=1.2, label=name if place < 6 else f"_{name}")
        axis.set_title(title, fontsize=10, loc="left")
        axis.yaxis.set_major_formatter(ticker.EngFormatter(unit=FORMATS.get(units[title], "")))
        axis.tick_params(labelsize=7)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if len(series) > 1:
            axis.legend(fontsize=6, loc="best")
    figure.supxlabel("seconds before now", fontsize=9)
    figure.savefig(file, dpi=80)


main()
