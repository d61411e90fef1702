"""Plot the cost of attention against length for every backend, in a row of panels for each measured device.

python -m benchmarks.plots [--results benchmarks/results] [--output docs/images/attention_cost.png]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.about import parser_of
from diffclip.report.style import write_figure

KINDS = {"forward": "forward", "both": "forward and backward"}
# operator → (color after Okabe and Ito, marker, line)
STYLES = {
    "plain auto": ("#000000", "o", "--"),
    "differential auto": ("#0072B2", "s", "-"),
    "differential triton": ("#CC79A7", "D", "-"),
    "differential sdpa": ("#009E73", "^", "-"),
    "differential timm": ("#E69F00", "v", "-"),
    "differential eager": ("#D55E00", "X", "-"),
}


def draw(results: list[dict[str, Any]]) -> Figure:
    """Draw microseconds per token and layer against tokens; both axes are logarithmic."""
    figure = Figure((10, 4.4 * len(results)))
    grid = figure.subplots(len(results), 2, squeeze=False, sharex=True)
    for panels, result in zip(grid, results, strict=True):
        about = result["about"]
        threads = f", {about['threads']} threads" if about["device"] == "x86_64" else ""
        device = f"{about['device']}{threads}, {about['dtype']}"
        for panel, (kind, title) in zip(panels, KINDS.items(), strict=True):
            for name, (color, marker, line) in STYLES.items():
                if points := _points(result, name, kind):
                    look = {"color": color, "marker": marker, "markersize": 5, "label": name}
                    panel.plot(*zip(*points, strict=True), line, **look)
            panel.set(xscale="log", yscale="log", title=f"{device}: {title}")
            panel.grid(True, which="major", alpha=0.3)
            lengths = sorted({entry["shape"]["tokens"] for entry in result["shapes"].values()})
            ticks = [n for n in lengths if n not in (64, 512, 2048)]  # too near others
            panel.set_xticks(ticks, [str(n) for n in ticks], rotation=45)
            panel.minorticks_off()
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
        panels[0].set_ylabel("µs a token and layer")
    for panel in grid[-1]:
        panel.set_xlabel("tokens")
    grid[0][0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure


def _points(result: dict[str, Any], name: str, kind: str) -> list[tuple[int, float]]:
    points = []
    for entry in result["shapes"].values():
        row, shape = entry["rows"].get(name, {}), entry["shape"]
        if kind in row:
            microseconds = 1000 * row[kind]["median_ms"] / (shape["batch"] * shape["tokens"])
            points.append((shape["tokens"], microseconds))
    return sorted(points)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--output", type=Path, default=Path("docs/images/attention_cost.png"))
    options = parser.parse_args()
    files = sorted(options.results.glob("attention_curve_*.json"))
    if not files:
        raise SystemExit(f"no curve in {options.results}: run python -m benchmarks.attention --curve")
    figure = draw([json.loads(file.read_text(encoding="utf-8")) for file in files])
    write_figure(options.output, figure)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
