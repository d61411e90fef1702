"""The published sets of images with captions to train on: lists of addresses, and what fetching them takes.

Columns, addresses of the lists and measured speeds are those of img2dataset's documentation
(rom1504/img2dataset, `dataset_examples/`), on 16 cores with 2 Gbit/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from braceexpand import braceexpand

EDGE = 224
"""Pixels of the shorter edge, as the paper's authors kept their images."""
QUALITY = 95
"""Of the JPEG files, img2dataset's own default."""

# img2dataset measured 331 GB for 10.8 M images of 256 × 256 with borders; whole at 224 they have a third more pixels
_IMAGE = 40_000
_LINE = 200
_MEASURED_PROCESSES = 16


@dataclass(frozen=True)
class CaptionSet:
    """A published list of addresses with captions.

    Attributes:
        title: its usual name.
        home: the publisher's page.
        pairs: lines of the list.
        left: share of the images that could still be fetched, when someone counted last.
        counted: when that was, and by whom.
        rate: pairs a second that img2dataset measured, failures included.
        columns: names of the columns of addresses and of captions in its parquet files; for a TSV "url" and "caption"
            in the order of its columns, as such a list has no header.
        addresses: where the list lies; empty where it must be fetched by hand. Braces stand for several files.
        wants: why by hand.
    """

    title: str
    home: str
    pairs: int
    left: float
    counted: str
    rate: int
    columns: tuple[str, str] = ("url", "caption")
    addresses: str = ""
    wants: str = ""

    @property
    def files(self) -> list[str]:
        return list(braceexpand(self.addresses)) if self.addresses else []


_HUB = "https://huggingface.co/datasets"

CAPTION_SETS = {
    "cc3m": CaptionSet(
        "Conceptual Captions 3M",
        "https://ai.google.com/research/ConceptualCaptions",
        3_318_333,
        0.70,
        "January 2024, by img2dataset's issue 391",
        850,
        ("caption", "url"),
        "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv",
    ),
    "cc12m": CaptionSet(
        "Conceptual 12M",
        "https://github.com/google-research-datasets/conceptual-12m",
        12_423_374,
        0.62,
        "October 2025, by conceptual-12m's issue 9",
        630,
        ("url", "caption"),
        "https://storage.googleapis.com/conceptual_12m/cc12m.tsv",
    ),
    # each of its images is listed with each of its five captions
    "mscoco": CaptionSet(
        "COCO captions, train2017",
        "https://cocodataset.org",
        591_753,
        1.0,
        "February 2022, by clip-retrieval's issue 75",
        800,
        ("URL", "TEXT"),
        f"{_HUB}/ChristophSchuhmann/MS_COCO_2017_URL_TEXT/resolve/main/mscoco.parquet",
    ),
    "laion400m": CaptionSet(
        "LAION-400M",
        "https://laion.ai/blog/laion-400-open-dataset",
        413_000_000,
        0.68,
        "February 2024, by img2dataset's issue 400",
        1300,
        ("URL", "TEXT"),
        wants=f"its list is given to those who sign in at {_HUB}/laion/relaion400m",
    ),
    "coyo700m": CaptionSet(
        "COYO-700M",
        "https://github.com/kakaobrain/coyo-dataset",
        746_972_269,
        0.85,
        "August 2022, by its publisher",
        # not measured; LAION-400M's images are of the same kind
        1300,
        ("url", "text"),
        f"{_HUB}/kakaobrain/coyo-700m/resolve/main/data/"
        "part-{00000..00127}-17da4908-939c-46e5-91d0-15f256041956-c000.snappy.parquet",
    ),
}


def needs(entry: CaptionSet, processes: int) -> tuple[int, int, float]:
    """Estimate the images that come, their bytes on disk, and the hours for `processes` processes.

    The size counts the list twice: img2dataset makes a copy of it for the time of the run.
    """
    images = round(entry.left * entry.pairs)
    hours = entry.pairs / (entry.rate * processes / _MEASURED_PROCESSES) / 3600
    return images, images * _IMAGE + 2 * entry.pairs * _LINE, hours
