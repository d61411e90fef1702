"""Suites on real files: what is finished is found again, a failure ends one task, and nothing in the file is lost."""

import json

import pytest
import torch
from masked_sets import animals, png, write_masked

import diffclip
from diffclip.config import variant_config
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import ResultsFile, outcome_key, read_outcomes, same_items
from diffclip.evaluation.run import Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.model_source import Loaded
from diffclip.tokenizer import Tokenizer

SIZES = {
    "embed_dim": 16,
    "vision": {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "heads": 2},
    "text": {"context_length": 8, "width": 16, "layers": 1, "heads": 2},
}


def loaded(seed=0):
    model = diffclip.CLIP(variant_config("CLIP", SIZES), seed=seed).eval()
    preprocess = EvalTransform(16, model.config.preprocess)
    return Loaded(model, preprocess, Tokenizer(model.config.text), "CLIP", f"seed {seed}", seed)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Six classes of eight images, with a train and a test split."""
    folder = tmp_path_factory.mktemp("sets") / "colors"
    for split in ("train", "test"):
        samples = []
        for i in range(48):
            generator = torch.Generator().manual_seed(i + 1000 * (split == "test"))
            pixels = torch.randint(0, 60, (20, 20, 3), generator=generator) + 30 * (i % 6)
            samples.append({"png": png(pixels.byte().numpy()), "cls": str(i % 6)})
        write_masked(folder, samples, {"classnames.txt": "\n".join("abcdef")}, split=split)
    return str(folder)


def run(entries, path=None, seed=0, **how):
    results = ResultsFile(path)
    return results, list(run_entries(loaded(seed), entries, results, Sets(), **how))


def test_a_suite_goes_on_and_other_weights_are_measured_again(classes, tmp_path):
    path, entries = tmp_path / "results.jsonl", [Entry("zero-shot", classes), Entry("few-shot", classes)]
    run(entries[:1], path)
    _, found = run(entries, path)
    assert [one.reused for one in found] == [True, False]
    _, other = run(entries, path, seed=1)
    assert not any(one.reused for one in other)
    kept = {(record.weights, record.task) for record in read_records(path)}
    assert kept >= {(f"seed {seed}", task) for seed in (0, 1) for task in ("zero-shot", "few-shot")}


def test_a_changed_set_is_measured_again(tmp_path):
    folder = write_masked(tmp_path / "set", animals())
    entry, path = Entry("focus", str(folder)), tmp_path / "results.jsonl"
    run([entry], path)
    write_masked(tmp_path / "set", animals(5))
    assert not run([entry], path)[1][0].reused


def test_outcomes_lie_beside_the_records(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    results, _ = run([Entry("zero-shot", classes), Entry("few-shot", classes)], path)
    kept = read_outcomes(path)
    for record in read_records(path):
        one = kept.get(outcome_key(record))
        assert (one is None) == (record.metric == "mean_per_class_recall" or record.task == "six-tasks")
        if one is not None:
            assert one.hits.mean() == pytest.approx(record.value)
            assert same_items(one, results.outcomes[outcome_key(record)])
    path.with_name("results.outcomes.npz").write_bytes(b"cut short")
    assert read_outcomes(path) == {}


def test_a_file_of_something_else_is_refused(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(InputError, match="line 1 is not a record"):
        ResultsFile(path)
    assert json.loads(path.read_text()) == {"step": 1}


def test_an_entry_has_its_own_interpolation_and_templates(classes):
    entries = [Entry("few-shot", classes), Entry("few-shot", classes, interpolation="bicubic")]
    _, (own, bicubic, worded) = run([*entries, Entry("zero-shot", classes, templates=("{c}", "a {c}"))])
    assert worded.records[0].templates == 2
    assert "bilinear" in own.records[0].protocol
    assert "bicubic" in bicubic.records[0].protocol
