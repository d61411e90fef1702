"""Comparisons of models over seeds, and their verdict words."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_records import made, make_record, results_from, write_study

from diffclip.cli.evaluate_table import show_records
from diffclip.evaluation.results_file import Outcomes, outcome_key
from diffclip.evaluation.statistics import compare_arms, with_verdicts
from diffclip.report.compare import (
    compare,
    contrasts_of,
    headline,
    not_learned_note,
    primary_of,
    verdict_class,
    verdict_text,
)
from diffclip.report.frame import headlines, read_results, values_of
from diffclip.report.paper import claims_table, paper_tables
from diffclip.report.tables import comparison_table


def compared(records, *curves):
    results = results_from(records, *curves)
    return results, compare(results, headlines(results.records), contrasts_of(results))


def test_row_equals_the_statistics_of_its_measure():
    results, table = compared(made({"CLIP": 0.4, "DiffCLIP": 0.45, "DiffCLIP-vision": 0.41}))
    row = table[table["model"] == "DiffCLIP"].iloc[0]
    values = values_of(results.records)
    rows = values[values["measure"] == row["measure"]]
    expected = compare_arms(rows[["model", "seed", "value"]], [("DiffCLIP", "CLIP")]).iloc[0]
    for name in ("difference", "low", "high", "p", "detectable"):
        assert row[name] == pytest.approx(expected[name])
    assert row["p_holm"] >= row["p"]
    assert len(table) == 2 * 8


def test_a_real_difference_is_better_and_equal_models_are_equivalent():
    results, table = compared(made({"CLIP": 0.4, "DiffCLIP": 0.5}, noise=0.002))
    assert set(table["verdict"]) == {"better"}
    # the verdict on scores that are not above chance says so, and has no color
    pairs = table[table["panel"] == "mmvp"].iloc[0]
    assert pairs["base_value"] < pairs["model_value"] < pairs["chance"]
    assert verdict_text(pairs) == "better (neither shown above chance)"
    assert verdict_class(pairs) == ""
    assert not_learned_note(results) == f"Not learned, as no model is shown above chance: {pairs['label']}."
    _, table = compared(made({"CLIP": 0.4, "DiffCLIP": 0.4}, noise=0.0005))
    assert verdict_text(table.iloc[0]) == "equivalent within 1 point"
    assert verdict_class(table.iloc[0]) == ""


@pytest.mark.parametrize(
    ("metric", "word"),
    [("attack_success", "worse"), ("entropy", "higher"), ("yes_ratio", "higher"), ("drop", "worse")],
)
def test_a_larger_value_is_not_always_better(metric, word):
    levels = {"CLIP": 0.2, "DiffCLIP": 0.4}
    records = []
    for model, level in levels.items():
        for seed in range(3):
            about = {"model": model, "seed": seed, "weights": model}
            records.append(make_record(about, "focus", "pets", metric, level + seed * len(model) / 1000))
    results = results_from(records)
    table = compare(results, list(results.records["measure"].unique()), contrasts_of(results))
    assert table["verdict"].tolist() == [word]
    # these records have no chance level, so the verdict says nothing about chance
    assert verdict_text(table.iloc[0]) == word


def test_a_study_has_one_primary_endpoint(tmp_path):
    results = read_results([write_study(tmp_path, {"CLIP": 0.4, "DiffCLIP": 0.4, "DiffCLIP-vision": 0.4})])
    measure, pair = primary_of(results)
    assert pair == ("DiffCLIP", "CLIP")
    assert contrasts_of(results) == [("DiffCLIP", "CLIP"), ("DiffCLIP-vision", "CLIP")]
    table = compare(results, [measure, *headlines(results.records)[:2]], [pair])
    assert table["primary"].tolist() == [True, False, False]
    assert table["p_holm"][0] == table["p"][0]
    assert "the primary endpoint" in headline(results, table)
    assert "3 seeds): better" in headline(results, table)
    study = results.study | {"models": results.study["models"] | {"seeds": [*range(4)]}}
    ends = pd.DataFrame({"arm": ["CLIP", "DiffCLIP"] * 4, "seed": [n // 2 for n in range(8)]})
    ends = ends.assign(group="models", run="models/CLIP-s3", diverged=7 * [None] + [9])
    ended, unfinished = (replace(results, study=study, runs=runs) for runs in (ends, ends[:6]))
    assert "3 seeds, CLIP-s3 diverged): better" in headline(ended, compare(ended, [measure], [pair]))
    partial = compare(unfinished, [measure, *headlines(results.records)[:1]], [pair])
    assert headline(unfinished, partial).endswith("3 seeds, 2 runs to come): unfinished.")
    assert comparison_table(unfinished, partial, "").frame["verdict"][0] == "unfinished"
    first = replace(unfinished, records=results.records[results.records["seed"] == 0])
    assert headline(first, compare(first, [measure], [pair])).endswith("can turn this around.")
    results.study["endpoints"]["primary"]["study"] = "k16 - k0"  # the endpoint spans several studies
    assert not compare(results, [measure], [pair])["primary"].any()


def test_values_are_means_over_the_seeds_that_both_models_have():
    records = made({"CLIP": 0.4, "DiffCLIP": 0.45}, noise=0.02)
    fewer = [record for record in records if (record.model, record.seed) != ("CLIP", 0)]
    results, table = compared(fewer)
    differences = table["model_value"] - table["base_value"]
    assert differences.tolist() == pytest.approx(table["difference"].tolist())
    modified = table.assign(seeds=[2, *[3] * (len(table) - 1)])
    assert comparison_table(results, modified, "").frame["seeds"][:2].tolist() == ["2", "3"]


def test_models_of_each_setting_are_compared_with_the_clip_of_it():
    records = [
        record.model_copy(update={"weights": f"{rate}/{record.model}-s{record.seed}/checkpoints/best"})
        for rate, level in (("low", 0.4), ("high", 0.5))
        for record in made({"CLIP": level, "DiffCLIP": level})
    ]
    results, table = compared(records, [{"arm": "CLIP"}, {"arm": "DiffCLIP"}])
    pairs = {(f"DiffCLIP ({rate}/DiffCLIP)", f"CLIP ({rate}/CLIP)") for rate in ("low", "high")}
    assert pairs == set(contrasts_of(results))
    assert set(table["seeds"]) == {3}


def test_models_with_a_recipe_name_as_prefix_are_compared():
    models = {f"flickr8k_cpu-{name}": level for name, level in {"CLIP": 0.2, "DiffCLIP-vision": 0.3}.items()}
    table = compared(made(models))[1]
    assert set(table["model"] + " " + table["against"]) == {"flickr8k_cpu-DiffCLIP-vision flickr8k_cpu-CLIP"}


def test_models_with_different_training_data_are_not_compared():
    records = [
        record.model_copy(update={"weights": f"{name}-{data}.pt"})
        for data, level in (("cc3m", 0.2), ("cc12m", 0.4))
        for name in ("CLIP", "DiffCLIP")
        for record in made({f"{name}-ViT-B-16": level}, seeds=(0,))
    ]
    results = results_from([*records, *made({"DiffCLIP-vision-ViT-B-16": 0.3}, seeds=(0,))])
    pairs = {
        (f"DiffCLIP-ViT-B-16 (DiffCLIP-{data}.pt)", f"CLIP-ViT-B-16 (CLIP-{data}.pt)")
        for data in ("cc3m", "cc12m")
    }
    assert set(contrasts_of(results)) == pairs


def test_without_a_clip_nothing_is_compared():
    results, table = compared(made({"mine": 0.4, "yours": 0.5}))
    assert table.empty
    assert "there is no CLIP to compare with" in headline(results, table)


def test_claims_and_gains_are_against_the_clip_of_the_same_size(monkeypatch):
    levels = {"CLIP-ViT-B-16": 0.6, "CLIP-ViT-S-16": 0.5, "DiffCLIP-ViT-S-16": 0.53}
    results = results_from(made(levels, noise=0.001))
    judged = []
    monkeypatch.setattr(
        "diffclip.report.paper.with_verdicts", lambda rows: judged.append(rows) or with_verdicts(rows)
    )
    claims = claims_table(results).frame
    assert len(judged[0]) == (claims["verdict"] != "–").sum()  # corrected over the table
    assert set(claims["claim"]) == {"DiffCLIP − CLIP"}
    assert claims["difference"].str.match(r"\+[23]\.\d").all()
    rows = paper_tables(results)[0].frame.set_index("model")
    assert "(+3." in rows.loc["DiffCLIP-ViT-S-16, few-shot", "average"]


def test_terminal_table_shows_the_difference_over_all_draws(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "140")
    facts = {"CLIP": [0.25, 0.75], "DiffCLIP": [0.5, 0.5]}
    records, outcomes = [], {}
    for model, values in facts.items():
        about = {"model": model, "seed": 0, "weights": f"{model}-s0"}
        for draw, value in enumerate(values):
            records.append(make_record(about, "few-shot", "cifar10", "acc1", value, draw=draw))
            # each draw has episodes of other images, which both models share
            clusters = np.random.default_rng(draw).integers(0, 50, 100)
            hits = (np.arange(100) < 100 * value).astype(float)
            outcomes[outcome_key(records[-1])] = Outcomes(hits, clusters)
    show_records(records, outcomes, headlines_only=False)
    assert "0.0 [−" in capsys.readouterr().out
