"""`diffclip data`: draw, pack, download and check data."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.console import Processes, print_table, say_skipped, show_progress
from diffclip.data.download import CAPTION_SETS, CaptionSet, fetch, img2dataset_command, prepare_list
from diffclip.data.published_sets import HUB, PUBLISHED, command_for, is_there, published_folder
from diffclip.errors import DiffCLIPError, InputError, unknown_name
from diffclip.files import check_new, check_writable, cores, printable, write_text

if TYPE_CHECKING:
    from diffclip.data.check import Check, Spread

_CAPTIONS = (
    "File of captions: CSV, TSV, JSON, JSON lines, Flickr's token file, Parquet, or a folder that the library datasets "
    "saved. Default: captions.… in SOURCE, or one file per split (…_train_….txt), each with a folder of its own."
)
_NAMES = (
    "Sets to evaluate on, as clip_benchmark calls them (cifar10, food101 …), or to train on: cc3m, cc12m."
)
_SHARDS = "Shards: folders, files, ranges '{000..127}.tar' or addresses, as a recipe names them."
_BYTES = 25_000  # approximate size of an image with the shorter edge at 224
_NAMED = 10  # faults of a kind that `check` prints at most

data = typer.Typer(help="Draw, pack, download and check data.", no_args_is_help=True)


@data.command("make-scenes")
def make_scenes(
    folder: Annotated[Path, typer.Argument(help="Target folder; finished parts are reused.")],
    size: Annotated[int, typer.Option(help="Edge of the images in pixels, 16 or more.")] = 64,
    train: Annotated[int, typer.Option(help="Captioned images to train on.")] = 20_000,
    val: Annotated[int, typer.Option(help="Captioned images to validate on.")] = 1_000,
    test: Annotated[int, typer.Option(help="Captioned images to test on.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the images.")] = 0,
    distractors: Annotated[
        int, typer.Option(help="Small objects in each image that no caption mentions, 0 to 64.")
    ] = 0,
    workers: Processes = None,
) -> None:
    """Draw the built-in set: captions, classes, shifted classes, minimal pairs, segmentation and questions.

    Example: diffclip data make-scenes data/scenes --train 20000 --seed 1
    """
    from diffclip.scenes import write_scenes

    with show_progress("Drawing scenes") as progress:
        at_once = workers or cores()
        drawn = write_scenes(folder, size, train, val, test, seed, progress, at_once, distractors)
    typer.echo(f"Drew the scenes in {folder}." if drawn else f"{folder} has these scenes already: reused.")


@data.command("make-shards")
def make_shards(
    source: Annotated[Path, typer.Argument(help="Folder of images, at any depth.")],
    folder: Annotated[Path, typer.Argument(help="New folder of the shards.")],
    captions: Annotated[Path | None, typer.Option(help=_CAPTIONS, metavar="<file>")] = None,
    edge: Annotated[
        int | None, typer.Option(help="Scale images down to this shorter edge, in pixels.", min=1)
    ] = None,
    workers: Processes = None,
) -> None:
    """Make shards to train on from a folder of images with captions.

    Example: diffclip data make-shards sets/flickr8k sets-80/flickr8k --edge 80

    Example: diffclip data make-shards photos shards --captions photos/captions.csv

    FOLDER appears when all its shards are complete. Images that are missing, broken or without captions are left
    out and named.
    """
    from diffclip.data.captions import read_captions
    from diffclip.data.make_shards import find_captions
    from diffclip.data.make_shards import make_shards as make

    files = {"": captions} if captions else find_captions(source)
    for split in files:
        check_new(folder / split)
    split_captions = {split: read_captions(file) for split, file in files.items()}
    for split, (texts, faults) in split_captions.items():
        target = folder / split
        with show_progress(f"Writing {target.name}") as advance:
            made = make(source, target, texts, edge, workers or cores(), advance)
        faults = made.faults + faults
        typer.echo(
            f"{made.samples:,} images with {made.captions:,} captions in {made.shards} shard{'s' * (made.shards != 1)} "
            f"in {target}; {len(faults):,} left out"
        )
        say_skipped("images", faults)
    if "" not in files:
        write_text(folder / "dataset_type.txt", "retrieval\n")
    typer.echo(f"Next: diffclip data check {shlex.quote(str(folder / next(iter(files))))}")


@data.command("download")
def download(
    names: Annotated[list[str], typer.Argument(help=_NAMES, metavar="NAME")],
    root: Annotated[Path, typer.Option(help="Folder of the sets; each set is ROOT/NAME.")],
    img2dataset: Annotated[
        bool, typer.Option("--img2dataset", help="Fetch each image of cc3m or cc12m from its own address.")
    ] = False,
) -> None:
    """Fetch published sets from the Hugging Face hub into ROOT/NAME, as shards.

    Example: diffclip data download cifar10 dtd --root sets

    Sets to train on become shards in ROOT/NAME/train. After a stop the same command continues.
    """
    root = root.expanduser()
    for name in names:
        if name not in PUBLISHED and name not in CAPTION_SETS:
            raise unknown_name("published set", name, [*PUBLISHED, *CAPTION_SETS])
        if name in PUBLISHED and not PUBLISHED[name].hub:
            raise InputError(f"{name} is fetched by hand: {command_for(name, root)}")
        if img2dataset and name not in CAPTION_SETS:
            raise InputError(f"--img2dataset is for {' and '.join(CAPTION_SETS)}, not {name}: leave it out")
    for name in dict.fromkeys(names):
        if name in CAPTION_SETS:
            _fetch_captions(name, root / name, img2dataset)
            continue
        entry, folder = PUBLISHED[name], published_folder(name, root)
        typer.echo(f"{name}: {entry.title}, from {HUB}/{entry.hub}")
        fetch(
            entry.hub, folder, ["*.txt", *(f"{split}/*" for split in entry.splits)] if entry.splits else None
        )
        if not is_there(name, "test", folder):
            raise DiffCLIPError(f"{HUB}/{entry.hub} has no {name} any more: look for it there")
        typer.echo(f"{name} is in {folder}.")


def _fetch_captions(name: str, folder: Path, img2dataset: bool) -> None:
    """Fetch one training set into the shards FOLDER/train, and continue where an earlier call stopped."""
    entry, shards = CAPTION_SETS[name], folder / "train"
    typer.echo(f"{name}: {entry.title}, {entry.pairs / 1e6:,.1f} million pairs, from {entry.home}")
    if img2dataset:
        _run_img2dataset(name, entry, folder, shards)
    else:
        share = f"{entry.on_hub:,} pairs ({entry.on_hub / entry.pairs:.0%})"
        typer.echo(f"{HUB}/{entry.hub} has {share} in whole shards")
        samples = fetch(entry.hub, shards, [f"{name}-train-*.tar"])
        typer.echo(f"{shards} has {samples:,} pairs, {samples / entry.pairs:.0%} of the published list.")
    typer.echo(f"Next: diffclip data check {shlex.quote(str(shards))}")


def _run_img2dataset(name: str, entry: CaptionSet, folder: Path, shards: Path) -> None:
    if not shutil.which("img2dataset"):
        raise InputError(
            "img2dataset, which fetches the images, is not installed: run pipx install img2dataset"
        )
    command = img2dataset_command(prepare_list(name, folder), shards)
    size = f"at most {entry.pairs * _BYTES / 1e9:,.0f} GB"
    typer.echo(
        f"img2dataset fetches each image from its own address, {size}. That takes hours to days, and many addresses "
        "are gone: in 2026, 62 to 64 % of CC3M and CC12M were left."
    )
    typer.echo(f"  {shlex.join(command)}")
    shards.mkdir(exist_ok=True)
    if code := subprocess.run(command, check=False).returncode:
        raise DiffCLIPError(f"img2dataset failed with exit code {code}: see its messages above")


@data.command("check")
def check(
    shards: Annotated[list[str], typer.Argument(help=_SHARDS, metavar="SHARDS")],
    output: Annotated[
        Path | None, typer.Option(help="Write the whole result to this file, as JSON.", metavar="<file>")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Read this many samples, drawn at random; default: all.", min=1)
    ] = None,
    workers: Processes = None,
    caption_key: Annotated[
        str, typer.Option(help="Key of the captions in .json, as data.caption_key in a recipe.")
    ] = "caption",
    image_key: Annotated[
        str | None, typer.Option(help="Endings of the images, as data.image_key: 'rgb.jpg;*.png'.")
    ] = None,
    text_key: Annotated[str | None, typer.Option(help="Endings of the captions, as data.text_key.")] = None,
    whole: Annotated[bool, typer.Option(help="A text is one caption, as data.captions=whole.")] = False,
    strict: Annotated[bool, typer.Option(help="Exit with 2 if anything is skipped or unreadable.")] = False,
) -> None:
    """Check shards: count samples, broken ones and duplicates, and measure image sizes and caption lengths.

    Every sample is read as training reads it. Memory grows by about 350 bytes per sample: for hundreds of
    millions of samples use --sample N.

    Example: diffclip data check sets/cc3m/train --output cc3m.json

    The exit code is 0 if any sample can be used, and 2 if none can or, with --strict, if any cannot.
    """
    from diffclip.data.pairs import PairKeys, Pairs

    if output is not None:
        if output.suffix == ".tar":  # an unquoted shell pattern may have put a shard here
            raise InputError(f"--output {output} would replace a shard: name a .json file")
        check_writable(output)
    pairs = Pairs(shards, PairKeys(image_key, text_key, caption_key, "whole" if whole else "lines"))
    from diffclip.data.check import check as look

    with show_progress("Reading") as progress:
        result = look(pairs, sample, workers or cores(), progress)
    print_table(("", "value"), "ll", _rows(result))
    unreadable = [*result.images_broken, *result.captions_broken]
    for label, faults in (("Skipped", result.skipped), ("Unreadable", unreadable), ("Notes", result.notes)):
        if faults:
            suffix = f", the first {_NAMED} of {len(faults):,}" if len(faults) > _NAMED else ""
            typer.echo(f"{label}{suffix}:")
        for fault in faults[:_NAMED]:
            typer.echo(f"  {printable(str(fault))}")
    if output is not None:
        write_text(output, json.dumps(asdict(result), indent=1) + "\n")
        typer.echo(f"wrote {output}")
    if strict and (count := len(result.skipped) + len(unreadable)):
        raise InputError(f"{count:,} faults in {', '.join(shards)}: mend or remove what is named above")


def _rows(result: Check) -> list[tuple[str, str]]:
    from diffclip.data.check import CONTEXT_LENGTH, LEARNED_AT

    repeated = sum(map(len, result.exact)) - len(result.exact)
    return [
        ("shards", f"{result.shards:,}"),
        ("faults in the shards", f"{len(result.skipped):,}"),
        ("samples with image and caption", f"{result.usable:,}"),
        ("read", "all" if result.read == result.usable else f"{result.read:,}, drawn at random"),
        ("can be trained on", _of(result.whole, result.read)),
        ("unreadable images", _of(len(result.images_broken), result.read)),
        ("unreadable captions", _of(len(result.captions_broken), result.read)),
        ("shorter edge", f"{_spread(result.shorter_edge)} px; below {LEARNED_AT}: {_of(result.small, result.whole)}"),
        ("captions", f"{result.captions:,}, {result.captions / result.whole:.2g} per image"),
        ("with several captions or lines", _of(result.several, result.whole)),
        ("tokens", _spread(result.tokens)),
        (f"cut at {CONTEXT_LENGTH} tokens", _of(result.truncated, result.captions)),
        ("same pixels as another", f"{_of(repeated, result.whole)}, groups: {len(result.exact):,}"),
    ]  # fmt: skip


def _of(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / max(total, 1):.3g} %)"


def _spread(values: Spread) -> str:
    texts = {name: f"{value:,.0f}" for name, value in values.items()}
    return (
        f"median {texts['median']}, 90 % within {texts['5 %']} to {texts['95 %']}, "
        f"min {texts['min']}, max {texts['max']}"
    )
