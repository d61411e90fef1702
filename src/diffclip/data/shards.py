"""WebDataset tar shards on disk: find shards by name, write members."""

from __future__ import annotations

import glob
import io
import os
import re
import tarfile
from pathlib import Path

from braceexpand import braceexpand

from diffclip.errors import InputError

SEVERAL = "several are a list in a recipe, '[first, second]', or words"
_PACKED = re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz|zip)$")


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file as webdataset's writer does, but without a time, so that equal contents give equal bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o444
    member.uname = member.gname = "bigdata"
    tar.addfile(member, io.BytesIO(content))


def expand_shards(spec: str) -> list[Path]:
    """List the shard files that `spec` names.

    Args:
        spec: a file, a folder (all its *.tar in natural order: 2.tar before 10.tar), a brace range such as
            `train/{000..127}.tar`, or a pattern with `*`.

    Raises:
        InputError: a file does not exist, or a folder or pattern has no shards.
    """
    text = os.path.expanduser(spec)
    names = [text] if os.path.exists(text) else expand_braces(text)
    matches = {name: [name] if os.path.exists(name) else glob.glob(name) for name in names}
    if missing := [name for name, paths in matches.items() if not paths]:
        which = f", one of {len(missing)} missing in {text}" if len(names) > 1 else ""
        advice = "give a folder of .tar shards (`diffclip data make-shards` makes one)"
        if missing[0].startswith("pipe:"):
            advice = "commands are not run, give the address that it reads, such as s3://… or https://…"
        elif "," in missing[0]:
            advice = SEVERAL
        raise InputError(f"{missing[0]} does not exist{which}: {advice}")
    found = [path for paths in matches.values() for path in sorted(map(Path, sorted(paths)), key=natural_key)]
    return [shard for path in found for shard in (tar_files(path) if path.is_dir() else [path])]


def tar_files(folder: Path) -> list[Path]:
    """List all *.tar of `folder` in natural order. Raise `InputError` if there is none."""
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if tars := [path for path in files if path.suffix == ".tar"]:
        return sorted(tars, key=natural_key)
    advice = "give the folder that holds them, or make shards of images with diffclip data make-shards"
    packed = sorted(path.name for path in files if _PACKED.search(path.name.lower()))
    if packed:
        advice = f"it has {packed[0]}, unpack it to a .tar, from which samples can be read in any order"
    elif below := sorted({path.parent for path in folder.glob("*/*.tar")}):
        advice = f"its folder {below[0].name} has some, give {below[0]}"
    raise InputError(f"no .tar shards in folder {folder}: {advice}")


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sort key of a natural order: 2.tar before 10.tar."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path.name)]


def expand_braces(text: str) -> list[str]:
    """Expand brace ranges, or raise `InputError` if the braces are not paired."""
    try:
        return list(braceexpand(text))
    except ValueError:
        raise InputError(f"shards {text!r} have unpaired braces: write a range as {{0..9}}") from None
