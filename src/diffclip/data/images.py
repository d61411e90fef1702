"""Read any image file as 8-bit RGB, whole and upright, or say in one line why it cannot be read."""

from __future__ import annotations

import importlib
import io
import os
import re
import struct
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from diffclip.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

IMAGE = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jxl")
"""The endings of images in shards."""
MAX_PIXELS = 178_956_970
"""Twice Pillow's warning threshold: Pillow itself refuses larger files, and smaller ones need no warning."""
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

# The other readers of Pillow are left out: EPS, for example, runs another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "QOI")
# Not in shards, which may come from strangers: the readers of these formats had holes again and again.
_OWN_FORMATS = (*_FORMATS, "JPEG2000", "PSD")
# Formats that packages add to Pillow: the format, a package, modules that add it, and the start of a file.
_ADDED = (
    ("HEIF", "pillow-heif", ("pillow_heif", "pi_heif"), re.compile(rb"(?s)....ftyp(hei|hev|mif|msf)")),
    ("JXL", "pillow-jxl-plugin", ("pillow_jxl",), re.compile(rb"(?s)\xff\x0a|....JXL ")),
)
_MORE_ENDINGS = ("jpe", "jfif", "mpo", "apng", "dib", "jp2", "j2k", "ppm", "pgm", "pbm", "pnm", "qoi", "psd")
_NOT_READ = (
    *("hif", "heics", "avifs", "cr2", "cr3", "nef", "arw", "sr2", "srw", "pef", "dng", "orf", "rw2", "raf"),
    *("svg", "eps", "ico", "icns", "tga", "exr", "hdr", "dds", "pcx", "xcf", "psb", "jxr", "jpf", "jpx"),
    *("j2c", "3fr"),
)
SUFFIXES = tuple(f".{ending}" for ending in (*IMAGE, *_MORE_ENDINGS, *_NOT_READ))
"""The endings of image files in folders, also of those that cannot be read, so that they are counted and named."""

ORIENTATION = 0x0112  # EXIF tag
# Files and folders, in lower case, that systems and servers put beside a user's files.
_OF_SYSTEMS = (
    *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information"),
    *("@eadir", "lost+found"),
)


def read_image(
    source: str | Path | bytes, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Read one image, a file or the bytes of one, as RGB, loaded.

    An animation gives its first frame. The EXIF orientation is applied. Transparent images are put on white, gray of
    16 or 32 bits or of floats is scaled to 8 bits, and CMYK is converted as in Pillow.

    `name` is the image's name in errors, by default the path. `InputError` is raised for a missing or empty file, a
    folder, a file that is no image, is cut short or broken, or has more than `max_pixels` by its header.
    """
    formats = _FORMATS if isinstance(source, bytes) else _OWN_FORMATS
    name = name or ("the image" if isinstance(source, bytes) else str(source))
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as handle:
            return _load(_open(handle, name, max_pixels, formats), name)
    except FileNotFoundError:
        raise InputError(name, "does not exist", "check the path of the image") from None
    except OSError as error:
        raise InputError(name, f"cannot be read ({error.strerror or error})", "give an image file") from error


def read_pixels(data: bytes, name: str = "the image") -> Tensor:
    """Read one image from the bytes of its file as a tensor with the pixels, and the errors, of `read_image`: uint8
    [3, H, W]; in memory, the three values of a pixel are adjacent.

    torchvision decodes ordinary JPEGs, because it writes RGB directly, while Pillow first makes 32 bits per pixel. Both
    use the same library. Pillow reads all other files, and the files that torchvision refuses.
    """
    import torch  # here, so that commands can check their arguments without loading it
    import torchvision

    is_ordinary = _is_plain_jpeg(data)
    if not is_ordinary:
        image = _open(io.BytesIO(data), name)
        is_ordinary = image.format == "JPEG" and image.mode in ("RGB", "L") and orientation_of(image) == 1
    if is_ordinary:
        coded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with suppress(RuntimeError):
            return torchvision.io.decode_jpeg(coded, torchvision.io.ImageReadMode.RGB)
    return torch.from_numpy(np.array(_load(_open(io.BytesIO(data), name), name))).permute(2, 0, 1)


def _is_plain_jpeg(data: bytes) -> bool:
    """Tell whether a file begins as a JPEG in gray or color that is not too large, without EXIF, which may turn it, and
    without further images. Pillow, which judges all other files, takes a tenth of a sample's time to read this."""
    position = 2 if data.startswith(b"\xff\xd8\xff") else len(data)
    while len(data) - position >= 10:
        start, marker, length = struct.unpack_from(">BBH", data, position)
        if marker in (0xC0, 0xC1, 0xC2):  # the frame: baseline, extended or progressive
            bits, height, width, colors = struct.unpack_from(">BHHB", data, position + 4)
            return start == 0xFF and bits == 8 and colors in (1, 3) and 0 < height * width <= MAX_PIXELS
        is_known = marker == 0xC4 or (0xDB <= marker <= 0xFE and marker != 0xE1)
        if start != 0xFF or not is_known or data.startswith(b"MPF", position + 4):
            return False
        position += 2 + length
    return False


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the bytes of an image file; `options` are arguments of Pillow's `save`."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is hidden or made by a system: `._a.jpg`, `.DS_Store`, `__MACOSX` …"""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _OF_SYSTEMS


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """List the image files among `paths`: files as they are, folders searched to the bottom in sorted order.

    Hidden files and folders are left out; a file reached twice is listed once. A path that does not exist, or a folder
    without images, raises `InputError`.
    """
    images: list[Path] = []
    for path in map(Path, paths):
        files = image_files(path) if path.is_dir() else [path]
        if not path.exists():
            raise InputError(f"{path} does not exist: give image files or folders of them")
        if not files:
            raise InputError(
                f"folder {path} has no image: give a folder of .jpg, .png, .webp or similar files"
            )
        images += files
    return list(dict.fromkeys(images))


def image_files(folder: Path, follow_links: bool = False) -> list[Path]:
    """List the image files below a folder, sorted. With `follow_links`, also those behind links to folders; each folder
    is searched once, under its own name if it has one."""
    paths: list[Path] = []
    tops, searched = [folder], set()
    for top in tops:  # grows by the links that the search finds
        for parent, folders, files in os.walk(top):
            status = os.stat(parent)
            if (status.st_dev, status.st_ino) in searched:
                folders.clear()
                continue
            searched.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            images = (name for name in files if name.lower().endswith(SUFFIXES) and not is_hidden(name))
            paths += [Path(parent, name) for name in images]
            if follow_links:
                tops += [Path(parent, name) for name in folders if os.path.islink(Path(parent, name))]
    # no pipes: opening one would wait for a writer; a dangling link is listed as an image that cannot be read
    return sorted(path for path in paths if path.is_file() or not path.exists())


def _open(
    handle: IO[bytes], name: str, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = _FORMATS
) -> Image.Image:
    """Read the header of an image, and refuse an image that is too large."""
    start = handle.read(12)
    handle.seek(0)
    added = next((entry for entry in _ADDED if entry[3].match(start)), None)
    try:
        image = Image.open(handle, formats=_add_format(added[0], added[2]) if added else formats)
        if image.width * image.height <= max_pixels:
            return image
        size = f" ({image.width}×{image.height})"
    except Image.DecompressionBombError:
        size = ""
    except Exception as error:  # a damaged header makes Pillow's readers raise nearly anything
        if not start:
            raise InputError(name, "is empty (0 bytes)", "replace it with an image") from None
        if added and added[0] not in Image.OPEN:
            reason = f"is {added[0]}, which {added[1]} reads"
            raise InputError(name, reason, f"pip install {added[1]}") from None
        advice = "give a whole JPEG, PNG, WebP, GIF, TIFF or BMP file"
        raise InputError(name, "is not an image, or of an unknown kind", advice) from error
    raise InputError(name, f"is larger than {max_pixels // 10**6} megapixels{size}", "scale it down first")


@cache
def _add_format(name: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Let the first installed module add its format to Pillow; return the formats to try."""
    for module_name in modules:
        with suppress(ImportError):
            module = importlib.import_module(module_name)
            # pillow_jxl adds its format when it is imported
            getattr(module, "register_heif_opener", lambda: None)()
            break
    # a file that starts like HEIF may be AVIF
    return (name, "AVIF") if name in Image.OPEN else ("AVIF",)


def _load(image: Image.Image, name: str) -> Image.Image:
    from diffclip.preprocess import to_rgb  # here, because it imports torch

    try:
        image.load()
        if orientation_of(image) != 1:
            ImageOps.exif_transpose(image, in_place=True)
        return to_rgb(image)
    except Exception as error:  # a damaged file makes Pillow's readers raise nearly anything
        reason = f"is cut short or broken ({' '.join(str(error).split()) or type(error).__name__})"
        raise InputError(name, reason, "replace it with a whole file") from error


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation from 1 to 8; 1 if the metadata is damaged, because the pixels may be whole."""
    with suppress(Exception):
        orientation = int(image.getexif().get(ORIENTATION) or 1)
        return orientation if orientation in range(1, 9) else 1
    return 1
