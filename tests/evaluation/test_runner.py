import shutil

import pytest
from class_sets import write_class_set

import diffclip
from diffclip.data.transforms import eval_transform
from diffclip.evaluation.protocol import draw_of
from diffclip.evaluation.runner import Runner, Sets
from diffclip.evaluation.store import Store
from diffclip.evaluation.suite import Entry
from diffclip.model_source import Loaded
from diffclip.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def subject(seed=0):
    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=diffclip.VisionConfig(image_size=16, patch_size=8, width=16, layers=1, heads=2),
        text=diffclip.TextConfig(context_length=12, width=16, layers=1, heads=2),
    )
    model = diffclip.CLIP(config, seed=seed).eval()
    preprocess = eval_transform(16, model.config.preprocess)
    return Loaded(model, preprocess, Tokenizer(config.text), "CLIP", f"seed {seed}", seed)


@pytest.fixture
def folder(tmp_path):
    return write_class_set(tmp_path / "five", {"train": list(range(5)) * 8, "test": list(range(5)) * 3}, 5)


def entries(folder):
    return [
        Entry("zero-shot", str(folder)),
        Entry("zero-shot", str(folder.with_name("nothing"))),
        Entry("few-shot", str(folder)),
        Entry("zero-shot", str(folder), corruption="contrast", severity=5),
    ]


def test_a_set_that_fails_fails_alone(folder):
    done = list(Runner(Sets()).run(subject(), entries(folder)))
    assert [bool(one.result) for one in done] == [True, False, True, True]
    assert "nothing does not exist" in done[1].failure
    assert "\n" not in done[1].failure
    assert not done[1].ours
    assert done[1].records(subject()) == []
    assert done[3].result.dataset == "five+contrast:5"
    assert done[3].result.scores[0].value != done[0].result.scores[0].value or (
        done[3].result.protocol != done[0].result.protocol
    )


def test_only_what_draws_is_repeated(folder):
    done = list(Runner(Sets(), draws=(3, 4)).run(subject(), entries(folder)[::2]))
    assert [(one.result.task, one.draw) for one in done] == [
        ("zero-shot", 3),
        ("few-shot", 3),
        ("few-shot", 4),
    ]
    assert [draw_of(one.result.protocol) for one in done] == [None, 3, 4]
    assert done[1].result.scores[0].value != done[2].result.scores[0].value


def test_what_is_finished_is_found_again(folder, tmp_path):
    runner = Runner(Sets(), store=Store(tmp_path / "parts"))
    first = list(runner.run(subject(), entries(folder)))
    again = list(Runner(Sets(), store=Store(tmp_path / "parts")).run(subject(), entries(folder)))
    assert [one.reused for one in first] == [False, False, False, False]
    assert [one.reused for one in again] == [True, False, True, True]
    assert [one.records(subject()) for one in again] == [one.records(subject()) for one in first]
    assert again[0].result.scores[0].hits.tolist() == first[0].result.scores[0].hits.tolist()


def test_other_weights_and_other_data_are_measured_again(folder, tmp_path):
    def run(one):
        runner = Runner(Sets(), store=Store(tmp_path / "parts"))
        return [
            done.reused
            for done in runner.run(one, [Entry("zero-shot", str(folder)), Entry("few-shot", str(folder))])
        ]

    assert run(subject()) == [False, False]
    assert run(subject()) == [True, True]
    assert run(subject(seed=1)) == [False, False]
    # only the split to learn from changes
    other = write_class_set(tmp_path / "other", {"train": list(range(5)) * 9}, 5)
    shutil.copy(other / "train" / "0.tar", folder / "train" / "0.tar")
    assert run(subject()) == [True, False]


def test_a_fault_of_ours_is_told_apart(folder, monkeypatch, capsys):
    import diffclip.evaluation.runner as module

    def fall(*_):
        raise RuntimeError("no such\nthing")

    monkeypatch.setattr(module, "run_task", fall)
    (one,) = Runner(Sets()).run(subject(), entries(folder)[:1])
    assert (one.failure, one.ours) == ("RuntimeError: no such thing", True)
    assert "Traceback" in capsys.readouterr().err


def test_the_first_split_that_there_is(folder):
    (done,) = Runner(Sets()).run(subject(), [Entry("zero-shot", str(folder), ("val", "test"))])
    assert done.result.split == "test"
    (failed,) = Runner(Sets()).run(subject(), [Entry("zero-shot", str(folder), ("val", "dev"))])
    assert "no split 'val'" in failed.failure


def test_a_split_that_is_there_but_broken_is_no_reason_to_take_the_next(folder):
    (folder / "test" / "0.tar").write_bytes(b"")
    (failed,) = Runner(Sets()).run(subject(), [Entry("zero-shot", str(folder), ("test", "train"))])
    assert failed.result is None
    assert "0.tar" in failed.failure


def test_a_single_picture_says_nothing(tmp_path):
    one = write_class_set(tmp_path / "one", {"test": [1]}, 2)
    (failed,) = Runner(Sets()).run(subject(), [Entry("zero-shot", str(one))])
    assert "one/test has a single picture" in failed.failure


def test_what_one_task_met_is_not_told_of_the_next(folder):
    import io
    import tarfile

    with tarfile.open(folder / "train" / "0.tar", "a") as tar:
        for name, content in (("s9.png", b"no picture"), ("s9.cls", b"0")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    tasks = [Entry("few-shot", str(folder)), Entry("zero-shot", str(folder))]
    few, plain = Runner(Sets()).run(subject(), tasks)
    assert [fault.name.rsplit(":")[-1] for fault in few.faults] == ["s9"]
    assert plain.faults == []
