"""Records grouped into measures and models, and their display names."""

import pytest
import yaml
from made_records import made, make_record, results_from, write_study

from diffclip.errors import InputError
from diffclip.evaluation.records import write_records
from diffclip.report.frame import headlines, measures_of, read_results, values_of
from diffclip.report.labels import in_order, interval, measure_label, p_text, percent

RECALL = ("retrieval", "flickr8k", "mean_recall")
ABOUT = {"model": "CLIP", "seed": 0, "weights": "runs/CLIP-s0/checkpoints/best"}


ON_A_HEAD = {"map": "A1", "layer": 2, "head": 3}


@pytest.mark.parametrize(
    ("fields", "facts", "label"),
    [
        (("retrieval", "flickr8k", "image_retrieval_recall@5"), {}, "text→image R@5, Flickr8k"),
        (("mmvp", "mmvp", "pair_accuracy/Texts"), {}, "minimal pairs: pair accuracy: Texts, MMVP-VLM"),
        (("six-tasks", "image retrieval", "average"), {"of": ("flickr8k",)}, "image retrieval R@5, Flickr8k"),
        (
            ("six-tasks", "zero-shot", "average"),
            {"of": ("cifar10", "pets, val")},
            "zero-shot top-1, mean of CIFAR-10 and Pets (val)",
        ),
        (("six-tasks", "few-shot", "average"), {"of": tuple("abcd")}, "few-shot accuracy, mean of 4 sets"),
        (("sugarcrepe", "sugarcrepe", "swap_obj"), {}, "SugarCrepe swap obj, COCO val2017"),
        (("focus", "scenes", "auroc"), ON_A_HEAD, "focus: area under ROC, scenes, A1, layer 2, head 3"),
        (
            ("zero-shot", "cifar10", "acc1"),
            {"corruption": "noise", "severity": 3},
            "zero-shot top-1, CIFAR-10, noise 3",
        ),
    ],
)
def test_measures_have_readable_labels(fields, facts, label):
    assert measure_label(make_record(ABOUT, *fields, 0.5, **facts).model_dump()) == label


def test_headlines_have_one_attack_size_and_blind_pope_comes_last():
    sizes = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
    rows = [
        make_record(ABOUT, "robustness", "cifar10", "adversarial_accuracy", 0.5, epsilon=size)
        for size in sizes
    ]
    results = results_from(rows)
    (headline,) = headlines(results.records)
    fields = measures_of(results.records)
    assert fields["label"].tolist()[1] == "accuracy under attack, ε=0.25/255, CIFAR-10"
    assert fields.loc[headline, "label"] == "accuracy under attack, ε=1/255, CIFAR-10"
    tasks = ("pope-blind", "pope")
    results = results_from([make_record(ABOUT, task, "scenes-kinds", "accuracy", 0.5) for task in tasks])
    labels = measures_of(results.records).loc[headlines(results.records), "label"]
    assert list(labels) == ["POPE accuracy, scenes-kinds, test", "blind POPE accuracy, scenes-kinds, test"]


def test_draws_are_averaged_within_a_seed():
    results = results_from(made({"CLIP": 0.4}, seeds=(0,), draws=3))
    values = values_of(results.records)
    assert len(values) == values["measure"].nunique()
    few = results.records[(results.records["task"] == "few-shot") & (results.records["dataset"] == "cifar10")]
    mean = values[values["measure"] == few["measure"].iloc[0]]["value"].item()
    assert mean == pytest.approx(few["value"].mean())


def test_every_task_has_a_headline_and_averages_replace_their_sets():
    results = results_from(made({"CLIP": 0.4, "DiffCLIP": 0.4}))
    fields = measures_of(results.records).loc[headlines(results.records)]
    assert list(fields["task"]) == ["six-tasks"] * 6 + ["mmvp", "focus"]
    single = results.records[results.records["task"] != "six-tasks"]
    tasks = set(measures_of(single).loc[headlines(single), "task"])
    assert tasks == {"zero-shot", "linear-probe", "few-shot", "retrieval", "mmvp", "focus", "out-of-domain"}


def test_single_sets_replace_averages_over_different_sets():
    records = []
    for model, dataset in (("CLIP", "caltech101"), ("DiffCLIP", "pets")):
        about = {"model": model, "seed": 0, "weights": f"{model}-s0"}
        records += [make_record(about, "zero-shot", name, "acc1", 0.5) for name in ("cifar10", dataset)]
        records.append(make_record(about, "six-tasks", "zero-shot", "average", 0.5, of=("cifar10", dataset)))
        records.append(make_record(about, "six-tasks", "few-shot", "average", 0.5, of=("cifar10",)))
        records.append(make_record(about, "few-shot", "cifar10", "acc1", 0.5))
    frame = results_from(records).records
    labels = measures_of(frame).loc[headlines(frame), "label"]
    assert list(labels) == [
        "few-shot accuracy, CIFAR-10",
        *(f"zero-shot top-1, {name}" for name in ("CIFAR-10", "Caltech-101", "Pets")),
    ]


def test_labels_name_splits_and_templates_if_there_are_several():
    facts = [{}, {"split": "val"}, {"templates": 7}, {"templates": 80}]
    sets = ("flickr8k", "flickr8k", "imagenet1k", "imagenet1k")
    tasks = [("retrieval", "mean_recall")] * 2 + [("zero-shot", "acc1")] * 2
    records = [
        make_record(ABOUT, task, name, metric, 0.5, **fields)
        for (task, metric), name, fields in zip(tasks, sets, facts, strict=True)
    ]
    assert list(measures_of(results_from(records).records)["label"]) == [
        "mean recall, Flickr8k, test",
        "mean recall, Flickr8k, val",
        "zero-shot top-1, ImageNet, 7 templates",
        "zero-shot top-1, ImageNet, 80 templates",
    ]
    average = ("six-tasks", "zero-shot", "average", 0.5)
    mixed = [
        make_record(ABOUT | {"model": f"CLIP-{n}"}, *average, templates=n, of=(str(n),)) for n in (7, None)
    ]
    labels = measures_of(results_from(mixed).records)["label"]
    assert list(labels) == ["zero-shot top-1, 7", "zero-shot top-1, None"]


def test_equal_model_names_get_suffixes_and_equal_records_count_once():
    first, second = made({"CLIP": 0.4}, seeds=(0,)), made({"CLIP": 0.4}, seeds=(0,))
    assert results_from(first + first).models == ["CLIP"]
    assert len(results_from(first + first).records) == len(first)
    copies = [record.model_copy(update={"weights": "runs/other-s0/checkpoints/best"}) for record in second]
    assert results_from(first + copies).models == ["CLIP (CLIP-s0)", "CLIP (other-s0)"]
    fields = ("zero-shot", "cifar10", "acc1", 0.5)
    runs = [
        make_record(ABOUT | {"weights": f"runs/{data}/CLIP-s0/checkpoints/best"}, *fields, steps=steps)
        for data, steps in (("cc3m", 1000), ("cc12m", 4000))
    ]
    assert results_from(runs).models == ["CLIP (cc3m/CLIP-s0)", "CLIP (cc12m/CLIP-s0)"]
    names = ("checkpoints/epoch_1.pt", "checkpoints/epoch_2.pt")
    files = [make_record(ABOUT | {"seed": None, "weights": name}, *fields) for name in names]
    assert results_from(files).models == ["CLIP (epoch_1.pt)", "CLIP (epoch_2.pt)"]


def test_a_study_inside_a_folder_is_read_and_two_studies_are_not_merged(tmp_path):
    write_study(tmp_path / "one" / "study", {"CLIP": 0.4, "DiffCLIP": 0.4})
    assert read_results([tmp_path / "one"]).spec.title == "A made-up study"
    studies = [
        write_study(tmp_path / "more" / name, {"CLIP": 0.4, "DiffCLIP": 0.4}) for name in ("k0", "k16")
    ]
    for paths in (studies, [tmp_path / "more"]):
        with pytest.raises(InputError, match=r"k0 and .*k16 are two studies: give one of them"):
            read_results(paths)


def test_a_change_between_studies_is_named_as_one(tmp_path):
    values = {("k0", "CLIP"): 0.5, ("k0", "DiffCLIP"): 0.5, ("k16", "CLIP"): 0.3, ("k16", "DiffCLIP"): 0.4}
    records = [
        make_record(
            {"model": model, "seed": seed, "weights": f"{study}-{model}", "study": study}, *RECALL, value
        )
        for (study, model), value in values.items()
        for seed in (0, 1, 2)
    ]
    write_records(tmp_path / "results.jsonl", records)
    endpoint = dict(zip(("task", "dataset", "metric"), RECALL, strict=True)) | {"study": "k16 - k0"}
    primary = endpoint | {"arm": "DiffCLIP", "against": "CLIP"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"endpoints": {"primary": primary}}))
    results = read_results([tmp_path])
    assert results.primary["label"] == "mean recall, Flickr8k, k16 − k0"
    assert results.primary["difference"] == pytest.approx(0.1)


def test_only_the_last_checkpoint_of_a_run_counts():
    course = [
        make_record(ABOUT, "zero-shot", "cifar10", "acc1", 0.01 * step, steps=step) for step in (10, 20, 30)
    ]
    results = results_from(course)
    assert results.records["value"].tolist() == [0.3]


def test_models_are_sorted_with_clip_first_and_numbers_formatted():
    names = ["DiffCLIP-vision-ViT-B-16", "mine", "DiffCLIP", "CLIP", "DiffCLIP-no-norm"]
    assert in_order(names) == ["CLIP", "DiffCLIP", "DiffCLIP-vision-ViT-B-16", "DiffCLIP-no-norm", "mine"]
    assert percent(0.4832) == "48.3"
    assert percent(-0.0123, sign=True) == "−1.2"
    assert percent(-0.0001, sign=True) == "0.0"
    assert percent(None) == "–"
    numbers = (1629121.0, 1.254, 0.0042, -0.0731, 0.0, 1e-17)
    written = [percent(number, share=False) for number in numbers]
    assert written == ["1,629,121", "1.25", "0.0042", "−0.073", "0.00", "0.00"]
    assert interval(0.1, 0.2) == "10.0 to 20.0"
    assert [p_text(p) for p in (0.0004, 0.0071, 0.0499, 0.34)] == ["< 0.001", "0.007", "0.049", "0.34"]
