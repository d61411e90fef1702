"""Studies with folds: the data in folds, the runs, and rows at the rate that was chosen in the other folds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_study import STUDY

from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, load_records
from diffclip.study.folds import write_folds
from diffclip.study.grid import grid_runs
from diffclip.study.rates import with_chosen_rates
from diffclip.study.spec import read_study
from diffclip.training.run_folder import read_lines

RETRIEVAL = {"task": "retrieval", "dataset": "flickr8k", "metric": "mean_recall"}
FOLDS: dict[str, Any] = {
    "sweep": None,
    "folds": 3,
    "unit": "fold",
    "endpoints": {"primary": RETRIEVAL},
    "models": {**STUDY["models"], "seeds": [0], "lr": [1e-3, 2e-3]},  # type: ignore[dict-item]
}


def test_folds_share_all_captioned_images_of_a_set_and_stay(data: Path, tmp_path: Path) -> None:
    source, folder = data / "flickr8k", tmp_path / "folds"
    write_folds(source, 3, folder)
    whole = [open_set(source, split) for split in ("train", "val")]
    folds = [open_set(folder, f"fold{fold}") for fold in range(3)]
    assert {fold.kind for fold in folds} == {"retrieval"}
    captions = [texts for part in whole for texts in part.captions]
    assert [fold.captions for fold in folds] == [captions[number::3] for number in range(3)]
    before = (folder / "fold0" / "0.tar").stat().st_mtime_ns
    write_folds(source, 3, folder)
    assert (folder / "fold0" / "0.tar").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="holds folds of other samples than"):
        write_folds(source, 4, folder)
    with pytest.raises(InputError, match="give fewer folds"):
        write_folds(source, 10_000, tmp_path / "many")


def test_each_run_leaves_one_fold_out_with_a_seed_and_rates_of_its_own(
    study_file: Callable[..., Path],
) -> None:
    models = {**FOLDS["models"], "seeds": [0, 1]}
    models["arms"] = {**models["arms"], "one-rate": {"change": {"model": "CLIP", "lr": 5e-4}}}
    runs = grid_runs(read_study(study_file(**{**FOLDS, "models": models})), {})
    assert [run.name for run in runs[:6]] == [
        *("models/CLIP@1e-3-s0", "models/CLIP@2e-3-s0"),
        *("models/DiffCLIP@1e-3-s0", "models/DiffCLIP@2e-3-s0"),
        *("models/one-rate-s0", "models/CLIP@1e-3-s1"),
    ]
    assert len(runs) == 2 * 3 * 5
    assert [(run.seed, run.fold, run.recipe.seed) for run in runs[::5]] == [(n, n % 3, n) for n in range(6)]
    assert [run.recipe.lr for run in runs[:5]] == [1e-3, 2e-3, 1e-3, 2e-3, 5e-4]
    assert runs[5].recipe.data.train == ["flickr8k/fold0", "flickr8k/fold2"]
    assert runs[5].recipe.data.val is None
    assert len({run.digest for run in runs}) == 2 * 3 * 5


def test_rate_of_a_run_is_the_best_one_in_the_other_folds(study_file: Callable[..., Path]) -> None:
    study = read_study(study_file(**FOLDS))

    def record(arm: str, seed: int, value: float, **changes: Any) -> Record:
        fields: dict[str, Any] = {
            **RETRIEVAL,
            "split": "fold",
            "count": 9,
            "protocol": "",
            "low": None,
            "high": None,
        }
        fields |= {"model": arm, "weights": f"{arm}-s{seed}", "seed": seed, "fold": seed % 3, "value": value}
        return Record.model_validate(fields | changes)

    low, high = (0.3, 0.2, 0.1), (0.1, 0.2, 0.35)
    records = [record("CLIP@1e-3", seed, value) for seed, value in enumerate(low)]
    records += [record("CLIP@2e-3", seed, value) for seed, value in enumerate(high)]
    # few-shot has no say in the choice and follows it
    records += [record("CLIP@2e-3", 0, 0.9, task="few-shot", dataset="caltech101", metric="acc1")]
    finished = {(f"CLIP@{rate}", seed) for rate in ("1e-3", "2e-3") for seed in range(3)}
    assert with_chosen_rates(records, study, finished - {("CLIP@2e-3", 2)}) == records
    derived = with_chosen_rates(with_chosen_rates(records, study, finished), study, finished)[len(records) :]
    # the others' means: 0.15 and 0.275, 0.2 and 0.225, 0.25 and 0.15
    assert [(row.model, row.seed, row.value) for row in derived if row.task == "retrieval"] == [
        *(("CLIP", 0, 0.1), ("CLIP", 1, 0.2), ("CLIP", 2, 0.1)),
    ]
    assert [row.weights for row in derived] == [
        "CLIP@2e-3-s0",
        "CLIP@2e-3-s0",
        "CLIP@2e-3-s1",
        "CLIP@1e-3-s2",
    ]
    diverged = [row for row in records if row.weights != "CLIP@2e-3-s2"]
    derived = with_chosen_rates(diverged, study, finished)[len(diverged) :]
    assert [row.weights for row in derived] == [f"CLIP@1e-3-s{seed}" for seed in range(3)]
    # another map of the metric has no say, and runs of seeds that the spec has no more are left out
    other = [record(row.model, row.seed or 0, 1 - (row.value or 0), map="other") for row in records[:6]]
    derived = with_chosen_rates(
        [*records, *other, record("CLIP@2e-3", 3, 0.9)], study, finished | {("CLIP@2e-3", 3)}
    )
    assert [row.weights for row in derived if row.model == "CLIP" and row.task == "retrieval"] == [
        *("CLIP@2e-3-s0", "CLIP@2e-3-s0", "CLIP@2e-3-s1", "CLIP@2e-3-s1", "CLIP@1e-3-s2", "CLIP@1e-3-s2"),
    ]
    alone = read_study(study_file(**{**FOLDS, "folds": None, "unit": "seed"}))
    single = [records[0], records[3]]  # no other run to choose by
    assert with_chosen_rates(single, alone, {("CLIP@1e-3", 0), ("CLIP@2e-3", 0)}) == single


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": None}, "unit is fold, and there are no folds"),
        (
            {"endpoints": {"primary": {**RETRIEVAL, "task": "mechanics", "metric": "sink_ratio"}}},
            "no rate can be chosen by sink_ratio of endpoints.primary",
        ),
        ({"endpoints": {}}, "endpoints.primary: no run measures validation on flickr8k"),
        ({"sweep": STUDY["sweep"]}, "a study with folds has no scenes and no sweep"),
        ({"epochs": 3}, r"epochs is a key of the training recipe: write it into `change` \(change.epochs="),
        ({"margin": 0.01}, "margin stands in the wrong place: write it into `endpoints.primary.margin`"),
        ({"seed": 1}, "seed stands in the wrong place: write it into `models.seeds`"),
        ({"endpoints": {"arm": "CLIP"}}, "arm stands in the wrong place: write it into `endpoints.primary`"),
        ({"endpoints": {"secondary": [{**RETRIEVAL, "margin": -1}]}}, "margin.points: -1 is not above 0"),
        ({"contrasts": [["CLIP", "CLIP@3e-3"]]}, r"contrasts\[0\] has 'CLIP@3e-3', .* CLIP@1e-3, CLIP@2e-3"),
    ],
)
def test_wrong_spec_says_what_is_right(study_file: Callable[..., Path], changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_study(study_file(**{**FOLDS, **changes}))


@pytest.mark.usefixtures("forked_jobs")
def test_study_with_folds_measures_every_fold_and_the_chosen_rate(
    study_file, diffclip_study, tmp_path: Path
) -> None:
    models = {**FOLDS["models"], "arms": {"CLIP": {"change": {"model": "CLIP"}}}}
    primary = {**RETRIEVAL, "arm": "CLIP@1e-3", "against": "CLIP@2e-3"}
    file = study_file(**{**FOLDS, "folds": 2, "models": models, "endpoints": {"primary": primary}})
    ended = diffclip_study(file, "--workers", 2)
    assert ended.returncode == 0, ended.stderr
    assert "4 of 4 runs done" in ended.stdout
    assert "models/CLIP@1e-3-s0: finished after" in ended.stderr
    lines = read_lines(tmp_path / "out" / "runs.jsonl")
    assert [line["score"] for line in lines] == [None] * 4
    frame = load_records(tmp_path / "out")
    recalls = frame[(frame["task"] == "retrieval") & (frame["metric"] == "mean_recall")]
    assert set(recalls["split"]) == {"fold"}
    assert set(recalls["dataset"]) == {"flickr8k"}
    chosen = recalls[recalls["model"] == "CLIP"]
    assert list(zip(chosen["fold"], chosen["seed"], strict=True)) == [(0, 0), (1, 1)]
    assert all("; as CLIP@" in protocol for protocol in chosen["protocol"])
    again = diffclip_study(file)
    assert ": started" not in again.stderr
