"""Fetch published sets from their publishers; sets to train on are lists of addresses that img2dataset fetches."""

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
from typing import NamedTuple

from diffclip.data.published_sets import HUB, PUBLISHED, place_of, publishers_split
from diffclip.errors import DiffCLIPError, InputError, StoppedError, explained, require_group
from diffclip.files import write_atomically, write_text

_AGAIN = "check the network and the folder, and start again"
_WEB = re.compile(r"https?://", re.IGNORECASE)
# of img2dataset, by the paper's authors
_SETTINGS = (
    "--image_size 224 --resize_mode keep_ratio --resize_only_if_bigger True --encode_format jpg --encode_quality 95 "
    "--extract_exif False --output_format webdataset --incremental_mode incremental --enable_wandb False"
)


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


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one set to evaluate on into ROOT/NAME, which appears whole and is returned.

    Raises:
        InputError: something is in the way, the disk refuses, or clip_benchmark is needed and not installed.
        DiffCLIPError: the publisher cannot be reached, or the files are broken.
    """
    from torchvision.datasets.utils import download_and_extract_archive, download_url, extract_archive

    entry, place = PUBLISHED[name], place_of(name, root)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(
            f"{place} is in the way and holds no whole {entry.title}: move it or give another root"
        )
    what = f"cannot fetch {name} from {entry.home}"
    with write_atomically(place) as whole, explained(what, _AGAIN, DiffCLIPError):
        whole.mkdir()
        if entry.reader == "pairs":
            from huggingface_hub import snapshot_download

            snapshot_download("MMVP/MMVP_VLM", repo_type="dataset", local_dir=whole)
        elif not entry.archives:
            require_group("eval", "clip_benchmark", "requests", "scipy")
            from clip_benchmark.datasets.builder import build_dataset

            split = publishers_split(name, entry.splits[0])
            build_dataset(name, root=str(whole), split=split, download=True)
        for address in entry.archives:
            if address.endswith(".json"):
                download_url(address, whole)
            else:
                download_and_extract_archive(address, whole, remove_finished=True)
        if name == "caltech101":
            extract_archive(whole / "caltech-101" / "101_ObjectCategories.tar.gz", whole / "caltech101")
        for archive in [*whole.rglob("*.tar.gz"), *whole.rglob("*.tgz")]:
            archive.unlink()
    return place


def prepare_list(entry: CaptionSet, place: Path, own: str | None = None) -> tuple[Path, tuple[str, str]]:
    """Fetch the list of a set into its folder `place`, unless it is there.

    A TSV is rewritten as `urls.tsv`, with a header and quotes as CSV readers want it; lines without an address or a
    caption are left out. Parquet files are used as they are.

    Args:
        own: a list with the same columns to use instead: an address, a .tsv, a .parquet file or a folder of them.

    Returns:
        The list, and the names of its columns of addresses and captions.

    Raises:
        InputError: `own` is missing or of another kind, or holds no line of use; the set was begun with another list.
        DiffCLIPError: the list cannot be fetched.
    """
    source, cleaned, begun = own or entry.address, place / "urls.tsv", place / "list.txt"
    if begun.exists() and (before := begun.read_text(encoding="utf-8")) != source:
        raise InputError(f"{place} holds shards of another list ({before}): choose another --root")
    if cleaned.exists():
        return cleaned, ("url", "caption")
    found = Path(source)
    if _WEB.match(source):
        from torchvision.datasets.utils import download_url

        found = place / "list" / source.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
        if not found.exists():
            what = f"cannot fetch {source}"
            with write_atomically(found) as temporary, explained(what, _AGAIN, DiffCLIPError):
                download_url(source, temporary.parent, temporary.name)
    elif not found.exists():
        raise InputError(f"the list {source} does not exist: give a .tsv, .parquet files, or an address")
    if found.is_dir() or found.suffix == ".parquet":
        write_text(begun, source)
        return found, entry.columns
    if found.suffix not in (".tsv", ".txt"):
        raise InputError(f"the list {found} is neither .tsv nor .parquet: convert it to one of these")
    try:
        _clean(found, cleaned, entry)
    except InputError:
        if _WEB.match(source):  # perhaps a page of an error, and the list is there the next time
            found.unlink()
        raise
    write_text(begun, source)
    return cleaned, ("url", "caption")


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


def require_tool() -> None:
    """Raise `InputError` if img2dataset is not installed."""
    if not shutil.which("img2dataset"):
        raise InputError(
            "img2dataset, which fetches the images, is not installed: run pipx install img2dataset"
        )


def command_of(path: Path, columns: tuple[str, str], shards: Path, processes: int, threads: int) -> list[str]:
    """Write the command of img2dataset for the list at `path`."""
    kind = "tsv" if path.suffix == ".tsv" else "parquet"
    columns_of_list = f"--input_format {kind} --url_col {columns[0]} --caption_col {columns[1]}"
    at_once = f"--processes_count {processes} --thread_count {threads}"
    places = ["--url_list", str(path), "--output_folder", str(shards)]
    return ["img2dataset", *places, *f"{columns_of_list} {at_once} {_SETTINGS}".split()]


def run_tool(command: Sequence[str], shards: Path) -> Counter[str]:
    """Run img2dataset to its end; it writes to the terminal. Ctrl-C, SIGTERM and a closed terminal end img2dataset too.

    Returns:
        The number of pairs done so far: "success", and each failure in img2dataset's words.

    Raises:
        DiffCLIPError: the tool failed.
        StoppedError: SIGTERM or SIGHUP.
    """

    def stop(*_: object) -> None:
        raise StoppedError(f"asked to stop: the same command goes on with what is in {shards}")

    shards.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"}
    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    # a session of its own, so that its workers can be ended with it
    tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    before = {one: signal.signal(one, stop) for one in heard}
    try:
        code = tool.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        tool.wait()
        for one, handler in before.items():
            signal.signal(one, handler)
    if code:
        raise DiffCLIPError(f"img2dataset failed with exit code {code}: see its messages above")
    outcome: Counter[str] = Counter()
    for stats in shards.glob("*_stats.json"):
        outcome.update(json.loads(stats.read_text(encoding="utf-8"))["status_dict"])
    return outcome
