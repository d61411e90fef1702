import json

import pytest
import typer
from typer.testing import CliRunner

from diffclip.cli.evaluate import evaluate
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records

app = typer.Typer()
app.command()(evaluate)


def call(*arguments: object) -> tuple[str, str]:
    """stdout and stderr of `diffclip evaluate`; what it raises is raised again."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout, result.stderr


def test_zero_shot_table_and_records(model_folder, class_set, tmp_path):
    output = tmp_path / "out" / "results.jsonl"
    table, errors = call(model_folder, "--data", class_set, "--task", "zero-shot", "--output", output)
    records = read_records(output)
    assert [record.metric for record in records] == ["acc1", "mean_per_class_recall"]
    for record in records:
        assert (record.task, record.dataset, record.split) == ("zero-shot", "colours", "test")
        assert record.count == 12
        assert record.weights == str(model_folder)
        assert record.model.startswith("DiffCLIP-v16x1x2")
        assert record.seed is None
        assert 0 <= record.low <= record.value <= record.high <= 1
        assert "2 templates averaged after normalisation; ties count against" in record.protocol
        assert "shorter edge 16 px bilinear, centre crop 16 px, imagenet statistics" in record.protocol
        assert record.metric in table
    assert "33.3" in table  # chance
    (line,) = errors.splitlines()
    assert line.startswith("diffclip: skipped 1 broken samples or shards: ")
    assert "s0000012" in line


def test_retrieval_picks_its_task_and_prints_json(model_folder, caption_set):
    lines, _ = call(model_folder, "--data", caption_set, "--json", "--batch-size", 4)
    records = [json.loads(line) for line in lines.splitlines()]
    assert [record["metric"] for record in records] == [
        f"{direction}_retrieval_recall@{k}" for direction in ("image", "text") for k in (1, 5, 10)
    ]
    assert [record["count"] for record in records] == [21, 21, 21, 11, 11, 11]
    assert list(records[0]) == list(Record.model_fields)


def test_batch_size_and_workers_change_nothing(model_folder, caption_set):
    first, _ = call(model_folder, "--data", caption_set, "--json", "--batch-size", 3)
    second, _ = call(model_folder, "--data", caption_set, "--json", "--workers", 1)
    assert first == second


def test_several_models_are_compared_with_the_first(save_model, model_folder, class_set, tmp_path):
    other = save_model(tmp_path / "other", seed=1)
    output = tmp_path / "results.jsonl"
    table, _ = call(model_folder, other, "--data", class_set, "--output", output)
    assert [record.weights for record in read_records(output)] == [str(model_folder)] * 2 + [str(other)] * 2
    assert "minus" in table
    assert table.count("acc1") == 1


def test_it_equals_clip_benchmark_on_a_real_set(model_folder, shared):
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification")
    builder = pytest.importorskip("clip_benchmark.datasets.builder")
    import torch

    import diffclip

    folder = shared / "data" / "cifar10"
    if not folder.is_dir():
        pytest.skip("no CIFAR-10 beside the repository")
    lines, _ = call(model_folder, "--data", folder, "--json")
    ours = {record["metric"]: record["value"] for record in map(json.loads, lines.splitlines())}
    model, preprocess, tokenizer = diffclip.load(model_folder)
    data = builder.build_wds_dataset("cifar10", preprocess, split="test", data_dir=str(folder))
    loader = torch.utils.data.DataLoader(data.batched(64), batch_size=None)
    loader.dataset.classes = data.classes
    wanted = theirs.evaluate(model, loader, tokenizer, data.classes, data.templates, "cpu", amp=False)
    assert set(ours) == set(wanted)
    for metric, value in wanted.items():
        assert ours[metric] == pytest.approx(value, abs=1.01 / 800)  # one picture may fall the other way


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--task": "zero-shoot"}, "unknown task 'zero-shoot': did you mean 'zero-shot'"),
        ({"--task": "retrieval"}, "colours is a set for classification.*--task zero-shot"),
        ({"--split": "val"}, "no split 'val'"),
        ({"--device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"--device": "gpu"}, "device 'gpu' is not available"),
        ({"model": "DifCLIP-ViT-B-16"}, "did you mean 'DiffCLIP-ViT-B-16'"),
        ({"model": "gone/model.pt"}, r"gone/model\.pt does not exist"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(model_folder, class_set, tmp_path, changes, words):
    output = tmp_path / "results.jsonl"
    model = changes.pop("model", model_folder)
    arguments = [part for pair in changes.items() for part in pair]
    with pytest.raises(InputError, match=words) as caught:
        call(model, "--data", class_set, "--output", output, *arguments)
    assert "\n" not in str(caught.value)
    assert not output.exists()


def test_a_bad_second_model_is_found_before_the_first_runs(model_folder, class_set, monkeypatch):
    import diffclip.evaluation.tasks

    monkeypatch.setattr(diffclip.evaluation.tasks, "run_task", lambda *_: pytest.fail("a model was run"))
    with pytest.raises(InputError, match="unknown model 'nothing'"):
        call(model_folder, "nothing", "--data", class_set)


def test_an_output_that_cannot_be_written_is_found_first(model_folder, class_set, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "diffclip.cli.evaluate_run.load_for_use", lambda *_: pytest.fail("a model was loaded")
    )
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file" / "inner"):
        with pytest.raises(InputError, match=f"cannot write {output}: .* in the way"):
            call(model_folder, "--data", class_set, "--output", output)


def test_help_has_an_example():
    text, _ = call("--help")
    assert "Example: diffclip evaluate" in text
