import json

import pytest
from pydantic import ValidationError

import diffclip
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records, write_records

FIELDS = {
    "model": "DiffCLIP-ViT-B-16",
    "weights": "runs/a\u2028b",  # a line separator inside a string is no end of line
    "task": "zero-shot",
    "dataset": "cifar10",
    "split": "test",
    "metric": "acc1",
    "value": 0.5,
    "count": 800,
    "low": 0.46,
    "high": 0.54,
    "seed": None,
    "protocol": "zero-shot; 18 templates; ä",
}


def test_round_trip_and_order(tmp_path):
    records = [Record(**FIELDS), Record(**FIELDS | {"value": None, "seed": 3})]
    path = tmp_path / "new" / "results.jsonl"
    write_records(path, records)
    assert read_records(path) == records
    first = path.read_text(encoding="utf-8").split("\n")[0]
    assert list(json.loads(first)) == [*FIELDS, "chance"]


@pytest.mark.parametrize("change", [{"extra": 1}, {"value": float("nan")}, {"count": -1}])
def test_fields_are_strict(change):
    with pytest.raises(ValidationError):
        Record(**FIELDS | change)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "line 3.*JSON"),
        (json.dumps(FIELDS | {"chance": None, "value": "high"}), "line 3.*value"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(FIELDS | {"chance": None}) + "\n\n" + line + "\n")
    with pytest.raises(InputError, match=words) as caught:
        read_records(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file(tmp_path):
    with pytest.raises(InputError, match=r"gone\.jsonl"):
        read_records(tmp_path / "gone.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        read_records(tmp_path / "binary.jsonl")
    with pytest.raises(InputError, match=r"holds no results\.jsonl"):
        diffclip.load_records(tmp_path)


def test_a_table_has_a_column_a_field_and_a_row_a_record(tmp_path):
    averaged = Record(**FIELDS, of=("cifar10", "dtd"), draw=2, chance=0.1)
    write_records(tmp_path / "a" / "results.jsonl", [Record(**FIELDS), averaged])
    write_records(tmp_path / "b.jsonl", [Record(**FIELDS | {"seed": 3})])
    table = diffclip.load_records([tmp_path / "a", tmp_path / "b.jsonl"])
    assert list(table.columns) == list(Record.model_fields)
    assert table.of[1] == ("cifar10", "dtd")
    assert table.seed.dropna().tolist() == [3]
    assert table.chance.mean() == pytest.approx(0.1)
