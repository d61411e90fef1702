"""Fetching published sets from their publishers into ROOT/NAME, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from diffclip.data.published_files import build
from diffclip.data.published_sets import PublishedSet, in_bytes, place_of, published
from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import disk_errors

# An archive and what is unpacked from it lie side by side for a while.
_ROOM = 2.2
_MMVP = "MMVP/MMVP_VLM"


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
    folder = Path(root).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    needed, free = _ROOM * sum(published(name).size for name in names), shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{', '.join(names)} need {in_bytes(int(needed))} in {root}, where {in_bytes(free)} are free (archives and "
            "what is unpacked from them): make room or give another root"
        )


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one set that needs no one's help; it is complete where it lies in ROOT/NAME.

    Returns:
        ROOT/NAME.

    Raises:
        InputError: the disk refuses, or clip_benchmark is needed and not installed.
        DiffCLIPError: the publisher cannot be reached, or what came is broken.
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
                reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
                raise DiffCLIPError(
                    f"cannot fetch {name} from {entry.home} ({reason}): check the network and start again"
                ) from error
            os.replace(whole, place)
    return place


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
