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


class ImageReader:
    """Read files, skip those of a folder that cannot be read, and collect their `faults`.

    Args:
        files: as `find_images` lists them.
        named: those named by the user, which must be readable.
        progress: told of each file ("images").
    """

    def __init__(self, files: Sequence[Path], named: Sequence[Path], progress: Progress) -> None:
        self.files, self.named, self.progress = files, set(named), progress
        self.read: list[Path] = []
        self.faults: list[Fault] = []

    def __iter__(self) -> Iterator[Image.Image]:
        """Give each image that can be read, as RGB; its file is then the last of `read`.

        Raises:
            InputError: one of the files in `named`, or all others, cannot be read.
        """
        from diffclip.data.images import read_image
        from diffclip.errors import sample_fault

        for file in self.files:
            try:
                image = read_image(file)
            except InputError as error:
                if file in self.named:
                    raise
                self.faults.append(sample_fault(str(file), error))
            else:
                self.read.append(file)
                yield image
            self.progress("images", 1, None)
        if not self.read:
            raise none_readable(self.faults)
