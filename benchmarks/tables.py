"""The tables of docs/performance.md, from the JSON files that the benchmarks wrote.

python -m benchmarks.tables docs/performance.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from diffclip.files import write_text

RESULTS = Path("benchmarks/results")


def attention(file: Path) -> list[str]:
    """Milliseconds and ratios to plain attention by shape and backend."""
    result = json.loads(file.read_text())
    lines = [f"`{result['about']['command']}`, {_about(result['about'])}. Ratios are to `plain auto`.", ""]
    lines += [
        "| shape | operator | forward ms | ratio | forward and backward ms | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for shape, rows in result["times"].items():
        plain = rows["plain auto"]
        for name, kinds in rows.items():
            cells = "".join(
                f" {kinds[kind]['median_ms']:.2f} | {kinds[kind]['median_ms'] / plain[kind]['median_ms']:.2f} |"
                for kind in ("forward", "both")
            )
            lines.append(f"| {shape} | {name} |{cells}")
    return lines


def training(file: Path) -> list[str]:
    """Samples a second by model and backend."""
    result = json.loads(file.read_text())
    about, rows = result["about"], result["rows"]
    lines = [
        f"`{about['command']}`, {_about(about)}, {about['size']}, batch {about['batch']}, {about['precision']}.",
        "",
        "| model and backend | samples a second | ratio to CLIP | peak GiB |",
        "| --- | --- | --- | --- |",
    ]
    reference = rows["CLIP auto"]["samples_per_second"]
    for name, row in rows.items():
        rate, peak = row["samples_per_second"], row["peak_bytes"] / 2**30
        lines.append(f"| {name} | {rate:.1f} | {rate / reference:.2f} | {f'{peak:.2f}' if peak else '–'} |")
    return lines


def _about(about: dict[str, Any]) -> str:
    return f"{about['device']}, {about['threads']} threads, torch {about['torch']}"


def main() -> None:
    target = Path(sys.argv[1])
    text = target.read_text(encoding="utf-8")
    for device in ("cpu", "cuda"):
        lines: list[str] = []
        for kind, table in (("attention", attention), ("training", training)):
            for file in sorted(RESULTS.glob(f"{kind}_{device}_*.json")):
                lines += ["", *table(file)]
        begin, end = f"<!-- begin {device} -->", f"<!-- end {device} -->"
        if lines and begin in text:
            before, _, rest = text.partition(begin)
            text = before + begin + "\n".join([*lines, ""]) + end + rest.partition(end)[2]
    write_text(target, text)


if __name__ == "__main__":
    main()
