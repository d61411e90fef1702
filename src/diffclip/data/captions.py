"""Read captions: of caption files (CSV, TSV, JSON lines, COCO's JSON, Flickr's token file, Kaggle's Flickr8k), and of
samples of shards."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.files import read_text

Captions = dict[str, list[str]]
"""Image file → its captions, in the order of the caption file (COCO's JSON: in the order of the image ids)."""

SUFFIXES_OF_CAPTIONS = (".csv", ".tsv", ".txt", ".token", ".jsonl", ".json")
# The usual names of the columns or keys.
_COLUMN_NAMES = {
    "image": ("image", "file_name", "filename", "filepath", "image_path", "path", "file", "image_name", "image_id"),
    "caption": ("caption", "captions", "text", "sentence", "comment", "description", "title", "raw"),
}  # fmt: skip
_TOKEN = re.compile(r"(?P<image>[^\t]+)#\d+\t(?P<caption>.*)")


def read_captions(file: Path) -> Captions:
    """Read the captions of images from a caption file. An image with only blank captions gets an empty list.

    Args:
        file: `.csv`, `.tsv` or `.txt` with a header; `.token` or `.txt` of `NAME#NUMBER<tab>CAPTION` lines; `.jsonl`
            with one object per line; `.json` with a list of such objects, or in COCO's format. The captions of an
            object may be a list. Columns and keys have one of the usual names.

    Raises:
        InputError: the file cannot be read, has no column of images or of captions, or has no caption.
    """
    text, ending = read_text(file), file.suffix.lower()
    pairs: Iterable[tuple[Any, ...]]
    if ending == ".jsonl":
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        pairs = _pairs_of([_json(line, f"{file}, line {number}") for number, line in lines], file)
    elif ending == ".json":
        content = _json(text, str(file))
        pairs = _pairs_of(content, file) if isinstance(content, list) else _coco(content, file).items()
    elif _TOKEN.match(text):
        matches = [_TOKEN.match(line) for line in text.split("\n")]
        pairs = [(match["image"], match["caption"]) for match in matches if match]
    else:
        pairs = _table(text, file)
    captions: Captions = {}
    for image, texts in pairs:
        values = texts if isinstance(texts, list) else [texts]
        if not all(value is None or isinstance(value, str) for value in values):
            raise InputError(f"{file}: the caption of {image} is {texts!r}, which is not text: correct it")
        cleaned = (" ".join(value.split()) for value in values if value)
        captions.setdefault(str(image).strip(), []).extend(text for text in cleaned if text)
    captions.pop("", None)
    if not any(captions.values()):
        raise InputError(f"{file} has no caption: give lines of an image and a caption")
    return captions


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}): correct it") from None


def _coco(content: Any, file: Path) -> Captions:
    """Read COCO's JSON. The images are in the order of their ids, as in COCO's own reader."""
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        captions: Captions = {names[number]: [] for number in sorted(names)}
        for annotation in content["annotations"]:
            captions[names[annotation["image_id"]]].append(annotation["caption"])
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{file} is not COCO's JSON of captions ({reason}): fetch it again, or give a list of objects with image "
            "and caption"
        ) from error
    return captions


def _table(text: str, file: Path) -> list[tuple[str, str]]:
    first = text.partition("\n")[0]
    # without a tab, the first mark is the delimiter: the first line may have other marks in a caption
    delimiter = "\t" if "\t" in first else next((mark for mark in first if mark in "|;,"), ",")
    # only files separated by , or ; use quotes, and those of mehdidc/retrieval_annotations do not
    is_quoted = delimiter in ",;" and not file.name.endswith("_karpathy.txt")
    quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        rows = [row for row in reader if any(row)]
    except csv.Error as error:
        raise InputError(f"{file}, up to line {reader.line_num}: {error}; is a quote not closed?") from None
    head = rows[0] if rows else [""]
    image, caption = (head.index(_column(head, field, file)) for field in _COLUMN_NAMES)
    # if the captions are the last column, an unquoted delimiter in a caption is part of the caption
    end = None if caption == len(head) - 1 else caption + 1
    return [
        (row[image], delimiter.join(row[caption:end])) for row in rows[1:] if len(row) > max(image, caption)
    ]


def _pairs_of(objects: list[Any], file: Path) -> list[tuple[Any, ...]]:
    if not all(isinstance(item, dict) for item in objects):
        raise InputError(f"{file} is not a list of objects: give one object per image, with its captions")
    return [tuple(item[_column(item, field, file)] for field in _COLUMN_NAMES) for item in objects]


def _column(names: Iterable[str], field: str, file: Path) -> str:
    """Find the column or key of `field`, which is "image" or "caption"."""
    columns = {name.strip().lower(): name for name in names}
    for name in _COLUMN_NAMES[field]:
        if name in columns:
            return columns[name]
    raise InputError(
        f"{file} has no column of {field}s among {', '.join(columns)}: name one of them {field!r} (of a table in its "
        "first line)"
    )
