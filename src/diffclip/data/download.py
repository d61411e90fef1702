"""Fetch published sets into ROOT/NAME: those to evaluate on by torchvision, lists of images to train on by img2dataset.

img2dataset is a program of its own, run with the settings of the paper's authors; what it has fetched it leaves alone
when it is started again.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffclip.data.caption_sets import EDGE, QUALITY, CaptionSet
from diffclip.data.published_files import build
from diffclip.data.published_sets import PublishedSet, in_bytes, place_of, published
from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import disk_errors, write_atomically

# An archive and what is unpacked from it lie side by side for a while.
_ROOM = 2.2
_MMVP = "MMVP/MMVP_VLM"
_TOOL = "img2dataset"
_WEB = re.compile(r"https?://", re.IGNORECASE)


def check_room(place: Path, size: float, what: str) -> None:
    """Raise `InputError` where the disk of `place` has fewer than `size` bytes left for `what`."""
    folder = place.expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size:
        raise InputError(
            f"{what} need {in_bytes(int(size))} in {place}, where {in_bytes(free)} are free: "
            "make room or give another root"
        )


def check_fetch(names: Sequence[str], root: str | Path) -> None:
    """Find out before a download whether there is place for the sets `names`.

    Raises:
        InputError: the disk has too little space for all of them, or something is in the way of one.
    """
    for name in names:
        place = place_of(name, root)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise InputError(
                f"{place} is in the way, it does not hold a whole {published(name).title}: move it or give another root"
            )
    check_room(Path(root), _ROOM * sum(published(name).size for name in names), ", ".join(names))


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one set that needs no one's help; it is complete where it lies in ROOT/NAME.

    Returns:
        ROOT/NAME.

    Raises:
        InputError: the disk refuses, or clip_benchmark is needed and not installed.
        DiffCLIPError: the publisher cannot be reached, or the files are broken.
    """
    entry, place = published(name), place_of(name, root)
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=place.parent, prefix=f".{name}.", ignore_cleanup_errors=True
        ) as made:
            whole = Path(made, "whole")
            whole.mkdir()
            try:
                _fetch(name, entry, whole)
            except (InputError, PermissionError):
                raise
            # Networks, archives and checksums fail in as many ways as there are libraries in between.
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise _unreachable(f"{name} from {entry.home}", error) from error
            os.replace(whole, place)
    return place


def _unreachable(what: str, error: Exception) -> DiffCLIPError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DiffCLIPError(f"cannot fetch {what} ({reason}): check the network and start again")


def _fetch(name: str, entry: PublishedSet, place: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive, download_url, extract_archive

    if entry.layout == "mmvp":
        from huggingface_hub import snapshot_download

        snapshot_download(_MMVP, repo_type="dataset", local_dir=place)
    elif not entry.archives:
        build(name, entry.splits[0], place, download=True)
    for address in entry.archives:
        if address.endswith(".json"):
            download_url(address, place)
        else:
            download_and_extract_archive(address, place, remove_finished=True)
    if name == "caltech101":
        inner = place / "caltech-101" / "101_ObjectCategories.tar.gz"
        extract_archive(inner, place / "caltech101", remove_finished=True)
    for pattern in ("*.tar.gz", "*.tgz"):
        for archive in [*place.glob(pattern), *place.glob(f"*/{pattern}")]:
            archive.unlink()


def find_tool(given: Path | None = None) -> list[str]:
    """The words that start img2dataset: the program `given`, that on PATH, or one that uvx or pipx run.

    Raises:
        InputError: there is none of these.
    """
    for words in [[str(given)]] if given else [[_TOOL], ["uvx", _TOOL], ["pipx", "run", _TOOL]]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    if given is not None:
        raise InputError(f"{given} is no program: give the path of img2dataset, or leave --img2dataset out")
    raise InputError("img2dataset, which fetches the images, is not installed: run pipx install img2dataset")


def prepare_list(
    entry: CaptionSet, place: Path, own: str | None = None, columns: tuple[str, str] | None = None
) -> tuple[Path, tuple[str, str]]:
    """Fetch the list of a set into its folder `place`, unless it is there.

    A TSV is rewritten as `urls.tsv`, with a header, one caption a line, and quoted as CSV readers want it; lines
    without an address or a caption are left out. Parquet files are used as they are.

    Args:
        own: a list to use instead of the published one: an address, a .tsv, a .parquet file or a folder of them.
        columns: names of the columns of addresses and captions in `own`.

    Returns:
        The list, and the names of its columns of addresses and captions.

    Raises:
        InputError: `own` is missing or of another kind, or holds no line of use.
        DiffCLIPError: the list cannot be fetched.
    """
    sources = [own] if own else entry.files
    if (place / "urls.tsv").exists():
        return place / "urls.tsv", ("url", "caption")
    local = [_local(source, place) for source in sources]
    if local[0].is_dir() or local[0].suffix == ".parquet":
        return local[0] if len(local) == 1 else local[0].parent, columns or entry.columns
    if local[0].suffix not in (".tsv", ".txt"):
        raise InputError(f"the list {sources[0]} is neither .tsv nor .parquet: convert it to one of these")
    _clean(local[0], place / "urls.tsv", columns or ("url", "caption"), entry)
    return place / "urls.tsv", ("url", "caption")


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
        with disk_errors(target), write_atomically(target) as temporary:
            try:
                download_url(source, temporary.parent, temporary.name)
            except Exception as error:
                raise _unreachable(source, error) from error
    return target


def _clean(source: Path, target: Path, names: tuple[str, str], entry: CaptionSet) -> None:
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
            if number == 0 and set(cells) == set(names):
                order = cells.index(names[0])
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
        "image_size": EDGE,
        "resize_mode": "keep_ratio",
        "resize_only_if_bigger": True,
        "encode_format": "jpg",
        "encode_quality": QUALITY,
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
