"""The file of a study, its runs with their order and settings, and the dry run that prints them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_study import ABLATIONS, STUDY, write_finished

from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records, write_table
from diffclip.evaluation.statistics import detectable
from diffclip.names import GROUPS
from diffclip.study.grid import choose, grid_runs, plan, settings_digest, sweep_doubts, sweep_runs
from diffclip.study.results import StudyFolder
from diffclip.study.site import Site, entries_of, unavailable_sets, usual_workers
from diffclip.study.spec import read_study
from diffclip.training.recipe import read_recipe
from diffclip.training.recipe_file import find_recipe

SLOW, FAST = {"lr": 0.125, "weight_decay": 0.0}, {"lr": 0.25, "weight_decay": 0.5}


def test_runs_are_ordered_by_seed_with_the_settings_of_their_kind(study_file: Callable[..., Path]) -> None:
    as_diffclip = {"change": {"model": "CLIP"}, "settings": "DiffCLIP"}
    ablations = {**ABLATIONS, "arms": {**ABLATIONS["arms"], "as-DiffCLIP": as_diffclip}}  # type: ignore[dict-item]
    runs = grid_runs(read_study(study_file(ablations=ablations)), {"CLIP": FAST, "DiffCLIP": SLOW})
    assert [run.name for run in runs] == [
        *("models/CLIP-s0", "models/DiffCLIP-s0", "models/CLIP-s1", "models/DiffCLIP-s1"),
        *("ablations/DiffCLIP-no-norm-s0", "ablations/as-DiffCLIP-s0"),
    ]
    assert [run.recipe.lr for run in runs] == [0.25, 0.125, 0.25, 0.125, 0.125, 0.125]
    assert runs[-1].recipe.weight_decay == 0.0
    assert (runs[-1].recipe.model, runs[-1].recipe.seed) == ("CLIP", 0)


def test_sweep_chooses_settings_of_each_arm_by_the_mean_over_seeds(study_file, tmp_path: Path) -> None:
    arms = ["CLIP", "DiffCLIP", "DiffCLIP-no-norm"]
    sweep = {"lr": [1e-3, 2e-3, 4e-3], "weight_decay": [0.1], "seeds": [100, 101], "arms": arms}
    study = read_study(study_file(sweep=sweep, ablations=ABLATIONS))
    runs = sweep_runs(study)
    assert len(runs) == 3 * 2 * 3
    assert runs[0].name == "sweep/CLIP-lr0.001-wd0.1-s100"
    scores = {(0.001, 100): 0.5, (0.001, 101): 0.1, (0.002, 100): 0.4, (0.002, 101): 0.4, (0.004, 100): 0.9}
    for run in runs:
        with pytest.raises(InputError, match="the sweep is not finished"):
            choose(study, StudyFolder(tmp_path).runs)
        write_finished(tmp_path, run, scores.get((run.recipe.lr, run.seed)))  # 0.004 diverged once
    chosen = choose(study, StudyFolder(tmp_path).runs)
    assert chosen == {arm: {"lr": 2e-3, "weight_decay": 0.1} for arm in arms}
    for run in runs:
        write_finished(tmp_path, run, None)
    with pytest.raises(InputError, match="every setting of CLIP in the sweep diverged"):
        choose(study, StudyFolder(tmp_path).runs)


def test_sweep_tells_of_the_edge_of_the_grid_and_of_noise(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    sweep = {"lr": [1e-3, 2e-3, 4e-3], "weight_decay": [0.1], "seeds": [100, 101]}
    study = read_study(study_file(sweep=sweep))
    means = {"CLIP": {1e-3: 0.50, 2e-3: 0.48, 4e-3: 0.1}, "DiffCLIP": {1e-3: 0.1, 2e-3: 0.50, 4e-3: 0.1}}
    for run in sweep_runs(study):
        half = 0.02 if run.arm == "CLIP" else 0.0  # seeds of CLIP are 4 points apart: sd 2.83
        write_finished(tmp_path, run, means[run.arm][run.recipe.lr] + (half if run.seed == 100 else -half))
    lines = StudyFolder(tmp_path).runs
    assert sweep_doubts(study, lines, {}) == {}
    doubts = sweep_doubts(study, lines, choose(study, lines))
    assert doubts["DiffCLIP"] == []
    assert doubts["CLIP"] == [
        "best at the edge of the grid: add a lower rate to sweep.lr",
        "within noise of the next (lr 0.002, 2.00 points less, seeds vary by 2.83): 16 seeds would tell them apart",
    ]


def test_missing_set_without_a_download_is_left_out_of_the_suite(study_file, tmp_path: Path) -> None:
    study = read_study(study_file(models={**STUDY["models"], "suite": "study"}))
    site, run = Site(tmp_path, tmp_path, tmp_path, "cpu", 1, 1), grid_runs(study, {})[0]
    entries = entries_of(study, GROUPS)
    assert unavailable_sets(study, site, entries) == ["oxford_pets3"]
    measured = {entry.dataset for entry in site.entries(study, run)}
    assert {entry.dataset for entry in entries} - measured == {"oxford_pets3"}
    (tmp_path / "oxford_pets3").mkdir()
    assert not unavailable_sets(study, site, entries)
    assert site.entries(study, run) == entries


def test_finished_run_is_recognized_by_settings_not_by_data_folder(study_file, tmp_path) -> None:
    study = read_study(study_file(sweep=None))
    run = plan(study, {})[0][0]
    lines = {run.name: {"recipe": run.digest}}
    assert run.is_finished(lines)
    site = Site(Path("/elsewhere"), tmp_path, tmp_path, "cpu", 1, 1)
    file = tmp_path / "recipe.yaml"
    file.write_text(site.with_data(study, run.recipe).to_yaml())
    assert read_recipe(file).data.train == "/elsewhere/flickr8k/train"
    for word in ("data.memory=true", "data.workers=2", "checkpoint_every=5", "micro_batch=8"):
        assert settings_digest(read_recipe(file, [word])) == run.digest
    for word in ("lr=0.5", "data.train=/elsewhere/flickr30k/train", "data.flip=0.5", "epochs=3"):
        assert settings_digest(read_recipe(file, [word])) != run.digest
    assert not plan(read_study(study_file(sweep=None, change={"epochs": 9})), {})[0][0].is_finished(lines)


def test_folder_of_another_study_is_refused_with_the_differing_key(study_file, tmp_path) -> None:
    out = tmp_path / "out"
    StudyFolder(out).claim(read_study(study_file()))
    models = {**STUDY["models"], "seeds": [0, 1, 2]}  # type: ignore[dict-item]
    larger = study_file(models=models, ablations=ABLATIONS, title="More", test="welch")
    StudyFolder(out).claim(read_study(larger))
    assert read_study(out / "spec.yaml") == read_study("tiny_study.yaml")
    for changes, message in (
        ({"data": "flickr30k"}, 'data="flickr8k", not "flickr30k"'),
        ({"scenes": {"train": 8, "val": 8, "size": 32}}, "scenes=null, not "),
        ({"change": {"epochs": 7}}, "change.epochs=null, not 7"),
        (
            {"endpoints": {"primary": {"task": "zero-shot", "dataset": "cifar10", "metric": "acc1"}}},
            'endpoints.primary.task="validation", not "zero-shot"',
        ),
        ({"models": {**models, "suite": "quick"}}, 'models.suite="brief", not "quick"'),
    ):
        with pytest.raises(InputError, match=rf"{message}.*: choose another --output and other --runs"):
            StudyFolder(out).check(read_study(study_file(**changes)))
    (out / "spec.yaml").write_text("models: [")
    with pytest.raises(InputError, match="is not YAML"):
        StudyFolder(out).check(read_study(study_file()))


def test_spec_beside_the_results_stays_as_it_was_written(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    text = f"# why\n{study_file().read_text()}"
    (out / "spec.yaml").write_text(text)
    StudyFolder(out).claim(read_study(out / "spec.yaml"))
    assert (out / "spec.yaml").read_text() == text
    with pytest.raises(InputError, match=r"spec.yaml has models.seeds=\[0, 1\], not \[0, 1, 2\]: write it"):
        StudyFolder(out).claim(read_study(out / "spec.yaml", ["models.seeds=[0, 1, 2]"]))


def test_memory_of_a_gpu_limits_the_number_of_workers(study_file, monkeypatch) -> None:
    recipe = read_study(study_file()).recipes["DiffCLIP"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    gpu = SimpleNamespace(total_memory=3.5 * 2**31 / 0.9)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    monkeypatch.setattr("diffclip.study.site.measure_steps", lambda *_: (1.0, 3 * 2**28))  # and CUDA's own
    monkeypatch.setattr("diffclip.study.site.cores", lambda: 16)
    assert (usual_workers("cuda", [recipe]), usual_workers("cpu", [recipe])) == (6, 1)


def test_adding_a_run_recomputes_the_averages_of_all_runs(tmp_path: Path) -> None:
    fields = {"task": "retrieval", "dataset": "flickr8k", "split": "val[500:]", "count": 500, "protocol": ""}
    fields |= {"metric": "image_retrieval_recall@5", "value": 0.1, "low": 0.0, "high": 0.2, "model": "CLIP"}
    first, second = (Record.model_validate(fields | {"seed": n, "weights": f"s{n}"}) for n in (0, 1))
    old = first.model_copy(update={"task": "six-tasks", "metric": "average", "of": ("flickr8k",)})
    write_table(tmp_path, [first, old])
    line = {"run": "models/CLIP-s1", "arm": "CLIP", "seed": 1, "group": "models"}
    StudyFolder(tmp_path).add(line, [second], {})
    averages = [record for record in read_records(tmp_path / "results.csv") if record.task == "six-tasks"]
    assert [(mean.seed, mean.of) for mean in averages] == [(n, ("flickr8k, val[500:]",)) for n in (0, 1)]


def test_averages_do_not_depend_on_the_order_in_which_runs_end(tmp_path: Path) -> None:
    fields = {
        "task": "zero-shot",
        "split": "test",
        "count": 48,
        "protocol": "",
        "metric": "acc1",
        "model": "CLIP",
    }
    fields |= {"low": None, "high": None}
    tables = []
    for order in ((0, 1), (1, 0)):
        folder = tmp_path / str(order[0])
        for n in order:
            # their mean is 1/12, which has other digits if 7/96 is rounded before
            sets = [{"dataset": "cifar10", "value": 7 / 96}, {"dataset": "caltech101", "value": 9 / 96}]
            runs = [Record.model_validate(fields | own | {"seed": n, "weights": f"s{n}"}) for own in sets]
            line = {"run": f"models/CLIP-s{n}", "arm": "CLIP", "seed": n, "group": "models"}
            StudyFolder(folder).add(line, runs, {"run": line["run"]})
        means = [record for record in read_records(folder / "results.csv") if record.task == "six-tasks"]
        tables.append({(mean.seed, mean.dataset): mean.value for mean in means})
    assert tables[0] == tables[1]


def test_dry_run_prints_runs_time_and_detectable_difference(study_file, diffclip_study, tmp_path) -> None:
    file = study_file(sweep=None)
    ended = diffclip_study(file, "--workers", 2, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "0 of 4 runs are finished; no time estimate yet" in ended.stdout
    assert "or --pilot" in ended.stdout
    assert not (tmp_path / "out").exists()
    runs = plan(read_study(file), {})[0]
    for run, score in zip(runs, (0.40, 0.41, 0.42, 0.45), strict=True):
        write_finished(tmp_path / "pilot", run, score)
    write_finished(tmp_path / "out", runs[0], 0.4)
    options = ("--workers", 2, "--dry-run", "--pilot", tmp_path / "pilot", "models.seeds=[0,1,2,3,4,5]")
    ended = diffclip_study(file, *options)
    assert "1 of 12 runs are finished; the others take about 8 min, 2 at a time on cpu" in ended.stdout
    assert "(at the speed of a laptop, 4 threads)" in ended.stdout
    assert "primary: DiffCLIP − CLIP, validation score, Flickr8k" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert ["models", "CLIP", "brief", "0", "…", "5", "6", "1"] in rows
    assert ["models", "DiffCLIP", "brief", "0", "…", "5", "6", "0"] in rows
    sd = 0.0005**0.5  # of 0.40 and 0.42, and of 0.41 and 0.45
    assert "runs vary by 2.24 points (standard deviation within arms, 2 degrees of freedom)" in ended.stdout
    least = detectable(sd, 6, df=5)
    assert f"6 runs of each arm find a difference of {100 * least:.2f} points" in ended.stdout
    assert "80 % power; pairs of runs that rise and fall together find smaller ones" in ended.stdout


@pytest.mark.parametrize(
    "name", ["study_a", "study_b", "study_a_gpu", "study_b_gpu", "study_cpu", "study_d", "study_d_36"]
)
def test_packaged_studies_make_a_plan_and_state_answers_and_cost(name: str, tmp_path: Path) -> None:
    study = read_study(name)
    runs = plan(study, {})[0]
    assert len({run.name for run in runs}) == len(runs)
    assert "models" in {run.group for run in runs}
    again = tmp_path / "again.yaml"
    again.write_text(study.to_yaml())
    assert read_study(again) == study
    file = find_recipe(name)
    head = "".join(line for line in file.read_text().splitlines(True) if line.startswith("#"))
    positions = [head.find(f"# {word}: ") for word in ("Answers", "Command", "Cost")]
    assert positions[0] == 0
    assert positions == sorted(positions)


def test_primary_comparison_and_contrasts_have_defaults(study_file: Callable[..., Path]) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    primary = study.endpoints.primary
    assert (primary.arm, primary.against) == ("DiffCLIP", "CLIP")
    assert (primary.task, primary.metric, primary.dataset) == ("validation", "score", "flickr8k")
    assert primary.margin is None
    assert study.contrasts == [("DiffCLIP", "CLIP"), ("DiffCLIP-no-norm", "DiffCLIP")]
    changes = [
        "endpoints.primary.task=retrieval",
        "endpoints.primary.metric=mean_recall",
        "endpoints.primary.margin=0.02",
        "contrasts=[[CLIP, DiffCLIP]]",
    ]
    declared = read_study(study_file(), changes)
    assert declared.endpoints.primary.metric == "mean_recall"
    assert declared.endpoints.primary.margin == 0.02
    assert declared.contrasts == [("CLIP", "DiffCLIP")]
    measured = [
        {"task": "mmvp", "dataset": "scenes-mmvp", "metric": "pair_accuracy/Color and Appearance"},
        {"task": "sugarcrepe", "dataset": "scenes-sugarcrepe", "metric": "replace_att"},
    ]
    scenes = {**STUDY["models"], "suite": "scenes"}  # type: ignore[dict-item]
    named = read_study(study_file(models=scenes, endpoints={"secondary": measured})).endpoints.secondary
    assert [one.metric for one in named or ()] == [one["metric"] for one in measured]
    assert read_study("study_cpu").arms["DiffCLIP"].against == "DiffCLIP-no-factor"
    assert read_study("study_cpu", ["ablations=null"]).arms["DiffCLIP"].against is None


def test_an_arm_takes_the_settings_of_its_kind_of_attention(study_file: Callable[..., Path]) -> None:
    arms = ("CLIP-gated", "CLIP-registers", "DiffCLIP-v2", "DiffCLIP-vision")
    study = read_study(study_file(**_arms(**{arm: {"change": {"model": arm}} for arm in arms})))
    assert [study.tuned_as(arm) for arm in arms] == ["CLIP", "CLIP", "DiffCLIP", "DiffCLIP"]


def _arms(**arms: dict[str, Any]) -> dict[str, Any]:
    return {"models": {**STUDY["models"], "arms": {**STUDY["models"]["arms"], **arms}}}  # type: ignore[dict-item]


BARE = {"change": {"model": "DiffCLIP-bare"}, "against": "CLUP"}
SWEEP: dict[str, Any] = {"lr": [1e-3], "weight_decay": [0.1], "seeds": [9]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modles": 1}, "did you mean 'models'"),
        ({"ablations": {**ABLATIONS, "arms": {"bare": BARE}}}, "arm bare is against 'CLUP', which is not an"),
        (_arms(**{"../x": {"change": {"model": "CLIP"}}}), "names the folder of its runs"),
        (
            {"endpoints": {"primary": {"arm": "DiffCLOP"}}},
            "endpoints.primary.arm is 'DiffCLOP', which is not an arm",
        ),
        (
            {"endpoints": {"primary": {"metric": "scores"}}},
            "endpoints.primary.metric 'scores': did you mean 'score'",
        ),
        ({"endpoints": {"primary": {"task": "mmvp"}}}, "no run measures mmvp on flickr8k"),
        ({"contrasts": [["DiffCLIP", "CLUP"]]}, r"contrasts\[0\] has 'CLUP'"),
        ({"change": {"epoch": 3}}, "unknown recipe key 'epoch'"),
        ({"sweep": SWEEP | {"seeds": [100, 100]}}, r"\[100, 100\] contains a value twice"),
        ({"sweep": SWEEP | {"seeds": [1]}}, "contain a seed of models or ablations"),
        ({"sweep": SWEEP | {"lr": [0.0]}}, "sweep.lr.0: 0.0 is not above 0"),
        (_arms(x={"change": {"model": "CLIP", "data.train": "x"}}), "a change sets data.train: all runs"),
        (_arms(x={"change": {"model": "CLIP", "seed": 3}}), "a change sets seed: all runs"),
        ({"scenes": {"train": 9, "val": 9, "size": 8}}, "scenes.size: 8 is below 16"),
        (_arms(x=BARE), "arm x is against 'CLUP'"),
        ({"sweep": SWEEP | {"arms": ["CLIP"]}}, "arm DiffCLIP is not swept: add it or DiffCLIP to"),
        (_arms(x={"change": {"model": "DiffCLIB"}}), "arm x: unknown model 'DiffCLIB'"),
    ],
)
def test_invalid_study_is_refused_in_one_line(study_file, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_study(study_file(**changes))
    assert "\n" not in str(error.value)
