"""Deletion and insertion against curves computed by hand, and the records of the task."""

import numpy as np
import pytest
import subjects
import torch
from masked_sets import animals, box_mask, png, two_things, write_class_set, write_masked

from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation import faithfulness as module
from diffclip.evaluation.faithfulness import RANDOM, STEPS, faithfulness
from diffclip.evaluation.suite import Entry
from diffclip.maps.measures import center_prior

ORDERS = {"relevance", "grad-eclip", "legrad", "relevance, norm in the graph", "centre prior", RANDOM}


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return write_class_set(tmp_path_factory.mktemp("sets") / "colors", {"test": [0, 1, 2, 0, 1]}, 3)


@pytest.fixture(scope="module")
def subject():
    loaded = subjects.subject()
    with torch.no_grad():
        loaded.model.logit_scale.fill_(4.0)
    return loaded


def scores_of(loaded, data, **changes):
    scores = faithfulness(subjects.setting(loaded, data, **changes))
    return {(score.metric, score.facts["map"]): score for score in scores}


def test_every_order_has_both_areas_and_the_center_prior_is_exact(subject, classes):
    data = open_set(classes, "test")
    scores = scores_of(subject, data, batch_size=3)
    assert set(scores) == {(metric, map) for metric in ("insertion_auc", "deletion_auc") for map in ORDERS}
    assert next(iter(scores)) == ("insertion_auc", "relevance")
    for (metric, _), score in scores.items():
        assert (score.count, score.facts["classes"], score.chance) == (5, 3, scores[metric, RANDOM].value)
        assert 0 <= score.low <= score.value <= score.high <= 1
    model, order = subject.model, []
    for value in sorted(set(center_prior(4).tolist()), reverse=True):
        order.append([patch for patch in range(16) if center_prior(4)[patch] == value])
    assert [len(group) for group in order] == [4, 8, 4]
    tokens = subject.tokenizer([data.templates[0].replace("{c}", name) for name in data.classnames])
    with torch.no_grad():
        texts = model.encode_text(tokens, normalize=True)

    def probability(position, removed):
        image = subject.preprocess(data.source.image(position)).clone()
        for patch in removed:
            row, column = divmod(patch, 4)
            image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
        with torch.no_grad():
            logits = model.logit_scale.exp() * model.encode_image(image[None], normalize=True) @ texts.T
        return logits.softmax(-1)[0, data.labels[position]].item()

    areas = {metric: list[float]() for metric in ("deletion_auc", "insertion_auc")}
    for position in range(5):
        ties = np.random.default_rng([0, position]).random(16)
        ranked = [patch for group in order for patch in sorted(group, key=lambda at: ties[at])]
        for metric, steps in (
            ("deletion_auc", [ranked[:k] for k in range(17)]),
            ("insertion_auc", [ranked[k:] for k in range(17)]),
        ):
            curve = [probability(position, removed) for removed in steps]
            areas[metric].append(np.trapezoid(curve, dx=1 / STEPS))
    for metric, values in areas.items():
        assert scores[metric, "centre prior"].value == pytest.approx(np.mean(values), abs=1e-5)


def test_masks_score_each_object_with_visible_pixels(subject, tmp_path):
    samples = [two_things(i) for i in range(3)]
    samples[2]["mask.png"] = png(box_mask(0, 0, 9, 20) // 255)  # the ring is not in the image
    data = open_set(write_masked(tmp_path / "set", samples), "test", kind="masks")
    scores = scores_of(subject, data)
    assert scores["insertion_auc", "relevance"].count == 5
    again = scores_of(subject, data, batch_size=2)
    for key, score in scores.items():
        assert again[key].value == pytest.approx(score.value, abs=1e-5), key
    with pytest.raises(InputError, match="has one text only, 'a thing'"):
        scores_of(subject, data, prompt="a thing")


def test_large_set_is_subsampled_identically_for_all_models(subject, tmp_path, monkeypatch):
    samples = [*animals(5), {"png": b"no image", "mask.png": png(box_mask(0, 0, 9, 9)), "txt": "ox"}]
    data = open_set(write_masked(tmp_path / "set", samples), "test", kind="masks")
    monkeypatch.setattr(module, "MOST_IMAGES", 4)
    scores, again = scores_of(subject, data), scores_of(subject, data)
    drawn = np.random.default_rng(0).permutation(6)[:4]
    assert scores["insertion_auc", RANDOM].count == 4 - (5 in drawn)
    assert len(data.faults) == (5 in drawn)
    assert scores["insertion_auc", RANDOM].facts["classes"] == 4
    assert again == scores


@pytest.mark.parametrize("kind", ["classification", "masks", "retrieval"])
def test_faithfulness_runs_on_classes_masks_and_captions_with_masks(subject, classes, tmp_path, kind):
    files = {"dataset_type.txt": "retrieval"} if kind == "retrieval" else None
    folder = classes if kind == "classification" else write_masked(tmp_path / "animals", animals(3), files)
    (measured,) = subjects.run(subject, Entry("faithfulness", str(folder)))
    assert measured.error is None
    assert {record.map for record in measured.records} == ORDERS
    assert {record.task for record in measured.records} == {"faithfulness"}
