"""Suites on real files: finished tasks are reused, a failure ends one task, and the file of records loses nothing."""

import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from made_sets import tar_of
from masked_sets import animals, write_class_set, write_masked
from subjects import run, setting, subject

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import TASKS, Sets, run_entries, run_task
from diffclip.evaluation.scores import Score
from diffclip.evaluation.suite import SUITES, Entry
from diffclip.preprocess import EvalTransform
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


@pytest.fixture(scope="module", autouse=True)
def _few_episodes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffclip.evaluation.few_shot.EPISODES", 50)
        yield


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Six classes of eight images, with a train and a test split."""
    folder = tmp_path_factory.mktemp("sets") / "colors"
    return str(write_class_set(folder, {"train": LABELS, "test": LABELS}, 6))


def test_finished_tasks_are_reused_and_other_weights_measured_again(classes, tmp_path):
    path, entries = tmp_path / "results.jsonl", [Entry("zero-shot", classes), Entry("few-shot", classes)]
    run(CLIP, *entries[:1], file=path)
    assert [result.reused for result in run(CLIP, *entries, file=path)] == [True, False]
    # another draw concerns only tasks that draw at random
    assert [result.reused for result in run(CLIP, *entries, file=path, draws=(1,))] == [True, False]
    second = subject("CLIP", seed=1, image_size=16)
    assert not any(result.reused for result in run(second, *entries, file=path))
    pairs = {(record.weights, record.task) for record in read_records(path)}
    assert pairs >= {(model.weights, task) for model in (CLIP, second) for task in ("zero-shot", "few-shot")}
    second.model.set_vision_norm_eps(0.5)
    assert not any(result.reused for result in run(second, *entries, file=path))


def test_probes_do_not_learn_from_parts_of_splits(tmp_path):
    folder = str(write_class_set(tmp_path / "colors", dict.fromkeys(("train", "val", "test"), LABELS), 6))
    (probe,) = run(CLIP, Entry("linear-probe", folder, ("val[24:]",)))
    assert "a stratified fifth of train" in probe.records[0].protocol
    for task in ("linear-probe", "few-shot"):
        (rest,) = run(CLIP, Entry(task, folder, ("train[:24]",)))
        assert "learns from the split train" in str(rest.error)


def test_sets_with_equal_images_keep_their_own_labels(tmp_path):
    first = write_class_set(tmp_path / "first", {"train": LABELS, "test": LABELS}, 6)
    second = Path(shutil.copytree(first, tmp_path / "second"))
    for split in ("train", "test"):
        shard = second / split / "0.tar"
        with tarfile.open(shard) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}
        labels = {name: str(i // 16).encode() for i, name in enumerate(members) if name.endswith("cls")}
        tar_of(shard, (members | labels).items())
        for folder in (first, second):
            os.utime(folder / split / "0.tar", (0, 0))
    _, together = run(CLIP, *(Entry("few-shot", str(folder)) for folder in (first, second)))
    (alone,) = run(CLIP, Entry("few-shot", str(second)))
    assert together.records[0].value == alone.records[0].value


def test_kill_between_two_writes_leaves_no_stamp_for_other_records(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    path, facts = tmp_path / "results.jsonl", {"model": "CLIP", "weights": "w", "seed": 0}
    ResultsFile(path).add(SCORES, "at 32 px", **facts)
    monkeypatch.setattr("diffclip.evaluation.results_file.write_records", stop)
    with pytest.raises(KeyboardInterrupt):
        ResultsFile(path).add(SCORES, "at 64 px", **facts)
    assert not ResultsFile(path).find("at 32 px")


def test_a_changed_set_is_measured_again(tmp_path):
    folder = write_masked(tmp_path / "set", animals())
    entry, path = Entry("focus", str(folder)), tmp_path / "results.jsonl"
    run(CLIP, entry, file=path)
    write_masked(tmp_path / "set", animals(5))
    assert not run(CLIP, entry, file=path)[0].reused


def test_records_from_two_writers_of_one_file_are_all_kept(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    open_files = [ResultsFile(path) for _ in range(2)]
    for number in range(4):
        open_files[number % 2].add(SCORES, "stamp", model="CLIP", weights=str(number), seed=None)
    assert [record.weights for record in read_records(path)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("content", [b"{", b"[]", None])
def test_tasks_without_a_readable_stamp_are_measured_again(classes, tmp_path, content):
    path, stamps = tmp_path / "results.jsonl", tmp_path / "results.stamps.json"
    run(CLIP, Entry("zero-shot", classes), file=path)
    stamps.write_bytes(content) if content else stamps.unlink()
    assert not run(CLIP, Entry("zero-shot", classes), file=path)[0].reused
    assert run(CLIP, Entry("zero-shot", classes), file=path)[0].reused


def test_draws_of_another_measurement_are_replaced_together(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    run(CLIP, Entry("few-shot", classes), file=path, draws=range(3))
    results = ResultsFile(path)
    bicubic = Entry("few-shot", classes, interpolation="bicubic")
    (measured,) = run_entries(CLIP, [bicubic], results, Sets())
    assert results.replaced == 1
    assert read_records(path) == [*measured.records]
    assert [found.reused for found in run(CLIP, bicubic, file=path, draws=range(2))] == [True, False]


def test_an_entry_has_its_own_interpolation_and_templates(classes):
    entries = [Entry("few-shot", classes), Entry("few-shot", classes, interpolation="bicubic")]
    bilinear, bicubic, worded = run(CLIP, *entries, Entry("zero-shot", classes, templates=("{c}", "a {c}")))
    assert worded.records[0].templates == 2
    assert "bilinear" in bilinear.records[0].protocol
    assert "bicubic" in bicubic.records[0].protocol


def test_the_protocol_says_how_images_are_prepared():
    plain = EvalTransform(224, PreprocessConfig())
    assert str(plain) == "shorter edge 224 px bilinear, center crop 224 px, imagenet statistics"
    fields = {"mean": OPENAI_MEAN, "std": OPENAI_STD, "interpolation": "bicubic", "resize": 256}
    openai = EvalTransform(224, PreprocessConfig(**fields))
    assert str(openai) == "shorter edge 256 px bicubic, center crop 224 px, openai statistics"
    custom = EvalTransform(224, PreprocessConfig(**fields | {"mean": (0.5, 0.5, 0.5)}))
    assert str(custom).endswith("own statistics")


def test_suites_have_valid_entries_and_the_paper_suite_has_its_tables():
    for entries in SUITES.values():
        assert len(set(entries)) == len(entries)
        assert {entry.task for entry in entries} <= set(TASKS)
    by_task = {}
    for entry in SUITES["paper"]:
        by_task.setdefault(entry.task, set()).add(entry.dataset)
    assert len(by_task["linear-probe"]) == len(by_task["few-shot"]) == 9
    assert by_task["retrieval"] == {"flickr8k", "flickr30k", "mscoco_captions"}
    shifts = {"imagenet1k", "imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch"}
    assert by_task["zero-shot"] == by_task["linear-probe"] | shifts


@pytest.mark.parametrize(("task", "other"), [("few-shot", "train"), ("linear-probe", "val")])
def test_splits_with_different_classes_are_refused(tmp_path, task, other):
    labels = [0, 1] * 6
    data = open_set(
        write_class_set(tmp_path / "set", dict.fromkeys(("train", "val", "test"), labels), 2), "test"
    )

    def beside(split):
        sibling = data.beside(split)
        return replace(sibling, classnames=data.classnames[::-1]) if split == other else sibling

    words = f"set: {other} and test have different classes: use shards or files"
    with pytest.raises(InputError, match=words):
        run_task(task, setting(subject(), replace(data, beside=beside)))
