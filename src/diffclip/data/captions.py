"""Read files of captions: CSV, TSV, JSON lines, COCO's JSON, Flickr's token file, Parquet and folders of `datasets`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
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
            with one object per line; `.json` with a list of such objects, with captions
            by image, or in COCO's format; `.parquet`, `.arrow`
            or a folder that the library datasets saved. The captions of an object may be a list. Columns and keys
            have one of the usual names.

    Raises:
        InputError: the file cannot be read, has no column of images or of captions, or has no caption.
    """
    captions: Captions = {}
    faults: list[Fault] = []
    for row in _rows(file):
        if isinstance(row, Fault):
            faults.append(row)
            continue
        image, texts = row
        if not _is_text(texts):
            raise InputError(
                f"{file}: the caption of {image} is {texts!r:.80}, which is not text: correct it"
            )
        values = texts if isinstance(texts, list) else [texts]
        cleaned = (" ".join(value.split()) for value in values if value)
        name = "" if image is None else str(image).strip()
        captions.setdefault(name, []).extend(text for text in cleaned if text)
    captions.pop("", None)
    if not any(captions.values()):
        first = f" (first: {faults[0]})" if faults else ""
        raise InputError(f"{file} has no caption{first}: give lines of an image and a caption")
    return CaptionFile(captions, faults)


def _is_text(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(text is None or isinstance(text, str) for text in values)


Row = tuple[Any, Any] | Fault
"""An image with its captions, or the fault of a row that is left out."""


def _rows(file: Path) -> Iterable[Row]:
    ending = file.suffix.lower()
    if file.is_dir() or ending in (".parquet", ".arrow"):
        return _arrow(file)
    text = read_text(file)
    if ending == ".jsonl":
        lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return _objects([(place, _json(line, f"{file}, {place}")) for place, line in lines], file)
    if ending == ".json":
        content = _json(text, str(file))
        if isinstance(content, list):
            return _objects([(f"entry {number}", item) for number, item in enumerate(content, 1)], file)
        by_image = list(content.items()) if isinstance(content, dict) else []
        if by_image and all(map(_is_text, (value for _, value in by_image))):
            return iter(by_image)
        return _coco(content, file)
    return _tokens(text, file) if _TOKEN.match(text) else _table(text, file)


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid JSON ({error}): correct it") from None


def _objects(objects: list[tuple[str, Any]], file: Path) -> Iterator[Row]:
    """Yield image and captions of each object, which is given with its place in the file."""
    for place, item in objects:
        columns = _columns(item) if isinstance(item, dict) else (None, None)
        if None in columns:
            yield Fault(f"{file}, {place}", "has no image or no caption")
        else:
            yield item[columns[0]], item[columns[1]]


def _coco(content: Any, file: Path) -> Iterator[Row]:
    """Yield the rows of COCO's JSON. The images are in the order of their ids, as in COCO's own reader."""
    advice = "fetch it again, or give a list of objects with image and caption"
    with explain_errors(f"{file} is not COCO's JSON of captions", advice):
        names = {image["id"]: image["file_name"] for image in content["images"]}
        pairs = [(annotation["image_id"], annotation["caption"]) for annotation in content["annotations"]]
        yield from ((names[number], []) for number in sorted(names))
        for number, caption in pairs:
            missing = Fault(f"{file}, annotation of image {number}", "has no such image")
            yield (names[number], caption) if number in names else missing


def _tokens(text: str, file: Path) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if match := _TOKEN.match(line):
            yield match["image"], match["caption"]
        elif line.strip():
            yield Fault(f"{file}, line {number}", "is not NAME#NUMBER<tab>CAPTION")


def _table(text: str, file: Path) -> Iterator[Row]:
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
    if not rows:
        raise InputError(f"{file} is empty: give lines of an image and a caption")
    head = rows[0][1]
    image, caption = map(head.index, _required_columns(head, file))
    # if the captions are the last column, an unquoted delimiter in a caption is part of the caption
    end = None if caption == len(head) - 1 else caption + 1
    for number, row in rows[1:]:
        if len(row) > max(image, caption):
            yield row[image], delimiter.join(row[caption:end])
        else:
            yield Fault(f"{file}, line {number}", f"has {len(row)} of {len(head)} columns")


def _arrow(file: Path) -> Iterator[Row]:
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
        files = sorted(path for path in file.iterdir() if path.suffix in (".arrow", ".parquet"))
        if not files:
            folders = ", ".join(sorted(path.name for path in file.iterdir() if path.is_dir())) or "none in it"
            raise InputError(f"{file} has no .arrow or .parquet file: name a split's folder ({folders})")
    has_names = False
    for path in files:
        with explain_errors(f"{path} cannot be read", "give a whole file"):
            is_parquet = path.suffix == ".parquet"
            source = (
                parquet.ParquetFile(path)
                if is_parquet
                else pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
            )
            schema = source.schema_arrow if is_parquet else source.schema
            image, caption = _required_columns(schema.names, file)
            # an image in the file: only its path is read
            is_inside = pyarrow.types.is_struct(schema.field(image).type)
            columns = [f"{image}.path" if is_inside else image, caption]
            table = source.read(columns) if is_parquet else source.read_all()
            names = compute.struct_field(table[image], "path") if is_inside else table[image]
            for name, texts in zip(names.to_pylist(), table[caption].to_pylist(), strict=True):
                has_names = has_names or bool(name)
                yield name, texts
    if not has_names:
        raise InputError(
            f"{file} has no names of images: write its images into a folder, and their names beside the captions"
        )


def _columns(names: Iterable[str]) -> tuple[str | None, str | None]:
    """Find the columns or keys of images and of captions."""
    columns = {name.strip().lower(): name for name in names}
    image, caption = (
        next((columns[name] for name in usual if name in columns), None) for usual in _COLUMN_NAMES.values()
    )
    return image, caption


def _required_columns(names: list[str], file: Path) -> tuple[str, str]:
    image, caption = _columns(names)
    if image is None or caption is None:
        missing = "image" if image is None else "caption"
        raise InputError(
            f"{file} has no column of {missing}s among {', '.join(names)}: name one of them {missing!r} (of a table in "
            "its first line)"
        )
    return image, caption
