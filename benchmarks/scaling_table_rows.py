"""Cells and tables of docs/scaling.md, and those of its data and checkpoints."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    """Markdown lines."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines]


def amount(size: float) -> str:
    """Bytes in a unit that leaves three digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


def duration(seconds: float) -> str:
    """Seconds in a unit that leaves three digits."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{_digits(seconds)} s"
    return f"{_digits(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{_digits(seconds * 1e6)} µs"


def share_of(value: float) -> str:
    """A share in per cent, with a digit more where it is small."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def order(result: Result, results: dict[str, Result]) -> list[str]:
    """Time and memory of an epoch's order."""
    rows, whole = [], [one for one in result["orders"] if one["window"] is None]
    for one in result["orders"]:
        n = one["samples"]
        kind = "one permutation" if one["window"] is None else f"windows of {one['window']} shards"
        rows.append(
            [f"{n:,}", kind, duration(one["seconds"]), amount(one["most"]), amount(one["kept"]), "measured"]
        )
    # the largest one tells what a sample costs
    n, largest = max(one["samples"] for one in result["orders"]), whole[-1]
    scale = n / largest["samples"]
    cells = [
        duration(largest["seconds"] * scale),
        amount(largest["most"] * scale),
        amount(largest["kept"] * scale),
    ]
    rows.append([f"{n:,}", "one permutation", *cells, "by the line above"])
    same = result["same_samples"]
    worlds = ", ".join(map(str, same["worlds"]))
    said = "the same samples in the same order" if same["same"] else "NOT the same samples"
    head = ["samples", "order", "drawn in", "memory meanwhile", "memory kept", ""]
    return [
        *table(head, rows),
        "",
        f"All {same['batches']:,} batches of an epoch of {same['samples']:,} samples, put together from {worlds} "
        f"processes: {said}.",
    ]


def index(result: Result, results: dict[str, Result]) -> list[str]:
    """Opening many shards, by measurement, and what LAION-400M asks for by it."""
    found, largest = result["index"], max(one["samples"] for one in result["orders"])
    rows = []
    for name, title in (("whole", "all samples shuffled"), ("windowed", "windows")):
        one = found[name]
        rows.append([title, duration(one["open"]), *(duration(one[k]) for k in ("beginning", "middle"))])
        rows[-1].append(amount(one["kept"]))
    shards, samples = found["shards"], found["samples"]
    # of a sample: its row of the index, and its place among the usable ones
    a_sample = found["index_bytes"] / (samples / shards) + 8
    a_shard = (found["whole"]["kept"] - a_sample * samples) / shards
    far = largest // 10_000
    head = ["order", "opened in", "first batch of an epoch", "first batch in the middle", "memory kept"]
    return [
        f"{shards:,} shards of {samples // shards} samples, {amount(found['bytes'])}; indexed for the first time in "
        f"{duration(found['first'])}. A batch is {found['batch']} samples, read without workers.",
        "",
        *table(head, rows),
        "",
        f"An index takes {a_sample:.0f} bytes a sample ({found['members']:.0f} members each) and {a_shard:,.0f} a "
        f"shard. For {largest:,} samples in {far:,} shards that is {amount(a_sample * largest + a_shard * far)} a "
        "process with all samples shuffled (its data workers share it), and with windows "
        f"{amount(found['windowed']['kept'] / shards * far)}. Indexing them goes at {samples / found['first']:,.0f} "
        f"samples a second here: {largest / samples * found['first'] / 3600:.0f} hours on this machine, once.",
    ]


def checkpoints(result: Result, results: dict[str, Result]) -> list[str]:
    """Bytes and seconds of a checkpoint by model and disk."""
    disks = result["disks"]
    rows = [
        [
            name,
            amount(row["bytes"]),
            duration(row["checksum_seconds"]),
            *(duration(row["seconds"][key]) for key in disks),
        ]
        for name, row in result["checkpoints"].items()
    ]
    sources = [f"- {one['name']}: {one['rate'] / 1e9:.4g} GB/s, {one['source']}" for one in disks.values()]
    head = ["model", "bytes", "of it the checksum", *(one["name"] for one in disks.values())]
    return [*table(head, rows), "", *sources]


def checkpoints_checked(result: Result, results: dict[str, Result]) -> list[str]:
    """Checkpoints of real processes: bytes and seconds by the model and measured, and going on from them."""
    rows, ways = [], []
    for world, one in result["checkpoints_measured"].items():
        plain, parts, took = one["plain"], one["parts"], one["seconds"]
        said = 12 * one["parameters"]
        seconds = said / plain["write"] + said / plain["checksum"]
        cells = [world, f"{said:,}", f"{one['bytes']:,}", duration(seconds), duration(took)]
        cells.append(f"{one['bytes'] / took / 1e6:.0f} MB/s")
        cells += [share_of(parts[key] / took) for key in ("gather", "write", "fsync", "checksum")]
        rows.append(cells)
        ways += [
            [way["from"], way["to"], duration(way["checked"]), duration(way["seconds"])]
            for way in one["going_on"]
        ]
    head = ["processes", "bytes by the formula", "bytes", "seconds by the disk", "seconds measured", "rate"]
    return [
        *table([*head, "bringing weights together", "writing", "fsync", "checksum"], rows),
        "",
        *table(["written by", "continued by", "checked in", "ready in"], ways),
    ]
