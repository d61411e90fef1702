"""Records as JSON lines and as CSV: the same table."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

import diffclip
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records, write_records, write_table

FIELDS = {"model": "CLIP", "weights": "CLIP-s1", "task": "retrieval", "dataset": "flickr8k", "split": "fold"}
FIELDS |= {"metric": "mean_recall", "value": 0.123456789, "count": 9, "low": None, "high": None, "seed": 1}
# a Unicode line separator inside a string does not end the line
FIELDS |= {"protocol": "a, b: c; ä\u2028"}


def made_up() -> list[Record]:
    changes = [
        {},
        {"seed": 2, "weights": "CLIP-s2", "fold": 0, "value": 0.1},
        {"study": "k16", "of": ("a", "b"), "chance": 0.01, "map": "relevance"},
        {"weights": "CLIP", "seed": None, "value": None, "epsilon": 0.5, "draw": 2},
    ]
    return [Record(**FIELDS | change) for change in changes]


def test_csv_and_json_lines_give_the_same_table(tmp_path: Path) -> None:
    write_table(tmp_path / "csv", made_up())
    write_records(tmp_path / "lines.jsonl", made_up())
    pd.testing.assert_frame_equal(
        diffclip.load_records(tmp_path / "csv"), diffclip.load_records(tmp_path / "lines.jsonl"), rtol=1e-5
    )
    before = (tmp_path / "csv" / "results.csv").read_bytes()
    write_table(tmp_path / "csv", read_records(tmp_path / "csv" / "results.csv"))
    assert (tmp_path / "csv" / "results.csv").read_bytes() == before


def test_table_has_a_row_a_number_and_says_each_protocol_once(tmp_path: Path) -> None:
    layer = made_up()[0].model_copy(update={"layer": 1, "head": 2})
    write_table(tmp_path, [*made_up()[:2], layer])
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines == [
        "model,seed,fold,task,dataset,metric,value,protocol",
        "CLIP,1,,retrieval,flickr8k,mean_recall,0.123457,retrieval-1",
        "CLIP,2,0,retrieval,flickr8k,mean_recall,0.1,retrieval-1",
    ]
    assert (tmp_path / "protocols.yaml").read_text().count("a, b: c") == 1


def test_records_and_field_order_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    write_records(path, made_up())
    assert read_records(path) == made_up()
    first = path.read_text(encoding="utf-8").split("\n")[0]
    assert list(json.loads(first)) == [*FIELDS, "chance"]
    table = diffclip.load_records([tmp_path, path])  # a file counts once
    assert list(table.columns) == list(Record.model_fields)
    assert (len(table), table.of[2], table.seed.dropna().tolist()) == (4, ("a", "b"), [1, 2, 1])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "line 3.*JSON"),
        (json.dumps(FIELDS | {"value": "high"}), "line 3.*value"),
        (json.dumps(FIELDS | {"value": math.nan}), "line 3.*value"),
        (json.dumps(FIELDS | {"count": -1}), "line 3.*count"),
        (json.dumps(FIELDS | {"extra": 1}), "line 3.*extra"),
    ],
)
def test_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(FIELDS) + "\n\n" + line + "\n")
    with pytest.raises(InputError, match=f"{path}.*{words}") as caught:
        read_records(path)
    assert "\n" not in str(caught.value)


def test_missing_or_binary_file_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl"):
        read_records(tmp_path / "gone.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="should be UTF-8 text"):
        read_records(tmp_path / "binary.jsonl")
    with pytest.raises(InputError, match=r"holds no results\.jsonl"):
        diffclip.load_records(tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "results.csv",
            "retrieval-1",
            "retrieval-7",
            "line 2: protocol 'retrieval-7' is not in protocols.yaml",
        ),
        ("results.csv", "0.123457", "high", "line 2 is not a record: value: "),
        ("results.csv", ",", ";", "it names no column metric, model, protocol, task, value"),
        ("protocols.yaml", "retrieval-1", "[retrieval-1", "protocols.yaml does not map keys to fields"),
        (
            "protocols.yaml",
            "retrieval-1:",
            "retrieval-2: 3\nretrieval-1:",
            "protocols.yaml does not map keys",
        ),
    ],
)
def test_faulty_row_is_named(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    write_table(tmp_path, made_up()[:1])
    file = tmp_path / name
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        diffclip.load_records(tmp_path)
