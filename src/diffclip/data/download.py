"""Fetch sets: whole shards from the Hugging Face hub, or, with img2dataset, images from their own addresses."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from diffclip.data.published_sets import HUB
from diffclip.errors import DiffCLIPError, InputError, explain_errors
from diffclip.files import check_writable, cores, write_atomically

_ADVICE = "check the network and the folder, and start again"
# The settings of the paper's authors for img2dataset.
_SETTINGS = (
    "--image_size 224 --resize_mode keep_ratio --resize_only_if_bigger True --encode_format jpg --encode_quality 95 "
    "--extract_exif False --output_format webdataset --incremental_mode incremental --enable_wandb False "
    "--thread_count 64"
)


class CaptionSet(NamedTuple):
    """A published list of image addresses and captions to train on.

    `columns` are those of the list at `address`. `hub` is a repository of whole shards, with `on_hub` pairs that still
    existed when they were made (from the repository's card, and the comment on sizes in OpenCLIP's `data.py`).
    """

    title: str
    home: str
    pairs: int
    columns: tuple[str, str]
    address: str
    hub: str
    on_hub: int


# fmt: off
CAPTION_SETS = {
    "cc3m": CaptionSet(
        "Conceptual Captions 3M", "https://ai.google.com/research/ConceptualCaptions", 3_318_333,
        ("caption", "url"), "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv",
        "pixparse/cc3m-wds", 2_905_954),
    "cc12m": CaptionSet(
        "Conceptual 12M", "https://github.com/google-research-datasets/conceptual-12m", 12_423_374,
        ("url", "caption"), "https://storage.googleapis.com/conceptual_12m/cc12m.tsv",
        "pixparse/cc12m-wds", 10_968_539),
}
# fmt: on


def fetch(repository: str, folder: Path, patterns: Sequence[str] | None = None) -> int:
    """Fetch the files of a dataset on the hub that fit `patterns` (None: all) into `folder`, and return the number of
    samples in its shards. A later call continues after a stop, and fetches what is missing.

    Raises:
        InputError: the folder cannot be written, or holds files of another origin.
        DiffCLIPError: the hub cannot be reached, or shards are broken; these are removed.
    """
    from huggingface_hub import snapshot_download

    from diffclip.data.index import open_indexes  # imports torch, and commands check names first

    check_writable(folder / "file")
    is_used = folder.is_dir() and any(folder.iterdir())
    if is_used and not (folder / ".cache" / "huggingface").is_dir():  # the hub's client keeps its state there
        raise InputError(f"{folder} holds files of another origin: move it, or choose another --root")
    with explain_errors(f"cannot fetch {HUB}/{repository}", _ADVICE, DiffCLIPError):
        snapshot_download(repository, repo_type="dataset", allow_patterns=patterns, local_dir=folder)
    indexes = open_indexes(folder.rglob("*.tar"), tables=False)
    broken = [path for path, index in indexes.items() if index.header.faults]
    for path in broken:
        path.unlink()
    if broken:
        problem = f"{len(broken)} shards were broken and are removed"
        raise DiffCLIPError(f"{HUB}/{repository}: {problem}: start again")
    return sum(sum(index.header.counts) for index in indexes.values())


def prepare_list(name: str, folder: Path) -> Path:
    """Fetch the list of a training set into `folder`, unless it is there, and return its path.

    The TSV is rewritten as `urls.tsv`, with the header and the quotes that CSV readers expect. Lines without an address
    or a caption are left out.

    Raises:
        InputError: the list has no usable line.
        DiffCLIPError: the list cannot be fetched.
    """
    from torch.hub import download_url_to_file

    entry, cleaned = CAPTION_SETS[name], folder / "urls.tsv"
    source = folder / entry.address.rpartition("/")[2]
    if cleaned.exists():
        return cleaned
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with explain_errors(f"cannot fetch {entry.address}", _ADVICE, DiffCLIPError):
            download_url_to_file(entry.address, str(source))
    url = entry.columns.index("url")
    # split only at \n: a caption may contain other characters that Python takes for the end of a line
    with (
        source.open(encoding="utf-8", errors="replace", newline="\n") as lines,
        write_atomically(cleaned) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        # the writer escapes quotes: otherwise a quote in a caption would swallow the text after it
        writer, count = csv.writer(file, delimiter="\t", lineterminator="\n"), 0
        writer.writerow(entry.columns)
        for line in lines:
            row = [" ".join(cell.replace("\0", "").split()) for cell in line.split("\t")]
            if len(row) == 2 and row[url].lower().startswith("http") and row[1 - url]:
                writer.writerow(row)
                count += 1
        if not count:
            raise InputError(
                f"{source} holds no line with an address and a caption: remove it and start again"
            )
    return cleaned


def img2dataset_command(path: Path, shards: Path) -> list[str]:
    """Return the img2dataset command that fetches the images of the list at `path` into shards."""
    paths = ["--url_list", str(path), "--output_folder", str(shards)]
    columns = "--input_format tsv --url_col url --caption_col caption"
    return ["img2dataset", *paths, *f"{columns} --processes_count {cores()} {_SETTINGS}".split()]
