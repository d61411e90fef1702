"""Write shards with every problem that a check of data must find, from images that look different."""

from pathlib import Path

import made_sets
import numpy as np
from made_sets import write_shard_of
from PIL import Image

LONG = "a very long caption " * 25 + "the end"


def smooth_image(number: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Create an image that looks the same at another size; each number gives another look."""
    values = np.random.default_rng(number).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", quality: int = 90) -> bytes:
    return made_sets.encoded(image, kind, quality=quality)


def plain(prefix: str, numbers: range) -> list[tuple[str, dict[str, bytes]]]:
    return [
        (f"{prefix}{n:02d}", {"jpg": encoded(smooth_image(n)), "txt": f"picture number {n}".encode()})
        for n in numbers
    ]


def write_odd_shards(folder: Path) -> Path:
    """Write three shards of 20, 21 and 3 samples that have an image and a caption, and a broken shard.

    `cut` has half an image, and `latin` a caption that is not UTF-8. `twin` is the file of `s01`. `small` and `worse`
    are `s02` at half its size and at quality 30. `white` and `whiter` show nothing. `long` has a caption that no model
    reads to its end. `both` has two captions. `bare` has no caption, and `blind` has no image.
    """
    write_shard_of(folder / "0.tar", plain("s", range(20)))
    second = smooth_image(2)
    half = encoded(second.resize((second.width // 2, second.height // 2)))
    white, whiter = Image.new("RGB", (40, 40), "white"), Image.new("RGB", (41, 40), (250, 250, 250))
    samples: list[tuple[str, dict[str, bytes]]] = [
        ("bare", {"jpg": encoded(smooth_image(50))}),
        ("blind", {"txt": b"nothing to see"}),
        ("both", {"png": encoded(smooth_image(51), "PNG"), "txt": b"one line\nand more"}),
        ("cut", {"jpg": encoded(smooth_image(52))[:900], "txt": b"half of it"}),
        ("latin", {"jpg": encoded(smooth_image(53)), "txt": b"caf\xe9 au lait"}),
        ("long", {"jpg": encoded(smooth_image(54, (300, 90))), "txt": LONG.encode()}),
        ("small", {"jpg": half, "txt": b"a small photo"}),
        ("twin", {"jpg": encoded(smooth_image(1)), "txt": b"a photo"}),
        ("white", {"png": encoded(white, "PNG"), "txt": b"a cloud"}),
        ("whiter", {"png": encoded(whiter, "PNG"), "txt": b"a cloud"}),
        ("worse", {"jpg": encoded(second, quality=30), "txt": b"a photo"}),
    ]
    write_shard_of(folder / "1.tar", [*samples, *plain("t", range(60, 72))])
    write_shard_of(folder / "2.tar", plain("u", range(80, 83)))
    (folder / "3.tar").write_bytes(b"")
    return folder
