"""Read files of captions: CSV, TSV, JSON lines, COCO's JSON, Flickr's token file, Parquet and folders of `datasets`."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.errors import Fault, InputError, explain_errors
from diffclip.files import read_text

CaptionsByImage = dict[str, list[str]]
"""Image file → its captions, in the order of the caption file (COCO's JSON: in the order of the image ids)."""

_LINES, _ARROW = (".jsonl", ".ndjson"), (".parquet", ".arrow")
SUFFIXES_OF_CAPTIONS = (".csv", ".tsv", ".txt", ".token", ".json", *_LINES, *_ARROW)
# The usual names of the columns or keys.
_IMAGE = (
    *("image", "file_name", "filename", "filepath", "file_path", "image_path", "path", "file", "image_file"),
    *("image_name", "image_filename", "img", "image_id"),
)
_CAPTION = (
    *("caption", "captions", "text", "sentence", "sentences", "comment", "description", "title", "raw"),
    *("alt_text", "prompt"),
)
_PART = re.compile(r"(.+)-\d+-of-\d+\.")  # a file of a split, such as `train-00000-of-00002.parquet`
_TOKEN = re.compile(r"(?P<image>[^\t]+)#\d+\t(?P<caption>.*)")

Row = tuple[str, Any]
"""The place of a row in its file, and the row: a mapping with an image and its captions, under usual names."""


class CaptionFile(NamedTuple):
    """The captions of a caption file, and the faults of the rows that are left out."""

    captions: CaptionsByImage
    faults: list[Fault]


def read_captions(file: Path) -> CaptionFile:
    """Read the captions of images from a caption file. An image with only blank captions gets an empty list.

    Args:
        file: `.csv`, `.tsv` or `.txt` with a header; `.token` or `.txt` of `NAME#NUMBER<tab>CAPTION` lines; `.jsonl`
            with one object per line; `.json` with a list of such objects (also as the only list of an object), with
            captions by image, or in COCO's format; `.parquet`, `.arrow` or a folder that the library datasets saved.
            The captions of an object may be a list, also written as a text, or objects themselves. Columns and keys
            have one of the usual names.

    Raises:
        InputError: the file cannot be read, has images of several splits (they would be packed together), has no column
            of images or of captions, or has no caption.
    """
    captions: CaptionsByImage = {}
    faults: list[Fault] = []
    splits: dict[str, None] = {}
    for place, row in _rows(file):
        fields = row if isinstance(row, Mapping) else {}
        image, caption = _column(fields, _IMAGE), _column(fields, _CAPTION)
        if image is None or caption is None or (name := row[image]) in (None, ""):
            faults.append(Fault(f"{file}, {place}", "has no image or no caption"))
            continue
        if (texts := _texts(row[caption])) is None:
            reason = f"the caption of {name} is {row[caption]!r:.80}, which is not text: correct it"
            raise InputError(f"{file}: {reason}")
        if not isinstance(name, str | int):
            raise InputError(f"{file}: an image is {name!r:.80}: give the name of its file")
        if row.get("split") not in (None, ""):
            splits[str(row["split"])] = None
        cleaned = (" ".join(text.split()) for text in texts)
        captions.setdefault(str(name).strip(), []).extend(text for text in cleaned if text)
    if len(splits) > 1:
        named = ", ".join(list(splits)[:4])
        raise InputError(f"{file} holds the splits {named}: give a file of each, or take out 'split'")
    if not any(captions.values()):
        first = f" (first: {faults[0]})" if faults else ""
        raise InputError(
            f"{file} has no names of images with captions{first}: give lines of an image and a caption, or a dataset "
            "with images inside to diffclip.train"
        )
    return CaptionFile(captions, faults)


def _texts(value: Any) -> list[str] | None:
    """Return the texts in a caption, a list of captions, or objects with captions; None for anything else."""
    if isinstance(value, str) and value.startswith(("['", '["')):  # tables write a list as text
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(value)
    texts: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        key = _column(item, _CAPTION) if isinstance(item, dict) else None
        inner = [item or ""] if isinstance(item, str | None) else _texts(item[key]) if key else None
        if inner is None:
            return None
        texts += inner
    return texts


def _rows(file: Path) -> Iterable[Row]:
    ending = file.suffix.lower()
    if file.is_dir() or ending in _ARROW:
        return _arrow(file)
    text = read_text(file)
    # the library datasets gives its JSON lines the ending .json
    if ending in _LINES or (ending == ".json" and re.match(r"\s*\{.*\}\s*\n\s*\{", text)):
        return [(place, _json(line, f"{file}, {place}")) for place, line in _lines(text)]
    if ending == ".json":
        entries = _entries(_json(text, str(file)), file)
        return [(f"entry {number}", row) for number, row in enumerate(entries, 1)]
    if _TOKEN.match(text):
        return [
            (place, match.groupdict() if (match := _TOKEN.match(line)) else line)
            for place, line in _lines(text)
        ]
    return _table(text, file)


def _lines(text: str) -> list[Row]:
    """Return the lines of a text that are not blank, with their numbers."""
    return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid JSON ({error}): correct it") from None


def _entries(content: Any, file: Path) -> Iterable[Any]:
    """Return the rows of a JSON file. COCO's images are in the order of their ids, as in COCO's own reader."""
    if isinstance(content, list):
        return content
    if isinstance(content, dict) and "annotations" not in content:
        lists: list[list[Any]] = [value for value in content.values() if isinstance(value, list)]
        lists = [rows for rows in lists if any(_column(row, _IMAGE) for row in rows if isinstance(row, dict))]
        if len(lists) == 1:
            return lists[0]
        if not lists and all(_texts(value) is not None for value in content.values()):
            return [{"image": name, "caption": texts} for name, texts in content.items()]
    advice = "fetch it again, or give a list of objects with image and caption"
    with explain_errors(f"{file} is not COCO's JSON of captions", advice):
        names = {image["id"]: image["file_name"] for image in content["images"]}
        images = [{"image": names[number], "caption": []} for number in sorted(names)]
        pairs = [(annotation["image_id"], annotation["caption"]) for annotation in content["annotations"]]
        return [*images, *({"image": names.get(number), "caption": caption} for number, caption in pairs)]


def _table(text: str, file: Path) -> Iterator[Row]:
    text = text.replace("\r", " ")  # only \n ends a row, while the reader would also end it at \r
    first = text.partition("\n")[0]
    # without a tab, the first mark is the delimiter: the first line may have other marks in a caption
    delimiter = "\t" if "\t" in first else next((mark for mark in first if mark in "|;,"), ",")
    # files separated by | use no quotes, nor do those of mehdidc/retrieval_annotations
    is_quoted = delimiter != "|" and not file.name.endswith("_karpathy.txt")
    try:
        rows = _split_table(text, delimiter, csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE)
        # in tables separated by tabs a quote may be a mere character
        if delimiter == "\t" and any("\t" in cell for _, row in rows for cell in row):
            raise csv.Error
    except csv.Error as error:
        if delimiter != "\t":
            raise InputError(f"{file}, {error}; is a quote not closed?") from None
        rows = _split_table(text, delimiter, csv.QUOTE_NONE)
    if not rows:
        raise InputError(f"{file} is empty: give lines of an image and a caption")
    head = rows[0][1]
    _required_columns(head, file)
    for number, row in rows[1:]:
        # an unquoted delimiter in the last column is part of it, often a comma in a caption
        cells = [*row[: len(head) - 1], delimiter.join(row[len(head) - 1 :])]
        yield f"line {number}", dict(zip(head, cells[: len(row)], strict=False))


def _split_table(text: str, delimiter: str, quoting: Any) -> list[tuple[int, list[str]]]:
    """Return the rows of a table that are not blank, with their lines; raise `csv.Error` with the line of a fault."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        return [(reader.line_num, row) for row in reader if any(row)]
    except csv.Error as error:
        raise csv.Error(f"up to line {reader.line_num}: {error}") from None


def _arrow(file: Path) -> Iterator[Row]:
    """Read a Parquet file, an Arrow file, or a folder of them as `datasets.save_to_disk` writes it. Of images inside,
    only the path is read."""
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
        arrow = sorted(path for path in file.iterdir() if path.suffix in _ARROW)
        files = [path for path in arrow if not path.name.startswith("cache-")]  # copies of datasets' own
        if not files:
            folders = ", ".join(sorted(path.name for path in file.iterdir() if path.is_dir())) or "none in it"
            raise InputError(f"{file} has no .arrow or .parquet file: name a split's folder ({folders})")
    for path in files:
        with explain_errors(f"{path} cannot be read", "give a whole file"):
            is_parquet = path.suffix == ".parquet"
            memory = pyarrow.memory_map(str(path))
            # the library datasets writes streams; Feather, as pandas writes it, is a file
            is_file = memory.read(6) == b"ARROW1"
            memory.seek(0)
            open_arrow = pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream
            source = parquet.ParquetFile(memory) if is_parquet else open_arrow(memory)
            schema = source.schema_arrow if is_parquet else source.schema
            image, caption = _required_columns(schema.names, file)
            is_inside = pyarrow.types.is_struct(schema.field(image).type)
            has_splits = "split" in schema.names
            columns = [f"{image}.path" if is_inside else image, caption, *["split"] * has_splits]
            table = source.read(columns) if is_parquet else source.read_all()
            names = compute.struct_field(table[image], "path") if is_inside else table[image]
            part = _PART.match(path.name)
            splits = table["split"].to_pylist() if has_splits else [part and part[1]] * len(table)
            rows = zip(names.to_pylist(), table[caption].to_pylist(), splits, strict=True)
            for number, row in enumerate(rows):
                yield f"row {number}", dict(zip(("image", "caption", "split"), row, strict=True))


def _column(names: Iterable[str], usual: tuple[str, ...]) -> str | None:
    """Find the first of the usual names among the names of columns or keys."""
    columns = {name.strip().lower(): name for name in names}
    return next((columns[name] for name in usual if name in columns), None)


def _required_columns(names: list[str], file: Path) -> tuple[str, str]:
    image, caption = _column(names, _IMAGE), _column(names, _CAPTION)
    if image is None or caption is None:
        missing = "image" if image is None else "caption"
        raise InputError(
            f"{file} has no column of {missing}s among {', '.join(names)}: name one of them {missing!r} (of a table in "
            "its first line)"
        )
    return image, caption
