"""Read files of captions: CSV, TSV, JSON lines, COCO's JSON, Flickr's token file, Parquet and folders of `datasets`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.errors import Fault, InputError, explain_errors
from diffclip.files import read_text

Captions = dict[str, list[str]]
"""Image file → its captions, in the order of the caption file (COCO's JSON: in the order of the image ids)."""

SUFFIXES_OF_CAPTIONS = (".csv", ".tsv", ".txt", ".token", ".jsonl", ".json", ".parquet", ".arrow")
# The usual names of the columns or keys.
_COLUMN_NAMES = {
    "image": ("image", "file_name", "filename", "filepath", "image_path", "path", "file", "image_name", "image_id"),
    "caption": ("caption", "captions", "text", "sentence", "comment", "description", "title", "raw"),
}  # fmt: skip
_TOKEN = re.compile(r"(?P<image>[^\t]+)#\d+\t(?P<caption>.*)")


class CaptionFile(NamedTuple):
    """The captions of a caption file, and the faults of the rows that are left out."""

    captions: Captions
    faults: list[Fault]


def read_captions(file: Path) -> CaptionFile:
    """Read the captions of images from a caption file. An image with only blank captions gets an empty list.

    Args:
        file: `.csv`, `.tsv` or `.txt` with a header; `.token` or `.txt` of `NAME#NUMBER<tab>CAPTION` lines; `.jsonl`
            with one object per line; `.json` with a list of such objects, or in COCO's format; `.parquet`, `.arrow`
            or a folder that the library datasets saved. The captions of an object may be a list. Columns and keys
            have one of the usual names.

    Raises:
        InputError: the file cannot be read, has no column of images or of captions, or has no caption.
    """
    ending = file.suffix.lower()
    faults: list[Fault] = []
    pairs: Iterable[tuple[Any, ...]]
    if file.is_dir() or ending in (".parquet", ".arrow"):
        pairs = _arrow(file)
    elif ending == ".jsonl":
        lines = [(number, line) for number, line in enumerate(read_text(file).split("\n"), 1) if line.strip()]
        objects = [(f"line {number}", _json(line, f"{file}, line {number}")) for number, line in lines]
        pairs = _pairs_of(objects, file, faults)
    elif ending == ".json":
        content = _json(read_text(file), str(file))
        if isinstance(content, list):
            objects = [(f"entry {number}", item) for number, item in enumerate(content, 1)]
            pairs = _pairs_of(objects, file, faults)
        else:
            pairs = _coco(content, file, faults).items()
    elif _TOKEN.match(text := read_text(file)):
        pairs = _tokens(text, file, faults)
    else:
        pairs = _table(text, file, faults)
    captions: Captions = {}
    for image, texts in pairs:
        values = texts if isinstance(texts, list) else [texts]
        if not all(value is None or isinstance(value, str) for value in values):
            raise InputError(f"{file}: the caption of {image} is {texts!r}, which is not text: correct it")
        cleaned = (" ".join(value.split()) for value in values if value)
        captions.setdefault("" if image is None else str(image).strip(), []).extend(
            text for text in cleaned if text
        )
    captions.pop("", None)
    if not any(captions.values()):
        raise InputError(f"{file} has no caption: give lines of an image and a caption")
    return CaptionFile(captions, faults)


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}): correct it") from None


def _coco(content: Any, file: Path, faults: list[Fault]) -> Captions:
    """Read COCO's JSON. The images are in the order of their ids, as in COCO's own reader."""
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        captions: Captions = {names[number]: [] for number in sorted(names)}
        for annotation in content["annotations"]:
            if annotation["image_id"] in names:
                captions[names[annotation["image_id"]]].append(annotation["caption"])
            else:
                faults.append(
                    Fault(f"{file}, annotation of image {annotation['image_id']}", "has no such image")
                )
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{file} is not COCO's JSON of captions ({reason}): fetch it again, or give a list of objects with image "
            "and caption"
        ) from error
    return captions


def _tokens(text: str, file: Path, faults: list[Fault]) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        if match := _TOKEN.match(line):
            pairs.append((match["image"], match["caption"]))
        elif line.strip():
            faults.append(Fault(f"{file}, line {number}", "is not NAME#NUMBER<tab>CAPTION"))
    return pairs


def _table(text: str, file: Path, faults: list[Fault]) -> list[tuple[str, str]]:
    text = text.replace("\r", " ")  # only \n ends a row, while the reader would also end it at \r
    first = text.partition("\n")[0]
    # without a tab, the first mark is the delimiter: the first line may have other marks in a caption
    delimiter = "\t" if "\t" in first else next((mark for mark in first if mark in "|;,"), ",")
    # only files separated by , or ; use quotes, and those of mehdidc/retrieval_annotations do not
    is_quoted = delimiter in ",;" and not file.name.endswith("_karpathy.txt")
    quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(row)]
    except csv.Error as error:
        raise InputError(f"{file}, up to line {reader.line_num}: {error}; is a quote not closed?") from None
    head = rows[0][1] if rows else [""]
    image, caption = (head.index(_column(head, field, file)) for field in _COLUMN_NAMES)
    # if the captions are the last column, an unquoted delimiter in a caption is part of the caption
    end, pairs = None if caption == len(head) - 1 else caption + 1, []
    for number, row in rows[1:]:
        if len(row) > max(image, caption):
            pairs.append((row[image], delimiter.join(row[caption:end])))
        else:
            faults.append(Fault(f"{file}, line {number}", f"has {len(row)} of {len(head)} columns"))
    return pairs


def _pairs_of(objects: list[tuple[str, Any]], file: Path, faults: list[Fault]) -> list[tuple[Any, ...]]:
    """Return image and captions of each object, which is given with its place in the file."""
    pairs, problem = [], InputError(f"{file} has no caption: give an object per image, with its captions")
    for place, item in objects:
        try:
            if not isinstance(item, dict):
                raise InputError(
                    f"{file} is not a list of objects: give one object per image, with its captions"
                )
            pairs.append(tuple(item[_column(item, field, file)] for field in _COLUMN_NAMES))
        except InputError as error:
            problem = error
            faults.append(Fault(f"{file}, {place}", "has no image or no caption"))
    if not pairs:
        raise problem
    return pairs


def _arrow(file: Path) -> list[tuple[Any, ...]]:
    """Read a Parquet file, an Arrow stream, or a folder of them as `datasets.save_to_disk` writes it."""
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError:
        raise InputError(
            f"{file} needs pyarrow: run pip install pyarrow; or make a CSV of it elsewhere, with "
            "pandas.read_parquet('FILE').to_csv('captions.csv')"
        ) from None
    files = [file]
    if file.is_dir():
        files = sorted(path for ending in ("*.arrow", "*.parquet") for path in file.glob(ending))
        folders = ", ".join(sorted(path.name for path in file.iterdir() if path.is_dir()))
        if not files:
            raise InputError(
                f"{file} has no .arrow or .parquet file: name a split's folder ({folders or 'none in it'})"
            )
    pairs: list[tuple[Any, ...]] = []
    for path in files:
        with explain_errors(f"{path} cannot be read", "give a whole file"):
            if path.suffix == ".parquet":
                source = parquet.ParquetFile(path)
                schema = source.schema_arrow
            else:
                source = pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
                schema = source.schema
            image, caption = (_column(schema.names, field, file) for field in _COLUMN_NAMES)
            # an image in the file: only its path is read
            is_inside = pyarrow.types.is_struct(schema.field(image).type)
            columns = [f"{image}.path" if is_inside else image, caption]
            table = source.read(columns) if path.suffix == ".parquet" else source.read_all()
            names = compute.struct_field(table[image], "path") if is_inside else table[image]
            pairs += zip(names.to_pylist(), table[caption].to_pylist(), strict=True)
    if not any(name for name, _ in pairs):
        raise InputError(
            f"{file} has no names of images: write its images into a folder, and their names beside the captions"
        )
    return pairs


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
