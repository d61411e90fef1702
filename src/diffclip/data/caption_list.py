"""The list of addresses and captions that img2dataset is given: fetched, cleaned, and known again."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffclip.data.caption_sets import CaptionSet
from diffclip.data.fetch_file import Advance, fetch_file
from diffclip.errors import InputError
from diffclip.files import write_atomically, write_text

_WEB = re.compile(r"https?://", re.IGNORECASE)
_CLEANED, _FACTS = "urls.tsv", "list.json"


@dataclass(frozen=True)
class CaptionList:
    """A list as img2dataset reads it.

    Attributes:
        path: a TSV with a header, or a parquet file or folder of them.
        columns: names of the columns of addresses and captions.
        pairs: its lines; None where they were not counted (parquet).
        left_out: lines of the source that have no address or no caption.
    """

    path: Path
    columns: tuple[str, str]
    pairs: int | None
    left_out: int = 0

    @property
    def kind(self) -> str:
        return "tsv" if self.path.suffix == ".tsv" else "parquet"


def prepare_list(
    entry: CaptionSet,
    place: Path,
    own: str | None = None,
    columns: tuple[str, str] | None = None,
    advance: Advance | None = None,
) -> CaptionList:
    """The list of a set, in the folder `place` of the set, fetched unless it is there.

    A TSV is rewritten as `urls.tsv`: with a header, quoted as CSV readers want it, one caption a line. Lines without
    an address of http or without a caption are left out. Parquet files are used as they are.

    Args:
        own: a list to use instead of the published one: an address, a .tsv, a .parquet file or a folder of them.
        columns: names of the columns of addresses and captions in `own`.

    Raises:
        InputError: `own` is missing or of another kind, holds no line of use, or `place` was begun with another list.
        DiffCLIPError: the list cannot be fetched.
    """
    sources = [own] if own else entry.files
    if own and not _WEB.match(own) and not Path(own).exists():
        raise InputError(
            f"the list {own} does not exist: give a .tsv, a .parquet file or folder, or an address"
        )
    facts = {"list": _identity(own) if own else entry.addresses, "columns": list(columns or ())}
    kept = _read_facts(place / _FACTS)
    if kept and any(kept[key] != facts[key] for key in facts):
        raise InputError(
            f"{place} was begun with the list {kept['list']}: give another --root, or that list again to go on"
        )
    if kept and (place / _CLEANED).exists():
        return CaptionList(place / _CLEANED, ("url", "caption"), kept["pairs"], kept["left_out"])
    if _kind_of(sources[0]) == "parquet":
        found = _parquet(sources, place, columns or entry.columns, advance)
        write_text(place / _FACTS, json.dumps(facts))
        return found
    local = _local(sources[0], place, advance)
    pairs, left_out = _clean(local, place / _CLEANED, columns, entry)
    write_text(place / _FACTS, json.dumps({**facts, "pairs": pairs, "left_out": left_out}))
    if local.parent == place / "list":
        local.unlink()
        local.parent.rmdir()
    return CaptionList(place / _CLEANED, ("url", "caption"), pairs, left_out)


def _parquet(
    sources: list[str], place: Path, columns: tuple[str, str], advance: Advance | None
) -> CaptionList:
    files = [_local(source, place, advance) for source in sources]
    path = files[0] if len(files) == 1 else files[0].parent
    if path.is_dir() and not any(path.glob("*.parquet")):
        raise InputError(f"no .parquet file in {path}: give the folder that holds them")
    return CaptionList(path, columns, None)


def _local(source: str, place: Path, advance: Advance | None) -> Path:
    if not _WEB.match(source):
        return Path(source)
    name = source.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return fetch_file(source, place / "list" / name, advance)


def _kind_of(source: str) -> str:
    name = source.split("?")[0].lower()
    if name.endswith((".tsv", ".txt")):
        return "tsv"
    if name.endswith(".parquet") or Path(source).is_dir():
        return "parquet"
    raise InputError(f"the list {source} is neither .tsv nor .parquet: convert it to one of these")


def _identity(own: str) -> str:
    """What tells one list from another: an address, or the names and sizes of the files."""
    if _WEB.match(own):
        return own
    path = Path(own)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files)
    more = f" to {files[-1].name}" if len(files) > 1 else ""
    return f"{files[0].name if files else path.name}{more}, {size} bytes"


def _read_facts(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return facts if isinstance(facts, dict) and "list" in facts else None
    except (OSError, ValueError):
        return None


def _clean(source: Path, target: Path, columns: tuple[str, str] | None, entry: CaptionSet) -> tuple[int, int]:
    """Write the lines of `source` that are of use to `target`; how many they are, and how many are not."""
    pairs = left_out = 0
    with write_atomically(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        # quotes within captions would otherwise swallow what follows them
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("url", "caption"))
        for url, caption in _rows(source, columns or ("url", "caption"), entry):
            if _WEB.match(url) and caption:
                writer.writerow((url, caption))
                pairs += 1
            else:
                left_out += 1
        if not pairs:
            raise InputError(
                f"{source} holds no line with an address and a caption: give two columns with a tab between"
            )
    return pairs, left_out


def _rows(source: Path, names: tuple[str, str], entry: CaptionSet) -> Iterator[tuple[str, str]]:
    """(address, caption) of each line, empty where it has other than two columns."""
    order = entry.columns.index("url") if "url" in entry.columns else 0
    # only at \n: a caption may hold what Python takes for the end of a line
    with source.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file):
            cells = [" ".join(cell.replace("\0", "").split()) for cell in line.split("\t")]
            if number == 0 and set(cells) == set(names):
                order = cells.index(names[0])
            elif len(cells) == 2:
                yield cells[order], cells[1 - order]
            else:
                yield "", ""
