"""Records as JSON lines and as CSV: the same table."""

from pathlib import Path

import pandas as pd
import pytest

import diffclip
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, write_records, write_table


def made_up() -> list[Record]:
    fields = {
        "model": "CLIP",
        "task": "retrieval",
        "dataset": "flickr8k",
        "split": "fold",
        "protocol": "a, b: c",
    }
    recall = Record(
        **fields,
        weights="CLIP-s1",
        metric="mean_recall",
        value=0.123456789,
        count=9,
        low=None,
        high=None,
        seed=1,
    )
    others = [
        recall.model_copy(update={"seed": 2, "weights": "CLIP-s2", "fold": 0, "value": 0.1}),
        recall.model_copy(update={"study": "k16", "of": ("a", "b"), "chance": 0.01, "map": "relevance"}),
        recall.model_copy(update={"weights": "CLIP", "seed": None, "value": None, "epsilon": 0.5, "draw": 2}),
    ]
    return [recall, *others]


def test_csv_and_json_lines_give_the_same_table(tmp_path: Path) -> None:
    write_table(tmp_path / "csv", made_up())
    write_records(tmp_path / "lines.jsonl", made_up())
    pd.testing.assert_frame_equal(
        diffclip.load_records(tmp_path / "csv"), diffclip.load_records(tmp_path / "lines.jsonl"), rtol=1e-5
    )
    before = (tmp_path / "csv" / "results.csv").read_bytes()
    write_table(tmp_path / "csv", diffclip.evaluation.records.read_records(tmp_path / "csv" / "results.csv"))
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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("retrieval-1", "retrieval-7", "line 2: protocol 'retrieval-7' is not in protocols.yaml"),
        ("0.123457", "high", "line 2 is not a record: value: "),
    ],
)
def test_faulty_row_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_table(tmp_path, made_up()[:1])
    file = tmp_path / "results.csv"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        diffclip.load_records(file)
