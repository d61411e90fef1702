"""Lists of images with captions to train on: img2dataset fetches their images into shards.

img2dataset is a program of its own, run with the settings of the paper's authors; what it has fetched it leaves alone
when it is started again.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from diffclip.data.published_files import unreachable
from diffclip.data.published_sets import HUB
from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import write_atomically

_TOOL = "img2dataset"
_WEB = re.compile(r"https?://", re.IGNORECASE)
# of an image and of a line of a list: img2dataset measured 331 GB for 10.8 M images of 256 × 256 with borders; whole at
# 224 they have a third more pixels
_IMAGE_BYTES, _LINE_BYTES = 40_000, 200
_MEASURED_PROCESSES = 16


@dataclass(frozen=True)
class CaptionSet:
    """A published list of addresses with captions to train on.

    Attributes:
        title: its usual name.
        home: the publisher's page.
        pairs: lines of the list.
        left: share of the images that could still be fetched, when someone counted last.
        counted: when that was, and by whom.
        rate: pairs a second that img2dataset measured on 16 cores with 2 Gbit/s, failures included
            (rom1504/img2dataset, `dataset_examples/`).
        columns: names of the columns of addresses and of captions in its parquet files; for a TSV "url" and "caption"
            in the order of its columns, as such a list has no header.
        addresses: where the list lies; empty where it must be fetched by hand. Braces stand for several files.
        wants: why by hand.
    """

    title: str
    home: str
    pairs: int
    left: float
    counted: str
    rate: int
    columns: tuple[str, str]
    addresses: str = ""
    wants: str = ""


# fmt: off
CAPTION_SETS = {
    "cc3m": CaptionSet(
        "Conceptual Captions 3M", "https://ai.google.com/research/ConceptualCaptions",
        3_318_333, 0.70, "January 2024, by img2dataset's issue 391", 850, ("caption", "url"),
        "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv"),
    "cc12m": CaptionSet(
        "Conceptual 12M", "https://github.com/google-research-datasets/conceptual-12m",
        12_423_374, 0.62, "October 2025, by conceptual-12m's issue 9", 630, ("url", "caption"),
        "https://storage.googleapis.com/conceptual_12m/cc12m.tsv"),
    # each of its images is listed with each of its five captions
    "mscoco": CaptionSet(
        "COCO captions, train2017", "https://cocodataset.org",
        591_753, 1.0, "February 2022, by clip-retrieval's issue 75", 800, ("URL", "TEXT"),
        f"{HUB}/ChristophSchuhmann/MS_COCO_2017_URL_TEXT/resolve/main/mscoco.parquet"),
    "laion400m": CaptionSet(
        "LAION-400M", "https://laion.ai/blog/laion-400-open-dataset",
        413_000_000, 0.68, "February 2024, by img2dataset's issue 400", 1300, ("URL", "TEXT"),
        wants=f"its list is given to those who sign in at {HUB}/laion/relaion400m"),
    # the speed was not measured; LAION-400M's images are of the same kind
    "coyo700m": CaptionSet(
        "COYO-700M", "https://github.com/kakaobrain/coyo-dataset",
        746_972_269, 0.85, "August 2022, by its publisher", 1300, ("url", "text"),
        f"{HUB}/kakaobrain/coyo-700m/resolve/main/data/"
        "part-{00000..00127}-17da4908-939c-46e5-91d0-15f256041956-c000.snappy.parquet"),
}
# fmt: on


def needs(entry: CaptionSet, processes: int) -> tuple[int, int, float]:
    """Estimate the images that come, their bytes on disk, and the hours for `processes` processes.

    The size counts the list twice: img2dataset makes a copy of it for the time of the run.
    """
    images = round(entry.left * entry.pairs)
    hours = entry.pairs / (entry.rate * processes / _MEASURED_PROCESSES) / 3600
    return images, images * _IMAGE_BYTES + 2 * entry.pairs * _LINE_BYTES, hours


def find_tool() -> list[str]:
    """The words that start img2dataset: the program on PATH, or as uvx or pipx run it.

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
        own: a list with the same columns to use instead: an address, a .tsv, a .parquet file or a folder
            of them.

    Returns:
        The list, and the names of its columns of addresses and captions.

    Raises:
        InputError: `own` is missing or of another kind, or holds no line of use.
        DiffCLIPError: the list cannot be fetched.
    """
    sources = [own] if own else list(braceexpand(entry.addresses))
    cleaned = place / "urls.tsv"
    if not cleaned.exists():
        local = [_local(source, place) for source in sources]
        if local[0].is_dir() or local[0].suffix == ".parquet":
            return local[0] if len(local) == 1 else local[0].parent, entry.columns
        if local[0].suffix not in (".tsv", ".txt"):
            raise InputError(
                f"the list {sources[0]} is neither .tsv nor .parquet: convert it to one of these"
            )
        _clean(local[0], cleaned, entry)
    return cleaned, ("url", "caption")


def _local(source: str, place: Path) -> Path:
    if not _WEB.match(source):
        if not Path(source).exists():
            raise InputError(
                f"the list {source} does not exist: give a .tsv, a .parquet file or folder, or an address"
            )
        return Path(source)
    from torchvision.datasets.utils import download_url

    target = place / "list" / source.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if not target.exists():
        with write_atomically(target) as temporary:
            try:
                download_url(source, temporary.parent, temporary.name)
            except Exception as error:
                raise unreachable(source, error) from error
    return target


def _clean(source: Path, target: Path, entry: CaptionSet) -> None:
    order = entry.columns.index("url") if "url" in entry.columns else 0
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
        for number, line in enumerate(lines):
            cells = [" ".join(cell.replace("\0", "").split()) for cell in line.split("\t")]
            if number == 0 and set(cells) == {"url", "caption"}:
                order = cells.index("url")
            elif len(cells) == 2 and _WEB.match(cells[order]) and cells[1 - order]:
                writer.writerow((cells[order], cells[1 - order]))
                pairs += 1
        if not pairs:
            raise InputError(
                f"{source} holds no line with an address and a caption: give two columns with a tab between"
            )


def command_of(
    tool: Sequence[str], path: Path, columns: tuple[str, str], shards: Path, processes: int, threads: int
) -> list[str]:
    """The command line that fetches the list at `path` into `shards`, with the settings of the paper's authors."""
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
    """Run img2dataset to its end; it writes to the terminal. A signal to stop ends it too.

    Raises:
        DiffCLIPError: the tool failed.
        StoppedError: SIGTERM.
    """

    def stop(*_: object) -> None:
        raise StoppedError(f"stopped by SIGTERM; what is in {shards} is kept: the same command goes on")

    shards.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(shards / "_tmp", ignore_errors=True)
    before = signal.signal(signal.SIGTERM, stop)
    environment = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # a shard without its counts is not whole, and is made again
        for tar in shards.glob("*.tar"):
            if not tar.with_name(f"{tar.stem}_stats.json").exists():
                tar.unlink()
        signal.signal(signal.SIGTERM, before)
    if code:
        raise DiffCLIPError(f"img2dataset failed with exit code {code}: see what it said above")


def outcome_of(shards: Path) -> Counter[str]:
    """Count the pairs that img2dataset has done, "success" and each failure in its words."""
    outcome: Counter[str] = Counter()
    for stats in shards.glob("*_stats.json"):
        outcome.update(json.loads(stats.read_text(encoding="utf-8"))["status_dict"])
    return outcome
