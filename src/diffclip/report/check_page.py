"""A check of shards as one self-contained HTML page: numbers, and the images behind them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from diffclip.data.check import Check, Scan, near_groups
from diffclip.data.corpus import Corpus
from diffclip.data.images import read_pixels
from diffclip.errors import Fault, require_group

_SHOWN, _ODD, _GROUPS, _LISTED = 24, 6, 8, 20
# pixels of an image on the page, at most
_THUMBNAIL = (300, 200)


class _Card(NamedTuple):
    image: str
    captions: list[str]
    note: str


def check_page(check: Check, scan: Scan, corpus: Corpus, headline: str, rows: list[tuple[str, str]]) -> str:
    """Fill the template; the images that it shows are read again.

    Raises:
        InputError: jinja2 is not installed.
    """
    require_group("report", "jinja2")
    from jinja2 import Environment

    samples = scan.samples
    drawn = np.random.default_rng(0).choice(len(samples), min(_SHOWN, len(samples)), replace=False)
    shorter = np.minimum(samples["width"], samples["height"])
    longer = np.maximum(samples["width"], samples["height"])
    odd = {
        "Smallest": np.argsort(shorter, kind="stable"),
        "Most elongated": np.argsort(-longer / shorter, kind="stable"),
        "One color only": np.flatnonzero(samples["one_color"]),
        "Largest files": np.argsort(-samples["size"], kind="stable"),
    }
    sections = {
        "Samples": _cards(corpus, samples, np.sort(drawn)),
        **{name: _cards(corpus, samples, places[:_ODD]) for name, places in odd.items() if len(places)},
    }
    for number, places in enumerate(near_groups(samples)[:_GROUPS], 1):
        sections[f"Look alike, group {number} of {len(check.near)}"] = _cards(corpus, samples, places[:_ODD])
    broken = [*check.skipped, *check.images_broken, *check.captions_broken]
    template = files("diffclip.report").joinpath("check_page.html.j2").read_text("utf-8")
    return Environment(autoescape=True).from_string(template).render(
        check=check, headline=headline, rows=rows, sections=sections, broken=broken[:_LISTED], faults=len(broken)
    )  # fmt: skip


def _cards(corpus: Corpus, samples: Any, places: Iterable[int]) -> list[_Card]:
    cards = []
    for place in places:
        row = samples[int(place)]
        sample = corpus.read(int(row["number"]))
        if not isinstance(sample, Fault):
            note = f"{row['width']}×{row['height']}, {row['size']:,} bytes, {sample.name}"
            cards.append(_Card(_thumbnail(sample.image, sample.name), sample.captions, note))
    return cards


def _thumbnail(data: bytes, name: str) -> str:
    image = Image.fromarray(read_pixels(data, name).permute(1, 2, 0).contiguous().numpy())
    image.thumbnail(_THUMBNAIL)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return base64.b64encode(buffer.getvalue()).decode()
