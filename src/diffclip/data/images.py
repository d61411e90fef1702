"""Any picture file to 8-bit RGB, read whole and upright, or one line that says why not."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps
from PIL.IcoImagePlugin import IcoFile

from diffclip.errors import InputError

# Twice Pillow's own warning threshold: where Pillow refuses a file, so do we.
MAX_PIXELS = 178_956_970

# What people keep pictures in. The rest of Pillow's readers are left out: EPS, say, runs another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO", "QOI", "PSD")
SUFFIXES = tuple(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib", "tif", "tiff", "avif"),
        *("jp2", "j2k", "ppm", "pgm", "pbm", "pnm", "ico", "qoi", "psd"),
    )
)

_TO_8_BIT = np.round(np.arange(65536) / 257).astype(np.uint8)


def read_image(
    source: str | Path | bytes, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Read one picture as RGB.

    The first frame of an animation, turned upright by its EXIF orientation; transparency lies over white;
    16-bit, 32-bit and floating-point grey is scaled to 8 bits; CMYK is converted as Pillow does.

    Args:
        source: a file, or the bytes of one.
        name: how errors call the picture; by default the path.
        max_pixels: refuse larger ones by what the header says, before anything is decoded.

    Returns:
        A loaded picture in mode RGB.

    Raises:
        InputError: missing or empty file, a folder, a pipe or device, not a picture, cut short or broken, above
            `max_pixels`.
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), len(source), name or "the picture", max_pixels)
    name = name or str(source)
    try:
        kind = os.stat(source).st_mode
        if stat.S_ISDIR(kind):
            raise InputError(f"{name} is a folder: give a picture file")
        if not stat.S_ISREG(kind):
            # to open a pipe would wait for a writer, perhaps for ever
            raise InputError(f"{name} is no regular file: give a picture file")
        with open(source, "rb") as handle:
            return _read(handle, os.fstat(handle.fileno()).st_size, name, max_pixels)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist: check the path of the picture") from None
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """The picture files among `paths`: files as they are, folders searched to the bottom in sorted order.

    Hidden files and folders, and in folders pipes and devices, are passed over; a file reached twice is listed once.

    Raises:
        InputError: no path at all, a path that does not exist, a folder without pictures.
    """
    if not paths:
        raise InputError("no picture given: name picture files or folders of them")
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = _pictures_in(path)
            if not inside:
                raise InputError(f"no picture in folder {path}: they end in .jpg, .png, .webp and the like")
            found.update(dict.fromkeys(inside))
        elif path.exists():
            found[path] = None
        else:
            raise InputError(f"{path} does not exist: give picture files or folders of them")
    return list(found)


def _pictures_in(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in files if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(filter(_may_be_read, found))


def _may_be_read(path: Path) -> bool:
    """Whether this is a regular file, or something that `read_image` has words for."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def _read(handle: IO[bytes], size: int, name: str, max_pixels: int) -> Image.Image:
    if size == 0:
        raise InputError(f"{name} is empty (0 bytes): replace it with a picture")
    picture = _open(handle, name, max_pixels)
    _check_size(picture.size, name, max_pixels)
    try:
        picture.load()
        _turn_upright(picture)
        return to_rgb(picture)
    # A damaged file makes Pillow's readers raise nearly anything, from SyntaxError to struct.error.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} is cut short or broken ({reason}): replace it by a whole one") from error


def _check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise InputError(
            f"{name} is larger than {max_pixels // 10**6} megapixels ({width}×{height}): scale it down first"
        )


def _open(handle: IO[bytes], name: str, max_pixels: int) -> Image.Image:
    """Read the header.

    This is `Image.open` without its check of the size, which warns about pictures that are fine here. To
    silence it picture by picture would make Python forget which other warnings it has shown already.
    """
    Image.init()
    broken: Exception | None = None
    prefix = handle.read(16)
    for kind in _FORMATS:
        factory, accept = Image.OPEN.get(kind, (None, None))
        if factory is None or (accept is not None and accept(prefix) is not True):
            continue
        handle.seek(0)
        try:
            if kind == "ICO":
                # its reader decodes at once, and what says 256 pixels at most may hold a PNG of any size
                _check_size(IcoFile(handle).frame(0).size, name, max_pixels)
                handle.seek(0)
            return factory(handle, "")
        except InputError:
            raise
        # As in `_read`.
        except Exception as error:
            broken = error
    what = "has a broken header" if broken else "is not a picture, or of an unknown kind"
    raise InputError(f"{name} {what}: give a whole JPEG, PNG, WebP, GIF, TIFF or BMP file") from broken


def _turn_upright(picture: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(picture, in_place=True)
    except Exception:
        # Damaged metadata says nothing about the pixels, which are whole.
        return


def to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _grey_to_8_bit(picture)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        white = Image.new("RGB", layer.size, (255, 255, 255))
        white.paste(layer, mask=layer)
        return white
    return picture if type(picture) is Image.Image and picture.mode == "RGB" else picture.convert("RGB")


def _grey_to_8_bit(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits, 32 bits or floats to L, or to LA where one grey value means transparent."""
    values: Any = np.asarray(picture)
    if picture.mode.startswith("I;16"):
        grey = _TO_8_BIT[values]
    else:
        values = np.where(np.isfinite(values), values, 0)
        low, high = float(values.min()), float(values.max())
        usual = (65535.0,) if picture.mode == "I" else (1.0, 255.0, 65535.0)
        if low >= 0 and high <= usual[-1]:
            low, high = 0.0, next(top for top in usual if high <= top)
        grey = np.round((values - low) * (255 / ((high - low) or 1.0))).astype(np.uint8)
    result = Image.fromarray(grey)
    clear = picture.info.get("transparency")
    if isinstance(clear, int):
        result.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return result
