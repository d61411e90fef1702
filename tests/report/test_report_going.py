"""Runs that still go, stopped or were started more than once: what is read of them and what their page says."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from run_folders import make_run, write_lines
from typer.testing import CliRunner

from diffclip.cli.report import report
from diffclip.errors import InputError
from diffclip.report import report_run
from diffclip.report.curves import extremes
from diffclip.report.page import write_report
from diffclip.report.run_cards import finished_cards, going_cards
from diffclip.report.runs import Run, read_run
from diffclip.report.save import save_results
from diffclip.report.series import Series
from diffclip.report.sources import read_sources
from diffclip.report.state import State, state_of

NOW = 1_800_000_000.0


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    rows = [new for row in rows_of(folder) if (new := change(row)) is not None]
    write_lines(folder / "metrics.jsonl", rows)


def unfinished(folder: Path, steps: int = 40, done: int = 30, heard: float = NOW) -> Path:
    """A run of two epochs that has made `done` of `steps` steps of 2 seconds, the last one at `heard`."""
    make_run(folder, steps=steps, evaluated=False)
    first, _ = (folder / "validation.jsonl").read_text().splitlines()
    (folder / "validation.jsonl").write_text(first + "\n")

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        step = row["step"]
        told = {"time": heard - 2 * (done - step), "seconds_left": 2.5 * (steps - step)}
        return row | told | {"epoch": 1 + 2 * (step - 1) // steps} if step <= done else None

    rewrite(folder, change)
    return folder


def start(step: int = 0, ended: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "time": NOW - 5000 + step,
        "step": step,
        "steps": 40,
        "command": "diffclip train tiny.yaml 'data.train=https://me:pa55@host/x.tar?sig=abc'",
        "versions": {"diffclip": "0.1.0", "torch": "2.15.0"},
        "git": {"commit": "0123456789abcdef", "dirty": True, "branch": "trunk"},
        "machine": {"name": "node-7", "cpu": "A <Fast> CPU", "cores": 16, "memory": 64 * 2**30},
        "gpus": [{"name": "H100", "memory": 80 * 2**30, "driver": "550.1"}] * 2,
        "processes": {"world": 4, "nodes": 2, "strategy": "fsdp"},
        "data": {
            "samples": 12345,
            "fingerprint": "3fa9",
            "sources": [{"spec": "a", "shards": 3}, {"spec": "b", "shards": 4}],
        },
        "environment": {"OMP_NUM_THREADS": "8"},
        "job": {"SLURM_JOB_ID": "77"},
    }
    return facts | changes | ({"ended": ended} if ended else {})


def write_starts(folder: Path, *starts: dict[str, Any]) -> Path:
    (folder / "about.json").write_text(json.dumps({"starts": starts}))
    return folder


def series_of(run: Run) -> Series:
    return Series(run.variant, run.model, run.variant, run.init)


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def card(folder: Path, now: float = NOW) -> str:
    run = read_run(folder)
    return words(going_cards([(series_of(run), run)], now))


def state(folder: Path, now: float) -> State:
    return state_of(read_run(folder), now)


def test_a_run_that_was_just_heard_of_goes(tmp_path):
    found = state(unfinished(tmp_path / "run"), NOW + 60)
    assert (found.kind, found.heard, found.how) == ("going", NOW, None)
    assert (found.step, found.steps, found.epoch, found.epochs, found.samples) == (30, 40, 2, 2, 240)
    assert (found.rate, found.data_wait, found.left, found.share) == (80, 0.02, 25, 0.75)


def test_a_run_that_is_silent_for_longer_than_it_ever_was_has_stopped(tmp_path):
    folder = unfinished(tmp_path / "run")
    assert state(folder, NOW + 590).kind == "going"
    found = state(folder, NOW + 610)
    assert (found.kind, found.left) == ("stopped", None)
    # a validation of ten minutes before step 25
    rewrite(folder, lambda row: row | {"time": row["time"] - 600 * (row["step"] < 25)})
    assert state(folder, NOW + 1700).kind == "going"
    assert state(folder, NOW + 1900).kind == "stopped"
    # but not the days between two starts
    write_starts(folder, start(), start(24, time=NOW - 20))
    assert state(folder, NOW + 1700).kind == "stopped"


def test_a_run_that_said_how_it_ended_has_stopped_at_once(tmp_path):
    ended = {"time": NOW + 5, "step": 30, "how": "InputError: no space left"}
    folder = write_starts(unfinished(tmp_path / "run"), start(ended=ended))
    found = state(folder, NOW + 6)
    assert (found.kind, found.heard, found.how) == ("stopped", NOW + 5, "InputError: no space left")
    # resumed since
    write_starts(folder, start(ended=ended | {"step": 20}), start(20))
    assert state(folder, NOW + 6).kind == "going"


def test_a_run_with_all_its_steps_has_finished(tmp_path):
    folder = unfinished(tmp_path / "run", done=40)
    assert state(folder, NOW + 10**6).kind == "finished"
    # how many there are to be is told by the starts, before anything else
    assert state(write_starts(folder, start(steps=50)), NOW).kind == "going"
    ended = {"time": NOW, "step": 40, "how": "finished"}
    assert state(write_starts(folder, start(steps=None, ended=ended)), NOW).kind == "finished"


def test_an_older_run_is_known_by_its_file_and_its_epochs(tmp_path):
    folder = unfinished(tmp_path / "run")
    rewrite(folder, lambda row: {key: row[key] for key in row if key not in ("time", "seconds_left")})
    os.utime(folder / "metrics.jsonl", (NOW, NOW))
    found = state(folder, NOW + 60)
    assert (found.kind, found.heard, found.steps) == ("going", NOW, 40)
    # 10 steps of 8 samples, 80 a second
    assert found.left == 1
    (folder / "validation.jsonl").unlink()
    assert state(folder, NOW + 60).steps == 40
    # within the first epoch nothing tells its length
    rewrite(folder, lambda row: row if row["step"] <= 20 else None)
    os.utime(folder / "metrics.jsonl", (NOW, NOW))
    found = state(folder, NOW + 60)
    assert (found.kind, found.steps, found.left, found.share) == ("going", None, None, None)


def test_a_thinned_run_whose_epochs_cannot_be_counted_has_no_total(tmp_path):
    folder = unfinished(tmp_path / "run", steps=400, done=400)
    (folder / "validation.jsonl").unlink()
    rewrite(folder, lambda row: row if row["step"] % 30 == 1 or row["step"] == 400 else None)
    assert state(folder, NOW).steps is None


def test_the_card_tells_everything(tmp_path):
    starts = [
        start(ended={"time": NOW, "step": 24, "how": "KeyboardInterrupt"}),
        start(20, data=start()["data"] | {"fingerprint": "4b"}, versions={"diffclip": "0.1.0", "torch": "3"}),
    ]
    text = card(write_starts(unfinished(tmp_path / "run"), *starts), NOW + 5)
    for part in (
        "DiffCLIP, seed 0 going",
        "last heard 5 s before this page",
        "step 30 of 40 (75 %)",
        "epoch 2 of 2",
        "samples 240 ",
        "rate 80 samples a second, 2 % of the time waiting for data",
        "time left 20 s, ends ",
        "node-7; 2 × H100, 80 GB, driver 550.1; 16 cores of A &lt;Fast&gt; CPU, 64 GB; SLURM job 77",
        "4 on 2 nodes, fsdp",
        "diffclip 0.1.0 (commit 012345678 of trunk, with changes), torch 3",
        "12,345 samples, 7 shards of 2 sources, fingerprint 4b",
        "OMP_NUM_THREADS=8",
        "data.train=https://***@host/x.tar?sig=***",
        "2 starts",
        "after step 0; ended after step 24: KeyboardInterrupt",
        "after step 20, with other data, torch",
    ):
        assert part in text


def test_what_is_missing_or_odd_in_about_is_left_out(tmp_path):
    folder = unfinished(tmp_path / "run")
    for starts in ([{}], [{"gpus": 3, "data": [], "machine": None, "time": "x", "step": "y"}, {"ended": 3}]):
        write_starts(folder, *starts)
        text = card(folder)
        assert "step 30 of 40" in text
        assert "machine" not in text
    (folder / "about.json").write_text('{"starts": [{"st')
    assert "step 30 of 40" in card(folder)


def test_a_page_of_a_run_just_begun(tmp_path):
    folder = unfinished(tmp_path / "run", done=3, heard=time.time())
    (folder / "validation.jsonl").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 1.')
    write_starts(folder, start())
    text = report_run(folder).read_text()
    assert text.index('id="progress"') < text.index('id="training"')
    for part in ("going", "step 3 of 40 (7.5 %)", "node-7", "Neither validated nor evaluated yet."):
        assert part in words(text)
    assert "pa55" not in text


def test_a_page_of_a_finished_run_tells_where_it_was_made_and_nothing_of_progress(tmp_path):
    folder = write_starts(unfinished(tmp_path / "run", done=40), start())
    text = report_run(folder).read_text()
    assert 'id="progress"' not in text
    assert "node-7" in words(text.partition('id="how-it-was-made"')[2])
    # and without the file it has neither
    (folder / "about.json").unlink()
    run = read_run(folder)
    assert finished_cards([(series_of(run), run)], NOW) == going_cards([(series_of(run), run)], NOW) == ""


def test_a_long_run_has_a_small_page_with_its_worst_step(tmp_path):
    folder = unfinished(tmp_path / "run", steps=20_000, done=15_000)
    rewrite(folder, lambda row: row | {"loss": 9.0} if row["step"] == 7777 else row)
    run = read_run(folder)
    assert run.lambdas["visual"].shape == (15_000, 3)
    x, y = extremes(run.steps["samples"], run.steps["loss"])
    assert len(x) <= 600
    assert x[y.argmax()] == 8 * 7777
    assert write_report(tmp_path / "page.html", [run], []).stat().st_size < 1_500_000


def test_extremes_keep_the_order_and_pass_over_what_is_not_finite():
    x, y = np.arange(3000.0), np.sin(np.arange(3000.0))
    y[100:300] = math.nan
    y[1500] = math.inf
    thin_x, thin_y = extremes(x, y)
    assert (np.diff(thin_x) > 0).all()
    assert np.isfinite(thin_y).all()
    assert thin_y.max() == y[np.isfinite(y)].max()
    assert extremes(x[:50], y[:50])[1].tolist() == y[:50].tolist()


def test_records_of_changing_shape_are_aligned(tmp_path):
    folder = unfinished(tmp_path / "run", done=4)
    first, second, third, fourth = rows_of(folder)
    first["lambda"] = {"visual": [], "text": None}
    second |= {"extra": 3}
    third["lambda"] = {"visual": [0.5, None, 0.5], "text": [0.1, 0.2]}
    del fourth["loss"]
    again = second | {"loss": 5.0}
    write_lines(
        folder / "metrics.jsonl", [first, second, third, fourth, again, third, fourth | {"loss": True}]
    )
    run = read_run(folder)
    assert run.steps["step"].tolist() == [1, 2, 3, 4]
    assert run.steps["loss"][1] == 5
    assert math.isnan(run.steps["loss"][3])
    assert np.isnan(run.steps["extra"]).tolist() == [True, False, True, True]
    assert np.isnan(run.lambdas["visual"]).all(axis=1).tolist() == [True, False, True, False]
    assert run.lambdas["text"].shape == (4, 2)
    assert run.lambdas["text"][2].tolist() == [0.1, 0.2]


def test_what_is_saved_has_no_moments_and_no_credentials(tmp_path):
    folder = write_starts(unfinished(tmp_path / "run"), start())
    recipe = (folder / "recipe.yaml").read_text()
    recipe = recipe.replace(
        "train: sets/scenes/train",
        f"train: [{{shards: '{tmp_path}/a.tar', weight: 0.5}}, 'https://me:pa55@host/x.tar?sig=abc']",
    )
    (folder / "recipe.yaml").write_text(recipe)
    saved = save_results([folder], tmp_path / "saved") / "run"
    assert not {"time", "seconds_left"} & rows_of(saved)[0].keys()
    assert not (saved / "about.json").exists()
    text = (saved / "recipe.yaml").read_text()
    assert "https://***@host/x.tar?sig=***" in text
    assert f"shards: {tmp_path}" not in text
    page = write_report(tmp_path / "page.html", [read_run(folder)], []).read_text()
    assert f"0.5 × {tmp_path.name}/a.tar, ***@host/x.tar" in words(page)


def test_a_run_without_a_step_is_left_out_beside_others(tmp_path):
    unfinished(tmp_path / "runs" / "a")
    new = make_run(tmp_path / "runs" / "b", evaluated=False)
    (new / "metrics.jsonl").write_text('{"step": 1, "lo')
    with pytest.raises(InputError, match="no complete step"):
        read_sources([tmp_path / "runs"])
    told: list[str] = []
    runs, _ = read_sources([tmp_path / "runs"], told.append)
    assert [run.name for run in runs] == ["a"]
    assert told == [f"{new} is left out: it has not made a step yet"]
    with pytest.raises(InputError, match="no complete step"):
        read_sources([new], told.append)

    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, [str(tmp_path / "runs"), "--output", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert "b is left out" in result.stderr
