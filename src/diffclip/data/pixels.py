"""Any picture file to pixels in a tensor: ordinary JPEGs by torchvision's decoder, everything else by Pillow.

Both decode JPEGs with the same library, but Pillow makes a picture of 32 bits a pixel in between. Where the two would
differ is told from the file's markers, and Pillow reads those: more than 8 bits, four components, a rotation, a
marker out of place, as in files that were cut short. What is damaged within a scan both read alike, but the library
says so on standard error when torchvision calls it.
"""

from __future__ import annotations

import re

import numpy as np
import torch
import torchvision
from torch import Tensor

from diffclip.data.images import MAX_PIXELS, read_image

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_APP1, _SCAN = 0xE1, 0xDA
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
# Tables, restart intervals, comments and what applications add.
_SKIPPED = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
# All but what scans are made of and lie between: an escaped 255, restarts, Huffman tables, the next scan.
_OUT_OF_PLACE = re.compile(rb"\xff[^\x00\xc4\xd0-\xd7\xda]", re.DOTALL)
# EXIF's tag in either byte order, or XMP's, unless it is one 16-bit number and says upright.
_ORIENTATION = re.compile(
    rb"\x01\x12(?!\0\x03\0\0\0\x01\0\x01)|\x12\x01(?!\x03\0\x01\0\0\0\x01\0)|tiff:Orientation"
)


def read_pixels(data: bytes, name: str | None = None) -> Tensor:
    """The pixels of one picture file, as `read_image` gives them.

    Args:
        data: the bytes of a file.
        name: how errors call the picture.

    Returns:
        uint8 [3, H, W], RGB, upright; in memory the three values of a pixel lie together.

    Raises:
        InputError: as `read_image`.
    """
    if _is_ordinary_jpeg(data):
        try:
            pixels: Tensor = torchvision.io.decode_jpeg(
                torch.frombuffer(bytearray(data), dtype=torch.uint8), torchvision.io.ImageReadMode.RGB
            )
        # A damaged file, or a torchvision without this decoder: Pillow has the last word, and the better ones.
        except Exception:
            pass
        else:
            return pixels
    return torch.from_numpy(np.array(read_image(data, name))).permute(2, 0, 1)


def _is_ordinary_jpeg(data: bytes) -> bool:
    if not data.startswith(_START):
        return False
    frames, at = 0, 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end < at + 4 or end > len(data):
            return False
        if kind == _SCAN:
            stray = _OUT_OF_PLACE.search(data, end)
            return frames == 1 and stray is not None and data[stray.start() :] == _END
        if kind in _FRAMES:
            frames += 1
            if not _is_ordinary_frame(data[at + 4 : end]):
                return False
        elif kind not in _SKIPPED or (kind == _APP1 and _ORIENTATION.search(data, at, end)):
            return False
        at = end
    return False


def _is_ordinary_frame(frame: bytes) -> bool:
    if len(frame) < 6 or frame[0] != 8 or frame[5] not in (1, 3):
        return False
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return 0 < height * width <= MAX_PIXELS
