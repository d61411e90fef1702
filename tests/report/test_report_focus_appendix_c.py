"""The verdict on the paper's Appendix C: yes, no, and where it cannot be told."""

import numpy as np
import pytest
from focus_records import LAYERS, focus_records

from diffclip.report.appendix_c import appendix_c
from diffclip.report.series import collect

YES = {"inside": 0.03, "entropy": -0.05, "top10": 0.06}
MODELS = {"CLIP": 0.0, "DiffCLIP": 0.0}


def findings(pair, seeds=1, models=MODELS, **changes):
    records, _ = focus_records(models, range(seeds), pair=pair, details=False)
    return appendix_c(collect([], [one.model_copy(update=changes) for one in records]))


def with_bounds(**bounds):
    """Records whose differences have these (low, high); their values lie between."""
    records, _ = focus_records({"DiffCLIP": 0.0}, details=False)
    told = []
    for one in records:
        name = one.metric.removeprefix("A1_minus_A2_")
        if one.metric.startswith("A1_minus_A2_") and name in bounds:
            low, high = bounds[name]
            one = one.model_copy(update={"value": (low + high) / 2, "low": low, "high": high})
        told.append(one)
    (finding,) = appendix_c(collect([], told))
    return finding


@pytest.mark.parametrize(
    ("bounds", "salient", "diffuse"),
    [
        ({"inside": (0.01, 0.03), "entropy": (-0.05, -0.02), "top10": (0.1, 0.2)}, "yes", "yes"),
        ({"inside": (-0.03, -0.01), "entropy": (0.02, 0.05), "top10": (-0.2, -0.1)}, "no", "no"),
        ({"inside": (-0.01, 0.03), "entropy": (-0.05, 0.02), "top10": (0.1, 0.2)}, "unclear", "unclear"),
        # an entropy that tells is not enough where ten patches do not tell
        ({"inside": (0.01, 0.03), "entropy": (-0.05, -0.02), "top10": (-0.1, 0.2)}, "yes", "unclear"),
        # or say the opposite
        ({"inside": (0.01, 0.03), "entropy": (-0.05, -0.02), "top10": (-0.2, -0.1)}, "yes", "unclear"),
    ],
)
def test_each_outcome(bounds, salient, diffuse):
    finding = with_bounds(**bounds)
    assert (finding.salient, finding.diffuse) == (salient, diffuse)
    words = {"yes": "Yes: ", "no": "No, the other way round: ", "unclear": "That cannot be told: "}
    assert f"Is A1 more on the object than A2? {words[salient]}" in finding.text
    assert f"Is A2 more diffuse than A1? {words[diffuse]}" in finding.text
    opposite = bounds["entropy"][1] < 0 and bounds["top10"][1] < 0
    assert ("which points the other way" in finding.text) == opposite


def test_numbers_intervals_and_the_set_are_named():
    finding = with_bounds(inside=(0.01, 0.03), entropy=(-0.05, -0.03), top10=(0.1, 0.2))
    assert finding.place == "scenes (test)"
    assert finding.text.startswith(
        "DiffCLIP on scenes (test), one training run (brackets: 95 % interval over its pictures); answers, not "
        "brackets, are corrected for 2 tests. Is A1"
    )
    assert "A1 − A2 +2.0 [+1.0, +3.0] points." in finding.text
    assert (
        "A1 − A2 −4.0 [−5.0, −3.0] points; on its ten strongest patches +15.0 [+10.0, +20.0] points."
        in finding.text
    )
    assert " of its weight on patches, A2 " in finding.text


def test_seeds_decide_where_there_are_several():
    (one,) = findings(YES, seeds=1)
    (two,) = findings(YES, seeds=2)
    (three,) = findings(YES, seeds=3)
    assert (one.salient, two.salient, three.salient) == ("yes", "unclear", "yes")
    assert (one.diffuse, two.diffuse, three.diffuse) == ("yes", "unclear", "yes")
    assert "two training seeds (brackets: their range, too few to tell)" in two.text
    assert "3 training seeds (brackets: 95 % interval over them)" in three.text
    # an interval over seeds, not over pictures, which none of these have
    (bare,) = findings(YES, seeds=3, low=None, high=None)
    assert bare.salient == "yes"
    (unknown,) = findings(YES, seeds=1, low=None, high=None)
    assert (unknown.salient, unknown.diffuse) == ("unclear", "unclear")


def test_a_finding_a_differential_model_and_set():
    models = {"CLIP": 0.0, "DiffCLIP": 0.0, "DiffCLIP-dynamic": 0.0}
    records = [one for name in ("scenes", "pets") for one in focus_records(models, dataset=name, pair=YES)[0]]
    told = [(one.series.label, one.place) for one in appendix_c(collect([], records))]
    assert told == [
        (label, place)
        for place in ("scenes (test)", "Pets (test)")
        for label in ("DiffCLIP", "DiffCLIP-dynamic")
    ]
    assert findings(YES, models={"CLIP": 0.0}) == []


def test_what_was_not_measured_is_not_answered():
    (finding,) = findings({"entropy": -0.05})
    assert (finding.salient, finding.diffuse) == (None, "yes")
    assert "on the object" not in finding.text
    assert "Yes, by entropy alone: " in finding.text
    assert "ten strongest" not in finding.text
    assert "corrected" not in finding.text


def test_layers_that_tell_are_named():
    records, _ = focus_records({"DiffCLIP": 0.0}, pair=YES)
    turned = [
        one.model_copy(update={"value": -one.value, "low": -one.high, "high": -one.low})
        if one.metric in ("A1_minus_A2_inside/layer 2", "A1_minus_A2_inside/layer 3")
        else one
        for one in records
    ]
    (finding,) = appendix_c(collect([], turned))
    assert "points; by layer (corrected for 4): yes in 1, 4; no in 2, 3. Is A2" in finding.text
    layers = ", ".join(map(str, range(1, LAYERS + 1)))
    assert finding.text.endswith(f"by layer (corrected for {LAYERS}): yes in {layers}.")


def given(models=("DiffCLIP",), seeds=3, layers=0, **values):
    """Differences [seeds] of each measure, of all layers and of each: `values` by name, or by name and layer."""
    names = ["inside", "entropy", "top10"]
    records, _ = focus_records(dict.fromkeys(models, 0.0), range(seeds))
    kept = []
    for one in records:
        whole, _, layer = one.metric.partition("/layer ")
        name = whole.removeprefix("A1_minus_A2_")
        if whole == name or name not in names or " head " in one.metric or int(layer or 0) > layers:
            continue
        told = values.get(f"{name}_{layer}", values[name])
        kept.append(one.model_copy(update={"value": told[one.seed]}))
    return appendix_c(collect([], kept))


def test_answers_are_corrected_for_all_of_the_section():
    # p is 0.04 over three seeds, which tells by itself and not beside another question
    clear = [0.025, 0.027, 0.026]
    near = [0.02, 0.03, 0.0145]
    noise = [0.01, -0.02, 0.012]
    assert given(inside=near, entropy=noise, top10=noise)[0].salient == "unclear"
    records, _ = focus_records({"DiffCLIP": 0.0}, range(3), details=False)
    asked = [one for one in records if one.metric == "A1_minus_A2_inside"]
    alone = [one.model_copy(update={"value": near[one.seed]}) for one in asked]
    (finding,) = appendix_c(collect([], alone))
    assert (finding.salient, "corrected" in finding.text) == ("yes", False)
    one, other = given(("DiffCLIP", "DiffCLIP-dynamic"), inside=clear, entropy=noise, top10=noise)
    assert (one.salient, other.salient) == ("yes", "yes")
    assert "answers, not brackets, are corrected for 4 tests." in one.text


def test_layers_of_noise_tell_nothing_in_95_of_100_models():
    generator = np.random.default_rng(0)
    found, whole = 0, [0.01, -0.02, 0.012]
    for _ in range(40):
        noise = {f"inside_{layer}": generator.normal(size=3) for layer in range(1, LAYERS + 1)}
        (finding,) = given(layers=LAYERS, inside=whole, entropy=whole, top10=whole, **noise)
        assert "by layer (corrected for 4)" in finding.text
        found += "by layer (corrected for 4): none tells. Is A2" not in finding.text
    assert found <= 3


def test_outcomes_are_tested_where_they_are_known():
    records, outcomes = focus_records({"DiffCLIP": 0.0}, pair=YES, details=False, hits=True)
    # intervals that would tell nothing
    wide = [one.model_copy(update={"low": -1.0, "high": 1.0}) for one in records]
    (finding,) = appendix_c(collect([], wide, outcomes))
    assert (finding.salient, finding.diffuse) == ("yes", "yes")
    (finding,) = appendix_c(collect([], wide))
    assert (finding.salient, finding.diffuse) == ("unclear", "unclear")
