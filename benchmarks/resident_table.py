"""The table of docs/performance.md on pictures in memory, from resident.json and resident_cuda.json."""

from __future__ import annotations

from typing import Any


def resident(results: dict[str, dict[str, Any]], device: str) -> list[str]:
    """Batches, drawing and validation with and without pictures in memory."""
    names = {"cpu": "resident", "cuda": "resident_cuda"}
    result = results.get(names[device])
    if result is None:
        return [
            f"Not measured yet on {'a GPU' if device == 'cuda' else 'a CPU'}: `python -m benchmarks.resident`."
        ]
    about, data, opening = result["about"], result["data"], result["opening"]
    draws, passes = result["drawing"], result["validation"]
    threads = f"{about['threads']} thread{'' if about['threads'] == 1 else 's'}"
    lines = [
        f"`{about['command']}`, {about['device']}, {threads}, torch {about['torch']}; {data['samples']} samples of "
        f"{data['name']} at {data['image_size']} px, batch {data['batch']}.",
        "",
        "| batches | ms | times as fast | first of an epoch, ms |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in result["batches"].items():
        cells = [name, _spread(row["milliseconds"], 1), _spread(row["speed"], 2)]
        lines.append(f"| {' | '.join([*cells, format(row['first_milliseconds'], '.0f')])} |")
    return [
        *lines,
        "",
        f"{result['bytes'] / 1e6:.0f} MB; opened in {opening['first']:.1f} s the first time, in "
        f"{opening['again']:.2f} s afterwards. Drawing a crop takes {draws['alone']:.0f} µs by torch and "
        f"{draws['together']:.1f} µs together with the others of an epoch. A pass over {passes['pictures']} pictures "
        f"for validation takes {passes['without']['median']:.2f} s, with memory {passes['first']:.2f} s the first time "
        f"and {passes['again']['median']:.3f} s afterwards, {_spread(passes['speed'], 1)} times as fast.",
    ]


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} ± {(found['high'] - found['low']) / 2:.{digits}f}"
