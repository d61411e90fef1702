"""The verdict on the paper's Appendix C: yes, no, and where it cannot be told."""

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
        # an entropy that tells is not undone by ten patches that do not
        ({"inside": (0.01, 0.03), "entropy": (-0.05, -0.02), "top10": (-0.1, 0.2)}, "yes", "yes"),
        # but by ten patches that say the opposite
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
    assert ("which says the opposite" in finding.text) == opposite


def test_numbers_intervals_and_the_set_are_named():
    finding = with_bounds(inside=(0.01, 0.03), entropy=(-0.05, -0.03), top10=(0.1, 0.2))
    assert finding.place == "scenes (test)"
    assert finding.text.startswith(
        "DiffCLIP on scenes (test), one training run (brackets: 95 % interval over its "
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
    assert "ten strongest" not in finding.text


def test_layers_that_tell_are_named():
    records, _ = focus_records({"DiffCLIP": 0.0}, pair=YES)
    turned = [
        one.model_copy(update={"value": -one.value, "low": -one.high, "high": -one.low})
        if one.metric in ("A1_minus_A2_inside/layer 2", "A1_minus_A2_inside/layer 3")
        else one
        for one in records
    ]
    (finding,) = appendix_c(collect([], turned))
    assert "points; by layer: yes in 1, 4; no in 2, 3. Is A2" in finding.text
    assert finding.text.endswith(f"by layer: yes in {', '.join(map(str, range(1, LAYERS + 1)))}.")
