"""The tables of docs/performance.md between their markers, from the JSON files that the benchmarks wrote.

    python -m benchmarks.tables [docs/performance.md] [--results benchmarks/results]

What no file tells is given as not measured yet, with the command that measures it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.about import largest, parser_of
from benchmarks.targets import targets
from diffclip.files import write_text

Results = dict[str, dict[str, Any]]
UNITS = {"bandwidth": ("TB/s", 1e12), "operations": ("TFLOP/s", 1e12), "exponentials": ("T/s", 1e12)}


def read_results(folder: Path) -> Results:
    """Name of a file without its ending → what is in it."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def attention(results: Results, device: str) -> list[str]:
    """Times, ratios and shares of the floor by shape and operator."""
    own = [result for name, result in results.items() if name.startswith(f"attention_{device}_")]
    return [line for result in own for line in (*_attention(result), "")] or [_missing(device)]


def _attention(result: dict[str, Any]) -> list[str]:
    about = result["about"]
    memory = any(
        "peak_bytes" in row.get("both", {})
        for entry in result["shapes"].values()
        for row in entry["rows"].values()
    )
    lines = [f"`{about['command']}`, {describe(about)}, {about['dtype']}. Ratios are to `plain auto`.", ""]
    for what, source in result["ceilings"]["sources"].items():
        unit, scale = UNITS[what]
        lines.append(f"- ceiling of {what}: {result['ceilings'][what] / scale:.3g} {unit}, {source}")
    head = ["shape", "operator", "forward ms", "ratio", "floor"]
    head += ["forward and backward ms", "ratio", "floor", "backward ms", "ratio", "floor"]
    lines += ["", *head_of(head + ["peak MiB"] * memory)]
    absent: dict[str, str] = {}
    for name, entry in result["shapes"].items():
        rows = entry["rows"]
        for operator, row in rows.items():
            if "why" in row and row["why"].startswith("the inputs are on"):
                absent[operator] = row["why"]
                continue
            cells = [f"{name}, B {entry['shape']['batch']}, N {entry['shape']['tokens']}", operator]
            if "why" in row:
                lines.append(row_of([*cells, row["why"]]))
                continue
            for kind in ("forward", "both", "backward"):
                found, plain = row[kind], rows["plain auto"].get(kind)
                spread = f" ± {(found['high_ms'] - found['low_ms']) / 2:.2g}" if "low_ms" in found else ""
                ratio = f"{found['median_ms'] / plain['median_ms']:.2f}" if plain else "–"
                share = f"{found['floor_share']:.0%}" if "floor_share" in found else "–"
                cells += [f"{found['median_ms']:.3g}{spread}", ratio, share]
            if memory:
                cells.append(f"{row['both']['peak_bytes'] / 2**20:.0f}")
            lines.append(row_of(cells))
    return lines + [f"\n`{operator}` did not run: {why}." for operator, why in absent.items()]


def training(results: Results, device: str) -> list[str]:
    """Samples a second, memory and the share of waiting for data by model."""
    lines: list[str] = []
    for name, result in results.items():
        if name.startswith(f"training_{device}_") and "sections" in result:
            about = result["about"]
            memory = "kept GiB" if device == "cpu" else "peak GiB"
            lines += [
                f"`{about['command']}`, {describe(about)}, {about['size']}, {about['precision']}; "
                "batches are made up but for training from shards, which our loader feeds.",
                "",
                *head_of(
                    ["step", "model", "samples a second", "to CLIP", memory, "to CLIP", "waiting for data"]
                ),
            ]
            for entry in result["sections"]:
                lines += _section(entry)
            lines.append("")
    return lines or [_missing(device)]


def _section(entry: dict[str, Any]) -> list[str]:
    step = f"{entry['kind']}, batch {entry['batch']}"
    step += f", {_count(entry['workers'], 'worker')}" if "workers" in entry else ""
    step += f", compiled ({entry['compiled']})" if entry["compiled"] else ""
    # those that are fed do not take turns
    reference = {} if "workers" in entry else entry["rows"].get("CLIP", {})
    lines = []
    for name, row in entry["rows"].items():
        if "why" in row:
            lines.append(row_of([step, name, row["why"]]))
            continue
        held = "peak_bytes" if row.get("peak_bytes") else "kept_bytes"
        cells = [step, name, f"{row['samples_per_second']:.1f} ± {(row['high'] - row['low']) / 2:.1f}"]
        cells.append(_ratio(row, reference, "samples_per_second", 2))
        cells.append(f"{row[held] / 2**30:.2f}" if held in row else "–")
        cells.append(_ratio(row, reference, held, 3))
        cells.append(f"{row['data_wait']:.1%}" if "data_wait" in row else "–")
        lines.append(row_of(cells))
    return lines


def _ratio(row: dict[str, Any], reference: dict[str, Any], what: str, digits: int) -> str:
    return f"{row[what] / reference[what]:.{digits}f}" if row.get(what) and reference.get(what) else "–"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def loader(results: Results, device: str) -> list[str]:
    """Our loader beside OpenCLIP's: samples a second and core, where the time goes, memory over an epoch."""
    result = results.get("loader")
    if result is None:
        return ["Not measured yet: `python -m benchmarks.loader`."]
    about, data = result["about"], result["data"]
    lines = [
        f"`{about['command']}`, {describe(about)}, batch {about['batch']}; {data['samples']} samples in "
        f"{data['shards']} shards (made up), {data['image_bytes'] / 1000:.0f} KB an image.",
        "",
        "| workers | loader | samples a second and core | to OpenCLIP | samples a second | to OpenCLIP |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for workers, entry in result["workers"].items():
        for name in ("ours", "OpenCLIP"):
            row = entry[name]
            if "why" in row:
                lines.append(row_of([workers, name, row["why"]]))
                continue
            cells = [workers, name]
            for kind in ("per_core", "per_second"):
                ratio = entry.get("ratio", {}).get(kind) if name == "ours" else None
                cells += [_spread(row[kind], 0), _spread(ratio, 2) if ratio else "–"]
            lines.append(row_of(cells))
    return [*lines, "", *_parts(result["breakdown"]), "", *_memory(result["workers"])]


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} ± {(found['high'] - found['low']) / 2:.{digits}f}"


def _parts(breakdown: dict[str, dict[str, Any]]) -> list[str]:
    lines = head_of(["loader", "part", "µs of processor time a sample", "share"])
    for name, row in breakdown.items():
        if "why" in row:
            lines.append(row_of([name, row["why"]]))
            continue
        lines += [
            row_of([name, part, f"{value:.0f}", f"{value / row['all']:.0%}"]) for part, value in row.items()
        ]
    return lines


def _memory(workers: dict[str, dict[str, Any]]) -> list[str]:
    lines = head_of(["workers", "loader", "memory over an epoch, MiB", "start", "middle", "end", "most"])
    for number, entry in workers.items():
        for name in ("ours", "OpenCLIP"):
            found = entry[name].get("memory", {})
            for kind, what in (("rss", "sum over the processes"), ("own", "without mapped files")):
                if kind in found:
                    sizes = [size / 2**20 for size in found[kind]]
                    chosen = (sizes[0], sizes[len(sizes) // 2], sizes[-1], max(sizes))
                    lines.append(row_of([number, name, what, *(f"{size:.0f}" for size in chosen)]))
    return lines


def parity(results: Results, device: str) -> list[str]:
    """The worst relative error of each backend and type."""
    result = results.get(f"parity_{device}")
    if result is None:
        return [_missing(device)]
    about = result["about"]
    lines = [f"`{about['command']}`, {describe(about)}.", ""]
    lines += head_of(["backend", "type", "cases", "worst error", "limit", "above it", "two runs differ by"])
    absent = {row["backend"]: row["skipped"] for row in result["rows"] if "skipped" in row}
    tried = [row for row in result["rows"] if "skipped" not in row]
    for backend, dtype in dict.fromkeys((row["backend"], row["dtype"]) for row in tried):
        rows = [row for row in tried if (row["backend"], row["dtype"]) == (backend, dtype)]
        ran = [row for row in rows if "worst" in row]
        worst, moves = (largest(row[key] for row in ran) for key in ("worst", "repeated"))
        above = sum(not row.get("within", False) for row in rows)
        limit = result["limits"].get(dtype, math.nan)  # of a process that died
        lines.append(
            row_of(
                [backend, dtype, str(len(rows)), f"{worst:.1e}", f"{limit:.0e}", str(above), f"{moves:.0e}"]
            )
        )
    return lines + [f"\n`{backend}` did not run: {why}." for backend, why in absent.items()]


def goals(results: Results, device: str) -> list[str]:
    """Every target with what was measured."""
    lines = head_of(["target", "wanted", "measured", "from"])
    for target in targets(results):
        measured = "not measured yet" if target.measured is None else f"{target.measured:.2f}"
        met = "" if target.measured is None else (" ✓" if target.met else " ✗")
        lines.append(row_of([target.name, target.wanted, measured + met, f"`{target.command}`"]))
    return lines


SECTIONS: dict[str, tuple[Callable[[Results, str], list[str]], str]] = {
    "targets": (goals, ""),
    "attention cpu": (attention, "cpu"),
    "attention busy": (attention, "busy_cpu"),
    "training cpu": (training, "cpu"),
    "loader": (loader, "cpu"),
    "parity cpu": (parity, "cpu"),
    "attention gpu": (attention, "cuda"),
    "training gpu": (training, "cuda"),
    "parity gpu": (parity, "cuda"),
}


def _missing(device: str) -> str:
    return f"Not measured yet: `{'make bench-gpu' if device == 'cuda' else 'make bench'}`."


def describe(about: dict[str, Any]) -> str:
    by = f"Triton {about['triton']}" if "triton" in about else _count(about["threads"], "thread")
    return f"{about['device']}, {by}, torch {about['torch']}"


def head_of(cells: list[str]) -> list[str]:
    return [row_of(cells), row_of(["---"] * len(cells))]


def row_of(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def fill(document: Path, tables: dict[str, list[str]]) -> None:
    """Put the lines of each table between the markers of its name, where the document has them."""
    text = document.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = before + "\n".join([begin, *lines, end]) + rest.partition(end)[2]
    write_text(document, text)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("target", type=Path, nargs="?", default=Path("docs/performance.md"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    results = read_results(options.results)
    fill(options.target, {name: table(results, device) for name, (table, device) in SECTIONS.items()})


if __name__ == "__main__":
    main()
