"""Write the tables of docs/performance.md between their markers, from the JSON files of the benchmarks.

    python -m benchmarks.tables [docs/performance.md] [--results benchmarks/results]

A number without a file is given as not measured yet, with the command that measures it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.about import largest, parser_of
from benchmarks.models import OPENCLIP, OURS, REFERENCE
from diffclip.files import write_text

Result = dict[str, Any]
"""The content of a result file."""
UNITS = {"bandwidth": ("TB/s", 1e12), "operations": ("TFLOP/s", 1e12), "exponentials": ("T/s", 1e12)}
_BUSY = "python -m benchmarks.attention --device cpu --busy"
_CPU, _GPU, _LOADER = "make bench", "make bench-gpu", "python -m benchmarks.loader"
_LEAST_SAMPLES = 5  # ratios of medians of fewer differ by up to a fifth between runs
_KIND = {"forward": "forward", "both": "forward and backward", "backward": "backward"}


def attention_table(result: Result) -> list[str]:
    """Tabulate times, ratios and shares of the floor by shape and operator."""
    about, entries = result["about"], result["shapes"].values()
    memory = any("peak_bytes" in row.get("both", {}) for entry in entries for row in entry["rows"].values())
    lines = [f"{describe(about)}, {about['dtype']}. Ratios are to `plain auto`.", ""]
    for rate, source in result["ceilings"]["sources"].items():
        unit, scale = UNITS[rate]
        lines.append(f"- ceiling of {rate}: {result['ceilings'][rate] / scale:.3g} {unit}, {source}")
    head = "shape | operator | forward ms | ratio | floor | forward and backward ms | ratio | floor"
    head += " | backward ms | ratio | floor" + " | peak MiB" * memory
    absent, rows = {}, []
    for name, entry in result["shapes"].items():
        for operator, row in entry["rows"].items():
            cells = [f"{name}, B {entry['shape']['batch']}, N {entry['shape']['tokens']}", operator]
            if "why" in row:
                if row["why"].startswith("the inputs are on"):
                    absent[operator] = row["why"]
                else:
                    rows.append([*cells, row["why"]])
                continue
            for kind in ("forward", "both", "backward"):
                timing, plain = row[kind], entry["rows"]["plain auto"].get(kind)
                spread = f" ± {(timing['high_ms'] - timing['low_ms']) / 2:.2g}" if "low_ms" in timing else ""
                ratio = f"{timing['median_ms'] / plain['median_ms']:.2f}" if plain else "–"
                share = f"{timing['floor_share']:.0%}" if "floor_share" in timing else "–"
                cells += [f"{timing['median_ms']:.3g}{spread}", ratio, share]
            if memory:
                cells.append(f"{row['both']['peak_bytes'] / 2**20:.0f}")
            rows.append(cells)
    return [*lines, "", *table_of(head, rows), *_absences(absent), ""]


def training_table(result: Result) -> list[str]:
    """Tabulate samples per second and memory by model."""
    about = result["about"]
    rows = []
    for entry in result["sections"]:
        step = f"{entry['kind']}, batch {entry['batch']}"
        step += f", compiled ({entry['compiled']})" if entry["compiled"] else ""
        reference = entry["rows"].get("CLIP", {})
        for name, row in entry["rows"].items():
            if "why" in row:
                rows.append([step, name, row["why"]])
                continue
            memory_key = "peak_bytes" if row.get("peak_bytes") else "kept_bytes"
            cells = [step, name, f"{row['samples_per_second']:.1f} ± {(row['high'] - row['low']) / 2:.1f}"]
            cells.append(_ratio(row, reference, "samples_per_second", 2))
            cells.append(f"{row[memory_key] / 2**30:.2f}" if memory_key in row else "–")
            cells.append(_ratio(row, reference, memory_key, 3))
            rows.append(cells)
    memory = "peak GiB" if "cuda" in about else "kept GiB"
    head = f"step | model | samples per second | to CLIP | {memory} | to CLIP"
    return [
        f"{describe(about)}, {about['size']}, {about['precision']}; batches are made up.",
        *("", *table_of(head, rows), ""),
    ]


def _ratio(row: Result, reference: Result, what: str, digits: int) -> str:
    return f"{row[what] / reference[what]:.{digits}f}" if row.get(what) and reference.get(what) else "–"


def loader_table(result: Result) -> list[str]:
    """Tabulate our loader beside OpenCLIP's in samples per second and core, and ours on many shards."""
    about, data = result["about"], result["data"]
    speeds: list[list[str]] = []
    for workers, entry in result["workers"].items():
        for name in ("ours", "OpenCLIP"):
            row = entry[name]
            if "why" in row:
                speeds.append([workers, name, row["why"]])
                continue
            cells = [workers, name]
            for kind in ("per_core", "per_second"):
                ratio = entry.get("ratio", {}).get(kind) if name == "ours" else None
                cells += [_spread(row[kind], 0), _spread(ratio, 2) if ratio else "–"]
            speeds.append(cells)
    head = "workers | loader | samples per second and core | to OpenCLIP | samples per second | to OpenCLIP"
    return [
        f"{describe(about)}, batch {about['batch']}; {data['samples']} samples in {data['shards']} shards "
        f"(made up), {data['image_bytes'] / 1000:.0f} KB per image.",
        *("", *table_of(head, speeds)),
        *(_many_shards(result["many"]) if "many" in result else ()),
    ]


def _many_shards(many: Result) -> list[str]:
    head = f"{many['shards']:,} shards of {many['samples']} samples, batch of {many['batch']} | opened, s"
    rows = [[name, *(f"{seconds:.2f}" for seconds in row.values())] for name, row in many["times"].items()]
    return ["", *table_of(f"{head} | then the first batch in the middle of an epoch, s", rows)]


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} ± {(found['high'] - found['low']) / 2:.{digits}f}"


def parity_table(result: Result) -> list[str]:
    """Tabulate the worst relative error of each backend and type."""
    absent = {row["backend"]: row["skipped"] for row in result["rows"] if "skipped" in row}
    tried = [row for row in result["rows"] if "skipped" not in row]
    lines = []
    for backend, dtype in dict.fromkeys((row["backend"], row["dtype"]) for row in tried):
        rows = [row for row in tried if (row["backend"], row["dtype"]) == (backend, dtype)]
        ran = [row for row in rows if "worst" in row]
        worst, moves = (largest(row[key] for row in ran) for key in ("worst", "repeated"))
        above = sum(not row.get("within", False) for row in rows)
        limit = result["limits"].get(dtype, math.nan)  # a process that died has no type
        numbers = [str(len(rows)), f"{worst:.1e}", f"{limit:.0e}", str(above), f"{moves:.0e}"]
        lines.append([backend, dtype, *numbers])
    head = "backend | type | cases | worst error | limit | above it | two runs differ by"
    return [f"{describe(result['about'])}.", "", *table_of(head, lines), *_absences(absent)]


class Target(NamedTuple):
    """A value (None: not measured), the command that measures it, its bound ("≥ 2.0", "≤ 1.1"), and its samples."""

    name: str
    command: str
    value: float | None
    bound: str
    samples: int = _LEAST_SAMPLES


def targets_table(results: dict[str, Result]) -> list[str]:
    """Tabulate every target with the measured value."""
    rows = []
    for target in targets(results):
        outcome = "not measured yet"
        if target.value is not None:
            sign, limit = target.bound.split()
            met = target.value >= float(limit) if sign == "≥" else target.value <= float(limit)
            is_sure = target.samples >= _LEAST_SAMPLES
            verdict = ("✓" if met else "✗") if is_sure else f"({target.samples} samples are too few to say)"
            outcome = f"{target.value:.2f} {verdict}"
        rows.append([target.name, target.bound, outcome, f"`{target.command}`"])
    return table_of("target | wanted | measured | from", rows)


def targets(results: dict[str, Result]) -> Iterator[Target]:
    """Yield all targets, the CPU's in float32 and the GPU's in bfloat16: ratios within one run, and one time."""
    cpu, gpu = results.get("attention_cpu_float32"), results.get("attention_cuda_bfloat16")
    for kind, other, least in (
        *(("forward", "timm", 2.0), ("forward", "eager", 2.2)),
        *(("both", "timm", 1.15), ("both", "eager", 2.2)),
    ):
        speed = _time_ratio(cpu, 2305, kind, f"differential {other}", "differential auto")
        name = f"CPU, N = 2305, {_KIND[kind]}: speed of auto to {other}"
        yield Target(name, _CPU, speed, f"≥ {least}", _samples(cpu, 2305))
    for kind in ("forward", "both"):
        busy = results.get("attention_busy_cpu_float32")
        speed = _time_ratio(busy, 2305, kind, "differential eager", "differential auto")
        name = f"CPU beside a busy process, N = 2305, {_KIND[kind]}: speed of auto to eager"
        yield Target(name, _BUSY, speed, "≥ 1.5", _samples(busy, 2305))
    for kind in ("forward", "both"):
        name = f"CPU, N = 197, {_KIND[kind]}: speed of auto to the best"
        yield Target(name, _CPU, _speed_to_best(cpu, 197, kind), "≥ 0.97", _samples(cpu, 197))
    for tokens, kind, most in (
        *((197, "forward", 1.1), (197, "backward", 1.2)),
        *((4097, "forward", 1.67), (4097, "backward", 1.67)),
    ):
        cost = _time_ratio(gpu, tokens, kind, "differential triton", "plain auto")
        name = f"GPU, N = {tokens}, {_KIND[kind]}: time of triton to plain attention"
        yield Target(name, _GPU, cost, f"≤ {most}", _samples(gpu, tokens))
    for workers, readers in enumerate(("0 workers", "1 worker", "2 workers")):
        entry = results.get("loader", {}).get("workers", {}).get(str(workers), {})
        ratio = entry["ratio"]["per_core"]["median"] if "ratio" in entry else None
        name = f"CPU, loader, {readers}: ours to OpenCLIP's, samples per second and core"
        yield Target(name, _LOADER, ratio, "≥ 2.5")
    many = results.get("loader", {}).get("many", {})
    first = many["times"]["again"]["first_batch"] if many else None
    name = "CPU, loader, 1,000 shards: seconds to the first batch in the middle of an epoch"
    yield Target(name, _LOADER, first, "≤ 0.5")
    steps = results.get("training_cuda_bf16")
    for batch in (256, 1024):
        step = f"GPU, training step compiled, batch {batch}: DiffCLIP to"
        for other in (REFERENCE, OPENCLIP):
            ratio = _step_ratio(steps, "training", batch, "samples_per_second", other)
            yield Target(f"{step} {other}, samples per second", _GPU, ratio, "≥ 0.98")
        ratio = _step_ratio(steps, "training", batch, "peak_bytes", REFERENCE)
        yield Target(f"{step} CLIP, peak memory", _GPU, ratio, "≤ 1.03")
    ratio = _step_ratio(steps, "inference", 256, "samples_per_second", REFERENCE)
    yield Target("GPU, inference compiled: DiffCLIP to CLIP, samples per second", _GPU, ratio, "≥ 0.98")


def _rows(result: Result | None, tokens: int) -> dict[str, Any]:
    """Return the rows of the operators that ran."""
    entries = result["shapes"].values() if result else ()
    rows = next((entry["rows"] for entry in entries if entry["shape"]["tokens"] == tokens), {})
    return {name: row for name, row in rows.items() if "both" in row}


def _samples(result: Result | None, tokens: int) -> int:
    return min((row["both"]["samples"] for row in _rows(result, tokens).values()), default=0)


def _milliseconds(result: Result | None, tokens: int, kind: str) -> dict[str, float]:
    """Return the median times by operator."""
    return {name: row[kind]["median_ms"] for name, row in _rows(result, tokens).items()}


def _time_ratio(result: Result | None, tokens: int, kind: str, above: str, below: str) -> float | None:
    """Divide the time of `above` by the time of `below`."""
    times = _milliseconds(result, tokens, kind)
    return times[above] / times[below] if {above, below} <= times.keys() else None


def _speed_to_best(result: Result | None, tokens: int, kind: str) -> float | None:
    times = _milliseconds(result, tokens, kind)
    auto = times.get("differential auto")
    return auto and min(time for name, time in times.items() if name.startswith("differential")) / auto


def _step_ratio(result: Result | None, kind: str, batch: int, what: str, other: str) -> float | None:
    """Divide our number by the number of the model `other`, in the compiled section."""
    for entry in (result or {}).get("sections", ()):
        if (entry["kind"], entry["batch"]) == (kind, batch) and entry["compiled"]:
            ours, theirs = (entry["rows"].get(name, {}).get(what) for name in (OURS, other))
            return ours / theirs if ours and theirs else None
    return None


# section of the document → its table, its file without the ending, and the command that measures it
SECTIONS: dict[str, tuple[Callable[[Result], list[str]], str, str]] = {
    "attention cpu": (attention_table, "attention_cpu_float32", _CPU),
    "attention busy": (attention_table, "attention_busy_cpu_float32", _BUSY),
    "training cpu": (training_table, "training_cpu_bf16", _CPU),
    "loader": (loader_table, "loader", _LOADER),
    "parity cpu": (parity_table, "parity_cpu", _CPU),
    "attention gpu": (attention_table, "attention_cuda_bfloat16", _GPU),
    "attention gpu float32": (attention_table, "attention_cuda_float32", _GPU),
    "training gpu": (training_table, "training_cuda_bf16", _GPU),
    "parity gpu": (parity_table, "parity_cuda", _GPU),
}


def describe(about: dict[str, Any]) -> str:
    """Describe the command and the machine of a result."""
    threads = about["threads"]
    by = f"Triton {about['triton']}" if "triton" in about else f"{threads} thread{'s' * (threads != 1)}"
    return f"`{about['command']}`, {about['device']}, {by}, torch {about['torch']}"


def _absences(absent: dict[str, str]) -> list[str]:
    return [f"\n`{name}` did not run: {why}." for name, why in absent.items()]


def table_of(head: str, rows: Iterable[list[str]]) -> list[str]:
    """Return a table as lines of Markdown; `head` has the names of the columns between bars."""
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in rows]
    return [f"| {head} |", "|" + " --- |" * (head.count("|") + 1), *lines]


def fill(document: Path, tables: dict[str, list[str]]) -> None:
    """Put the lines of each table between the markers of its name, if the document has them."""
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
    results = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in options.results.glob("*.json")
    }
    tables = {"targets": targets_table(results)}
    for name, (table, stem, command) in SECTIONS.items():
        missing = [f"Not measured yet: `{command}`."]
        tables[name] = table(results[stem]) if stem in results else missing
    fill(options.target, tables)


if __name__ == "__main__":
    main()
