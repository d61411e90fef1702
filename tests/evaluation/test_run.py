"""Suites on real files: finished tasks are reused, a failure ends one task, and nothing in the file is lost."""

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from class_sets import write_class_set
from made_sets import tar_of
from masked_sets import animals, write_masked
from subjects import run, subject

from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import ResultsFile, outcome_key, read_outcomes
from diffclip.evaluation.run import Sets
from diffclip.evaluation.scores import Score
from diffclip.evaluation.suite import Entry
from diffclip.scenes import write

CLIP = subject("CLIP", image_size=16)
LABELS = [i % 6 for i in range(48)]
FACTS = {"task": "x", "dataset": "y", "split": "z", "protocol": "made up"}
SCORES = [Score("acc1", 0.5, 10, 0.4, 0.6, 0.1, facts=FACTS)]


def test_built_in_sets_are_drawn_once_into_the_cache(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "PAIRS", 1)
    draw, calls = write.write_scenes, []

    def draw_few(folder: Path, **options: object) -> None:
        calls.append(draw(folder, **{**options, "train": 4, "val": 8, "test": 24, "size": 32}))

    monkeypatch.setattr(write, "write_scenes", draw_few)
    with pytest.raises(InputError, match=r"scenes has not been drawn: call diffclip.scenes.draw_built_in"):
        open_set("scenes", "val")
    captions = Sets().open(Entry(None, "scenes", ("val",)))
    assert (captions.name, captions.kind, len(captions)) == ("scenes", "retrieval", 8)
    shapes = Sets().open(Entry(None, "scenes-shapes"))
    assert (shapes.name, shapes.kind) == ("scenes-shapes", "classification")
    assert next(shapes.batches(CLIP.preprocess, 4)).images.shape == (4, 3, 16, 16)
    assert calls == [True, False]
    assert len(list(cache_home.glob("diffclip/scenes-*"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(InputError, match=r"cannot write /dev/null.*; XDG_CACHE_HOME names the folder"):
        Sets().open(Entry(None, "scenes"))


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Six classes of eight images, with a train and a test split."""
    folder = tmp_path_factory.mktemp("sets") / "colors"
    return str(write_class_set(folder, {"train": LABELS, "test": LABELS}, 6))


def test_a_suite_goes_on_and_other_weights_are_measured_again(classes, tmp_path):
    path, entries = tmp_path / "results.jsonl", [Entry("zero-shot", classes), Entry("few-shot", classes)]
    run(CLIP, *entries[:1], file=path)
    assert [one.reused for one in run(CLIP, *entries, file=path)] == [True, False]
    # another draw is for tasks that draw
    assert [one.reused for one in run(CLIP, *entries, file=path, draws=(1,))] == [True, False]
    other = subject("CLIP", seed=1, image_size=16)
    assert not any(one.reused for one in run(other, *entries, file=path))
    kept = {(record.weights, record.task) for record in read_records(path)}
    assert kept >= {(one.weights, task) for one in (CLIP, other) for task in ("zero-shot", "few-shot")}
    other.model.set_vision_norm_eps(0.5)
    assert not any(one.reused for one in run(other, *entries, file=path))


def test_nothing_is_learned_from_the_rest_of_a_split(tmp_path):
    folder = str(write_class_set(tmp_path / "colors", dict.fromkeys(("train", "val", "test"), LABELS), 6))
    (probe,) = run(CLIP, Entry("linear-probe", folder, ("val[24:]",)))
    assert "a stratified fifth of train" in probe.records[0].protocol
    for one in run(CLIP, *(Entry(task, folder, ("train[:24]",)) for task in ("linear-probe", "few-shot"))):
        assert "learns from the split train" in str(one.error)


def test_sets_of_the_same_images_have_their_own_labels(tmp_path):
    first = write_class_set(tmp_path / "first", {"train": LABELS, "test": LABELS}, 6)
    second = Path(shutil.copytree(first, tmp_path / "second"))
    for split in ("train", "test"):
        shard = second / split / "0.tar"
        with tarfile.open(shard) as tar:
            members = {one.name: tar.extractfile(one).read() for one in tar}
        labels = {name: str(i // 16).encode() for i, name in enumerate(members) if name.endswith("cls")}
        tar_of(shard, (members | labels).items())
        for folder in (first, second):
            os.utime(folder / split / "0.tar", (0, 0))
    _, both = run(CLIP, *(Entry("few-shot", str(folder)) for folder in (first, second)))
    (alone,) = run(CLIP, Entry("few-shot", str(second)))
    assert both.records[0].value == alone.records[0].value


def test_killed_between_two_writes_no_stamp_stands_for_other_records(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    path, facts = tmp_path / "results.jsonl", {"model": "CLIP", "weights": "w", "seed": 0}
    ResultsFile(path).add(SCORES, "at 32 px", **facts)
    monkeypatch.setattr("diffclip.evaluation.results_file.write_records", stop)
    with pytest.raises(KeyboardInterrupt):
        ResultsFile(path).add(SCORES, "at 64 px", **facts)
    assert not ResultsFile(path).find("at 32 px")


def test_what_learns_refuses_corrupted_images(classes):
    for one in run(
        CLIP, *(Entry(task, classes, corruption="noise") for task in ("linear-probe", "few-shot"))
    ):
        assert "corruptions shift test images" in str(one.error)


def test_a_changed_set_is_measured_again(tmp_path):
    folder = write_masked(tmp_path / "set", animals())
    entry, path = Entry("focus", str(folder)), tmp_path / "results.jsonl"
    run(CLIP, entry, file=path)
    write_masked(tmp_path / "set", animals(5))
    assert not run(CLIP, entry, file=path)[0].reused


def test_what_two_processes_add_to_one_file_stays(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    open_files = [ResultsFile(path) for _ in range(2)]
    for number in range(4):
        open_files[number % 2].add(SCORES, "stamp", model="CLIP", weights=str(number), seed=None)
    assert [one.weights for one in read_records(path)] == ["0", "1", "2", "3"]


def test_outcomes_lie_beside_the_records(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    run(CLIP, Entry("zero-shot", classes), Entry("few-shot", classes), file=path)
    kept = read_outcomes(path)
    for record in read_records(path):
        one = kept.get(outcome_key(record))
        assert (one is None) == (record.metric == "mean_per_class_recall" or record.task == "six-tasks")
        if one is not None:
            assert one.hits.mean() == pytest.approx(record.value)
    path.with_name("results.outcomes.npz").write_bytes(b"cut short")
    path.with_name("results.stamps.json").write_bytes(b"cut short")
    assert read_outcomes(path) == {}
    assert not run(CLIP, Entry("few-shot", classes), file=path)[0].reused


def test_a_file_of_something_else_is_refused(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(InputError, match="line 1 is not a record"):
        ResultsFile(path)
    assert json.loads(path.read_text()) == {"step": 1}


def test_an_entry_has_its_own_interpolation_and_templates(classes):
    entries = [Entry("few-shot", classes), Entry("few-shot", classes, interpolation="bicubic")]
    own, bicubic, worded = run(CLIP, *entries, Entry("zero-shot", classes, templates=("{c}", "a {c}")))
    assert worded.records[0].templates == 2
    assert "bilinear" in own.records[0].protocol
    assert "bicubic" in bicubic.records[0].protocol
