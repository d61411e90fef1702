"""The images that a user names, read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffclip.cli.console import none_readable
from diffclip.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

    from diffclip.errors import Fault
    from diffclip.evaluation.embed import Progress


def read_images(
    files: Sequence[Path], named: Sequence[Path], progress: Progress, faults: list[Fault]
) -> Iterator[tuple[Path, Image.Image]]:
    """Yield each of `files` that can be read with its image, RGB; add the others to `faults`.

    Raises:
        InputError: one of the files in `named`, or all others, cannot be read.
    """
    from diffclip.data.images import read_image
    from diffclip.errors import sample_fault

    given = set(named)
    for file in files:
        try:
            image = read_image(file)
        except InputError as error:
            if file in given:
                raise
            faults.append(sample_fault(str(file), error))
        else:
            yield file, image
        progress("images", 1, None)
    if len(faults) == len(files):
        raise none_readable(faults)
