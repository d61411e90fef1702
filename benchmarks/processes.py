"""Processor time and memory of a process with all that it started, from Linux' /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def tree(root: int) -> list[int]:
    """`root` and all processes that come from it."""
    found = [root]
    for pid in found:
        with suppress(*_GONE):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def processor_seconds(root: int) -> float:
    """What a process and those from it that still run have used, and those it has waited for."""
    ticks = 0
    for pid in tree(root):
        with suppress(*_GONE):
            # the name, in brackets, may hold anything
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, waited_for = fields[11:13], fields[13:15]
            ticks += sum(map(int, own)) + (sum(map(int, waited_for)) if pid == root else 0)
    return ticks * _TICK


def memory(root: int) -> dict[str, int]:
    """Bytes by process (rss), and of what processes made for themselves, shared memory counted once (own).

    Programs and libraries that are mapped from files are in the first alone; who else maps them changes their share.
    """
    total = {"rss": 0, "own": 0}
    kinds = {"Rss": "rss", "Pss_Anon": "own", "Pss_Shmem": "own"}
    for pid in tree(root):
        with suppress(*_GONE):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in kinds:
                    total[kinds[name]] += 1024 * int(rest.split()[0])
    return total
