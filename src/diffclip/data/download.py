"""Lists of images with captions to train on: img2dataset fetches their images into shards.

img2dataset is a program of its own, run with the settings of the paper's authors. Started again, it goes on.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.data.index import digest_of
from diffclip.data.published_files import unreachable
from diffclip.data.published_sets import HUB
from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import write_atomically, write_text

_TOOL, _LISTS = "img2dataset", "list"
_WEB = re.compile(r"https?://", re.IGNORECASE)


class CaptionSet(NamedTuple):
    """A published list of addresses with captions to train on.

    `columns` are the names of the columns of addresses and captions in its parquet files; for a TSV, which has no
    header, "url" and "caption" in the order of its columns. `address` is empty where the list must be fetched by hand,
    and `wants` says why.
    """

    title: str
    home: str
    pairs: int
    columns: tuple[str, str]
    address: str = ""
    wants: str = ""


# fmt: off
CAPTION_SETS = {
    "cc3m": CaptionSet(
        "Conceptual Captions 3M", "https://ai.google.com/research/ConceptualCaptions", 3_318_333,
        ("caption", "url"), "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv"),
    "cc12m": CaptionSet(
        "Conceptual 12M", "https://github.com/google-research-datasets/conceptual-12m", 12_423_374,
        ("url", "caption"), "https://storage.googleapis.com/conceptual_12m/cc12m.tsv"),
    # each of its images is listed with each of its five captions
    "mscoco": CaptionSet(
        "COCO captions, train2017", "https://cocodataset.org", 591_753, ("URL", "TEXT"),
        f"{HUB}/ChristophSchuhmann/MS_COCO_2017_URL_TEXT/resolve/main/mscoco.parquet"),
    "laion400m": CaptionSet(
        "LAION-400M", "https://laion.ai/blog/laion-400-open-dataset", 413_000_000, ("URL", "TEXT"),
        wants=f"its list is given to those who sign in at {HUB}/laion/relaion400m"),
}
# fmt: on


def find_tool() -> list[str]:
    """Find the words that start img2dataset: the program on PATH, or as uvx or pipx run it.

    Raises:
        InputError: there is none of these.
    """
    for words in [[_TOOL], ["uvx", _TOOL], ["pipx", "run", _TOOL]]:
        if shutil.which(words[0]):
            return words
    raise InputError("img2dataset, which fetches the images, is not installed: run pipx install img2dataset")


def prepare_list(entry: CaptionSet, place: Path, own: str | None = None) -> tuple[Path, tuple[str, str]]:
    """Fetch the list of a set into its folder `place`, unless it is there.

    A TSV is rewritten as `urls.tsv`, with a header, one caption a line, and quoted as CSV readers want it; lines
    without an address or a caption are left out. Parquet files are used as they are.

    Args:
        own: a list with the same columns to use instead: an address, a .tsv, a .parquet file or a folder of them.

    Returns:
        The list, and the names of its columns of addresses and captions.

    Raises:
        InputError: `own` is missing or of another kind, or holds no line of use; the set was begun with another list.
        DiffCLIPError: the list cannot be fetched.
    """
    source, cleaned, begun = own or entry.address, place / "urls.tsv", place / "list.txt"
    before = begun.read_text(encoding="utf-8") if begun.exists() else entry.address
    if before != source and (begun.exists() or cleaned.exists()):
        raise InputError(f"{place} holds shards of another list ({before}): choose another --root")
    if not cleaned.exists():
        found = _local(source, place)
        if found.is_dir() or found.suffix == ".parquet":
            write_text(begun, source)
            return found, entry.columns
        if found.suffix not in (".tsv", ".txt"):
            raise InputError(f"the list {found} is neither .tsv nor .parquet: convert it to one of these")
        try:
            _clean(found, cleaned, entry)
        except InputError:
            if found.parent == place / _LISTS:  # perhaps it is mended where it came from
                found.unlink()
            raise
        write_text(begun, source)
    return cleaned, ("url", "caption")


def _local(source: str, place: Path) -> Path:
    if not _WEB.match(source):
        if not Path(source).exists():
            raise InputError(
                f"the list {source} does not exist: give a .tsv, a .parquet file or folder, or an address"
            )
        return Path(source)
    from torchvision.datasets.utils import download_url

    name = source.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    target = place / _LISTS / f"{digest_of(source)[:8]}-{name}"
    if not target.exists():
        with write_atomically(target) as temporary:
            try:
                download_url(source, temporary.parent, temporary.name)
            except Exception as error:
                raise unreachable(source, error) from error
    return target


def _clean(source: Path, target: Path, entry: CaptionSet) -> None:
    url = entry.columns.index("url") if "url" in entry.columns else 0
    pairs = 0
    # only at \n: a caption may hold what Python takes for the end of a line
    with (
        source.open(encoding="utf-8", errors="replace", newline="\n") as lines,
        write_atomically(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        # quotes within captions would otherwise swallow what follows them
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("url", "caption"))
        for line in lines:
            cells = [" ".join(cell.replace("\0", "").split()) for cell in line.split("\t")]
            if len(cells) == 2 and _WEB.match(cells[url]) and cells[1 - url]:
                writer.writerow((cells[url], cells[1 - url]))
                pairs += 1
        if not pairs:
            raise InputError(
                f"{source} holds no line with an address and a caption: give two columns with a tab between"
            )


def command_of(
    tool: Sequence[str], path: Path, columns: tuple[str, str], shards: Path, processes: int, threads: int
) -> list[str]:
    """Write the command line that fetches the list at `path` into `shards`, with the settings of the paper's
    authors."""
    options: dict[str, Any] = {
        "url_list": path,
        "input_format": "tsv" if path.suffix == ".tsv" else "parquet",
        "url_col": columns[0],
        "caption_col": columns[1],
        "output_folder": shards,
        "output_format": "webdataset",
        "image_size": 224,
        "resize_mode": "keep_ratio",
        "resize_only_if_bigger": True,
        "encode_format": "jpg",
        "encode_quality": 95,
        "extract_exif": False,
        "processes_count": processes,
        "thread_count": threads,
        "incremental_mode": "incremental",
        "enable_wandb": False,
    }
    return [*tool, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def run_tool(command: Sequence[str], shards: Path) -> None:
    """Run img2dataset to its end; it writes to the terminal. Ctrl-C, SIGTERM and a closed terminal end img2dataset too.

    Raises:
        DiffCLIPError: the tool failed.
        StoppedError: SIGTERM or SIGHUP.
    """

    def stop(*_: object) -> None:
        raise StoppedError(f"asked to stop: the same command goes on with what is in {shards}")

    shards.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(shards / "_tmp", ignore_errors=True)
    environment = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"}
    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, stop) for one in heard}
    tool = None
    try:
        # a session of its own, so that its workers can be ended with it
        tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        code = tool.wait()
    finally:
        if tool is not None:
            with suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            tool.wait()
        # img2dataset makes a shard without counts again
        for tar in shards.glob("*.tar"):
            if not tar.with_name(f"{tar.stem}_stats.json").exists():
                tar.unlink()
        for one, handler in before.items():
            signal.signal(one, handler)
    if code:
        raise DiffCLIPError(f"img2dataset failed with exit code {code}: see its messages above")


def outcome_of(shards: Path) -> Counter[str]:
    """Count the pairs that img2dataset has done, "success" and each failure in its words."""
    outcome: Counter[str] = Counter()
    for stats in shards.glob("*_stats.json"):
        outcome.update(json.loads(stats.read_text(encoding="utf-8"))["status_dict"])
    return outcome
