"""Fetch published sets from their publishers. Training sets are shards on the hub, or lists of addresses, of which
img2dataset fetches the images."""

from __future__ import annotations

import csv
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from diffclip.data.published_sets import HUB, PUBLISHED, published_folder, publishers_split
from diffclip.errors import DiffCLIPError, InputError, explain_errors, require_group
from diffclip.files import cores, write_atomically

_ADVICE = "check the network and the folder, and start again"
# The settings of the paper's authors for img2dataset.
_SETTINGS = (
    "--image_size 224 --resize_mode keep_ratio --resize_only_if_bigger True --encode_format jpg --encode_quality 95 "
    "--extract_exif False --output_format webdataset --incremental_mode incremental --enable_wandb False "
    "--thread_count 64"
)


class CaptionSet(NamedTuple):
    """A published list of image addresses and captions to train on.

    `columns` are the columns of addresses and captions. A TSV has no header, so they are in the order of its columns.
    If the list must be fetched by hand, `address` is empty and `wants` says why. `hub` is a repository of whole shards,
    with `on_hub` pairs that still existed when they were made (from the repository's card, and the comment on sizes in
    OpenCLIP's `data.py`).
    """

    title: str
    home: str
    pairs: int
    columns: tuple[str, str]
    address: str = ""
    wants: str = ""
    hub: str = ""
    on_hub: int = 0


# fmt: off
CAPTION_SETS = {
    "cc3m": CaptionSet(
        "Conceptual Captions 3M", "https://ai.google.com/research/ConceptualCaptions", 3_318_333,
        ("caption", "url"), "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv",
        hub="pixparse/cc3m-wds", on_hub=2_905_954),
    "cc12m": CaptionSet(
        "Conceptual 12M", "https://github.com/google-research-datasets/conceptual-12m", 12_423_374,
        ("url", "caption"), "https://storage.googleapis.com/conceptual_12m/cc12m.tsv",
        hub="pixparse/cc12m-wds", on_hub=10_968_539),
    # the list has a line for each of the five captions of an image
    "mscoco": CaptionSet(
        "COCO captions, train2017", "https://cocodataset.org", 591_753, ("URL", "TEXT"),
        f"{HUB}/ChristophSchuhmann/MS_COCO_2017_URL_TEXT/resolve/main/mscoco.parquet"),
    "laion400m": CaptionSet(
        "LAION-400M", "https://laion.ai/blog/laion-400-open-dataset", 413_000_000, ("URL", "TEXT"),
        wants=f"its list is given to those who sign in at {HUB}/laion/relaion400m"),
}
# fmt: on


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one evaluation set into ROOT/NAME and return this folder. It appears only when it is complete.

    Raises:
        InputError: a file or folder is in the way or cannot be written, or clip_benchmark is needed but not installed.
        DiffCLIPError: the publisher cannot be reached, or the files are broken.
    """
    from torchvision.datasets.utils import download_and_extract_archive, download_url, extract_archive

    entry, target = PUBLISHED[name], published_folder(name, root)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        advice = "move it, or choose another --root"
        raise InputError(f"{target} exists but is not a complete {entry.title}: {advice}")
    message = f"cannot fetch {name} from {entry.home}"
    with write_atomically(target) as folder, explain_errors(message, _ADVICE, DiffCLIPError):
        folder.mkdir()
        if entry.reader == "pairs":
            from huggingface_hub import snapshot_download

            snapshot_download("MMVP/MMVP_VLM", repo_type="dataset", local_dir=folder)
        elif not entry.archives:
            require_group("eval", "clip_benchmark", "requests", "scipy")
            from clip_benchmark.datasets.builder import build_dataset

            split = publishers_split(name, entry.splits[0])
            build_dataset(name, root=str(folder), split=split, download=True)
        for address in entry.archives:
            if address.endswith(".json"):
                download_url(address, folder)
            else:
                download_and_extract_archive(address, folder, remove_finished=True)
        if name == "caltech101":
            extract_archive(folder / "caltech-101" / "101_ObjectCategories.tar.gz", folder / "caltech101")
        for archive in [*folder.rglob("*.tar.gz"), *folder.rglob("*.tgz")]:
            archive.unlink()
    return target


def fetch_shards(name: str, shards: Path) -> int:
    """Fetch the training shards of a set from the hub into the folder `shards`, and return the number of their samples.
    A later call continues after a stop, and fetches what is missing.

    Raises:
        InputError: the folder holds shards of another origin.
        DiffCLIPError: the hub cannot be reached, or shards are broken; these are removed.
    """
    from huggingface_hub import snapshot_download

    from diffclip.data.index import open_indexes  # imports torch, and commands check names first

    repository, pattern = CAPTION_SETS[name].hub, f"{name}-train-*.tar"
    if foreign := set(shards.glob("*.tar")) - set(shards.glob(pattern)):
        advice = "go on with --img2dataset, or choose another --root"
        raise InputError(f"{shards} holds other shards ({min(foreign).name}): {advice}")
    with explain_errors(f"cannot fetch {HUB}/{repository}", _ADVICE, DiffCLIPError):
        snapshot_download(repository, repo_type="dataset", allow_patterns=pattern, local_dir=shards)
    headers = {path: index.header for path, index in open_indexes(shards.glob(pattern), tables=False).items()}
    broken = [path for path, header in headers.items() if header.faults]
    for path in broken:
        path.unlink()
    if broken or not headers:
        problem = f"{len(broken)} shards were broken and are removed" if broken else f"has no {pattern}"
        raise DiffCLIPError(f"{HUB}/{repository}: {problem}: start again")
    return sum(sum(header.counts) for header in headers.values())


def prepare_list(name: str, folder: Path) -> Path:
    """Fetch the list of a training set into `folder`, unless it is there, and return its path.

    A TSV is rewritten as `urls.tsv`, with the header and the quotes that CSV readers expect. Lines without an address
    or a caption are left out. Parquet files are used as they are.

    Raises:
        InputError: the list must be fetched by hand, or has no usable line.
        DiffCLIPError: the list cannot be fetched.
    """
    from torch.hub import download_url_to_file

    entry, cleaned = CAPTION_SETS[name], folder / "urls.tsv"
    source = folder / (entry.address.rpartition("/")[2] or "list")
    if cleaned.exists():
        return cleaned
    if not entry.address and not source.exists():
        raise InputError(f"{name}: {entry.wants}; put its .parquet files into {source} and start again")
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with explain_errors(f"cannot fetch {entry.address}", _ADVICE, DiffCLIPError):
            download_url_to_file(entry.address, str(source))
    if source.suffix != ".tsv":
        return source
    url = entry.columns.index("url")
    # split only at \n: a caption may contain other characters that Python takes for the end of a line
    with source.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        rows = ([" ".join(cell.replace("\0", "").split()) for cell in line.split("\t")] for line in lines)
        usable = (
            row for row in rows if len(row) == 2 and row[url].lower().startswith("http") and row[1 - url]
        )
        first = next(usable, None)
        if first is None:
            line = "holds no line with an address and a caption"
            raise InputError(f"{source} {line}: remove it and start again")
        with (
            write_atomically(cleaned) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            # the writer escapes quotes: otherwise a quote in a caption would swallow the text after it
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerows(chain([entry.columns, first], usable))
    return cleaned


def img2dataset_command(name: str, path: Path, shards: Path) -> list[str]:
    """Return the img2dataset command that fetches the images of the list at `path` into shards."""
    url, caption = sorted(CAPTION_SETS[name].columns, key=lambda column: column.lower() != "url")
    kind = "tsv" if path.suffix == ".tsv" else "parquet"
    paths = ["--url_list", str(path), "--output_folder", str(shards)]
    columns = f"--input_format {kind} --url_col {url} --caption_col {caption}"
    return ["img2dataset", *paths, *f"{columns} --processes_count {cores()} {_SETTINGS}".split()]
