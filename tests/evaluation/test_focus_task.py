"""The task `focus` against maps that are computed separately, and its edge cases."""

from functools import partial

import numpy as np
import pytest
import subjects
import torch
from masked_sets import animals, box_mask, noise, png, two_things, write_masked
from subjects import subject
from tiny import image_relevance

from diffclip import CLIP
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_texts, evaluation_mode
from diffclip.evaluation.focus import focus
from diffclip.maps import measures
from diffclip.maps.attention_maps import map_correlation, rollout
from diffclip.maps.recording import images_at_once, recording

PATCHES = {"entropy", "effective_patches", "top10", "background10"}
ON_OBJECT = {"auroc", "ap", "inside", "inside_over_area", "pointing"}
MEASURES = PATCHES | ON_OBJECT
OWN_MINUS_OTHER, IN_GRAPH = "own minus other text", "relevance, norm in the graph"
TEXT_MAPS = (OWN_MINUS_OTHER, *(f"{name}, {OWN_MINUS_OTHER}" for name in ("grad-eclip", "legrad")), IN_GRAPH)
scores_of = partial(subjects.scores_of, focus)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_masked(tmp_path_factory.mktemp("sets") / "animals", animals())


@pytest.fixture(scope="module", params=["CLIP", "DiffCLIP"])
def measured(request, folder):
    """The variant, its model, the set and the scores."""
    loaded, data = subject(request.param, spread=12.0), open_set(folder, "test", kind="masks")
    return request.param, loaded, data, scores_of(loaded, data)


def test_focus_scores_every_map_layer_and_head(measured):
    variant, _, _, scores = measured
    heads = 4 if variant == "CLIP" else 2
    rows = {f"attention {measure}" for measure in MEASURES | {"class_token"}}
    wanted = {f"relevance {measure}" for measure in MEASURES} | rows
    whole = ("rollout", *TEXT_MAPS, "grad-eclip", "legrad", "centre prior", "untrained")
    single = {f"{name} {measure}" for measure in MEASURES for name in whole}
    if variant == "DiffCLIP":
        wanted |= {name.replace("attention", map_name) for name in rows for map_name in ("A1", "A2")}
        wanted |= {f"A1_minus_A2 {name}" for name in ("entropy", "inside", "top10")} | {"A1 map_correlation"}
    layers = {f"{name}/{layer}" for name in wanted for layer in (1, 2)}
    single_heads = {f"{layer}.{head}" for layer in layers for head in range(1, heads + 1)}
    assert set(scores) == wanted | single | layers | single_heads
    assert next(iter(scores)) == "own minus other text auroc"
    for score in scores.values():
        assert score.count == 6
        assert score.low <= score.value <= score.high


def test_scores_equal_measures_of_separately_computed_maps(measured):
    variant, loaded, data, scores = measured
    images = torch.stack([loaded.preprocess(data.source.image(i)) for i in data.indices])
    covered = torch.tensor(np.stack([data.coverages(p, 32, 32, 4)[1][0] for p in range(6)])).flatten(1)
    with evaluation_mode(loaded.model):
        texts = embed_texts(loaded.model, loaded.tokenizer, [captions[0] for captions in data.captions])
    with recording(loaded.model, "visual") as layers:
        loaded.model.encode_image(images)
    relevance = image_relevance(loaded.model, images, texts[:, None])[:, 0].flatten(1)
    flow = rollout(layers)[:, 0, 1:]
    expected = {
        "relevance auroc": measures.auroc(relevance, covered).mean(),
        "relevance inside": measures.inside(relevance, covered).mean(),
        "relevance auroc/2": measures.auroc(relevance, covered).mean(),
        "rollout ap": measures.average_precision(flow, covered).mean(),
    }
    heads = torch.stack([maps.combined[:, :, 0] for maps in layers], 1)  # [images, layers, heads, tokens]
    pointing = measures.pointing(heads[..., 1:], covered[:, None, None])
    expected |= {
        "attention pointing": pointing.mean(),
        "attention pointing/1": pointing[:, 0].mean(),
        "attention pointing/2.1": pointing[:, 1, 0].mean(),
        "attention class_token": measures.class_token_share(heads).mean(),
    }
    if variant == "DiffCLIP":
        first, second = (
            torch.stack([getattr(maps, name)[:, :, 0, 1:] for maps in layers], 1)
            for name in ("first", "second")
        )
        expected |= {
            "A1 entropy": measures.entropy(first).mean(),
            "A2 top10/1": measures.top(second)[:, 0].mean(),
            "A1_minus_A2 entropy/2.2": (measures.entropy(first) - measures.entropy(second))[:, 1, 1].mean(),
            "A1 map_correlation/1": map_correlation(layers[0]).mean(),
        }
    for metric, value in expected.items():
        assert scores[metric].value == pytest.approx(float(value), abs=2e-4), metric


def test_primary_map_and_baselines_equal_separate_computations(tmp_path):
    single = {"json": '{"objects": [{"colour": "red", "shape": "star"}]}'}
    samples = [two_things(1), two_things(2) | single]
    data, loaded = open_set(write_masked(tmp_path / "set", samples), "test", kind="masks"), subject()
    loaded.model.load_state_dict(CLIP(loaded.model.config, seed=7).state_dict())
    scores = scores_of(loaded, data)
    images = torch.stack([loaded.preprocess(data.source.image(i)) for i in data.indices])
    covered = torch.tensor(np.concatenate([data.coverages(p, 32, 32, 4)[1] for p in range(2)])).flatten(1)
    with evaluation_mode(loaded.model):
        texts = embed_texts(loaded.model, loaded.tokenizer, ["a red star", "a blue ring"])
    maps = image_relevance(loaded.model, images, texts).flatten(2)
    differences = torch.stack([maps[0, 0] - maps[0, 1], maps[0, 1] - maps[0, 0], maps[1, 0] - maps[1, 1]])
    graph = image_relevance(loaded.model, images, texts, norm="graph").flatten(2)
    start = CLIP(loaded.model.config, seed=0)
    with evaluation_mode(start):
        fresh = embed_texts(start, loaded.tokenizer, ["a red star", "a blue ring"])
    untrained = image_relevance(start, images, fresh).flatten(2)
    side = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    wanted = {
        OWN_MINUS_OTHER: differences,
        IN_GRAPH: torch.cat([graph[0], graph[1, :1]]),
        "untrained": torch.cat([untrained[0], untrained[1, :1]]),
        "centre prior": -(side[:, None] ** 2 + side**2).flatten().expand(3, -1),
    }
    for name, rows in wanted.items():
        expected = measures.auroc(rows, covered).mean()
        assert scores[f"{name} auroc"].value == pytest.approx(float(expected), abs=1e-4), name


def test_prompt_and_words_change_the_texts(folder):
    loaded, data = subject(), open_set(folder, "test", kind="masks")
    prompts = (None, "{c}", "a photo of a {c}", "a cat")
    default, plain, photo, cat = (scores_of(loaded, data, prompt=prompt) for prompt in prompts)
    assert plain["relevance auroc"].value == default["relevance auroc"].value
    assert photo["relevance auroc"].value != default["relevance auroc"].value
    # with a single text there is no other text to subtract
    assert not [name for name in cat if OWN_MINUS_OTHER in name]
    assert cat["attention auroc"].value == default["attention auroc"].value
    renamed = {text: "cat" for captions in data.captions for text in captions}
    scores = scores_of(loaded, data, prompt="a {c}", words=renamed)
    assert scores["relevance auroc"].value == cat["relevance auroc"].value
    assert "text 'a {c}' (" in scores["relevance auroc"].facts["protocol"]


def test_batch_size_and_memory_limit_change_neither_scores_nor_order(tmp_path, monkeypatch):
    """Images with one and with two objects alternate; each kind is computed as a group."""
    objects = {1: '{"objects": [{"colour": "red", "shape": "star"}]}'}
    objects[2] = objects[1].replace("]", ', {"colour": "blue", "shape": "ring"}]')
    samples = []
    for i in range(6):
        mask = box_mask(2 * i, 3, 2 * i + 9, 20) // 255
        mask[22:30, 4 : 10 + i] = 2
        samples.append({"png": png(noise(i)), "mask.png": png(mask), "json": objects[1 + i % 2]})
    folder = write_masked(tmp_path / "set", samples)
    loaded = subject()
    whole = scores_of(loaded, open_set(folder, "test", kind="masks"))
    assert whole["relevance auroc"].count == 9
    monkeypatch.setattr("diffclip.maps.recording._MEMORY", 1)
    assert images_at_once(loaded.model) == 1
    cut = scores_of(loaded, open_set(folder, "test", kind="masks"), batch_size=4)
    for metric, score in whole.items():
        # the interval depends on the order of the items and on their images
        numbers = (score.value, score.low, score.high)
        assert (cut[metric].value, cut[metric].low, cut[metric].high) == pytest.approx(numbers, abs=2e-3)


def test_chance_is_the_score_of_a_uniform_map(measured):
    variant, _, data, scores = measured
    area = np.mean([data.coverages(position, 32, 32, 4)[1].mean() for position in range(6)])
    wanted = {
        "relevance auroc": 0.5,
        "attention ap": area,
        "rollout inside": area,
        "relevance inside_over_area": 1,
        "attention entropy": 1,
        "attention effective_patches": 16,
        "attention top10": 10 / 16,
    }
    if variant == "DiffCLIP":
        wanted |= {"A1 pointing/1": area, "A2 class_token": 1 / 17}
        wanted |= {"A1_minus_A2 inside": 0, "A1 map_correlation/1.1": 0}
    for metric, chance in wanted.items():
        assert scores[metric].chance == pytest.approx(chance), metric
    assert 0 < scores["relevance background10"].chance <= 10 / 16
    if variant == "CLIP":
        scores = scores_of(subject("CLIP-registers"), data)
        assert scores["attention class_token"].chance == pytest.approx(1 / (1 + 4 + 16))


def test_uninformative_masks_and_broken_images_are_left_out(tmp_path):
    empty = [sample | {"mask.png": png(box_mask(0, 0, 0, 0))} for sample in animals(3)]
    words = "has 0 images whose mask has .*: .* has no pixel in its mask: "
    with pytest.raises(InputError, match=words):
        scores_of(subject(), open_set(write_masked(tmp_path / "empty", empty), "test", kind="masks"))
    full = {"png": png(noise(9)), "mask.png": png(box_mask(0, 0, 32, 32)), "txt": "everything"}
    broken = {"png": b"no image", "mask.png": png(box_mask(0, 0, 9, 9)), "txt": "a cat"}
    data = open_set(write_masked(tmp_path / "set", [full, *animals(3), broken]), "test", kind="masks")
    scores = scores_of(subject(), data)
    assert scores["relevance auroc"].count == 3
    scores_of(subject(), data)  # a second model does not add the same faults again
    assert sorted(fault.name.split(":")[-1] for fault in data.faults) == ["s0000000", "s0000004"]
