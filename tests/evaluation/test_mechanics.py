"""The task `mechanics` against its formulas, and on layers whose two maps are known to be equal or opposed."""

import numpy as np
import pytest
import subjects
import torch
from masked_sets import animals, box_mask, png, write_class_set, write_masked
from subjects import run, subject

from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.mechanics import mechanics
from diffclip.evaluation.suite import Entry
from diffclip.maps.attention_maps import map_correlation
from diffclip.maps.recording import recording

OF_BOTH = {"A1 sink_ratio", "A2 sink_ratio", "A1 entropy", "A2 entropy"}
OF_ALL = {"attention sink_ratio", "attention entropy", "sink_value_norm", "high_norm_share"}
OF_ALL |= {"head_redundancy", "output_redundancy"}
OF_TWO = OF_BOTH | {"negative_weight", "map_correlation", "noise_correlation", "gradient_cosine"}


def made(variant):
    return subject(variant, spread=12.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_masked(tmp_path_factory.mktemp("sets") / "animals", animals(3))


def scores_of(loaded, folder):
    return subjects.scores_of(mechanics, loaded, open_set(folder, "test"))


@pytest.mark.parametrize(
    ("variant", "heads", "own"),
    [
        ("CLIP-gated-registers", 4, set()),
        ("DiffCLIP", 2, OF_TWO),
        ("DiffCLIP-v2", 4, OF_TWO),
        ("DiffCLIP-lambda0", 2, set()),
    ],
)
def test_every_variant_has_the_measures_that_apply(folder, variant, heads, own):
    scores = scores_of(made(variant), folder)
    headlines = OF_ALL | own
    layers = {f"{name}/{layer}" for name in headlines for layer in (1, 2)}
    by_head = {"attention sink_ratio", "map_correlation", "noise_correlation"} & headlines
    single = {
        f"{name}/{layer}.{head}" for name in by_head for layer in (1, 2) for head in range(1, heads + 1)
    }
    assert set(scores) == headlines | layers | single
    assert next(iter(scores)) == "attention sink_ratio"
    for score in scores.values():
        assert score.low <= score.value <= score.high
        assert score.count == 3


def test_scores_equal_the_formulas(folder, monkeypatch):
    monkeypatch.setattr("diffclip.evaluation.mechanics.HIGH_NORM", 1.1)
    loaded, data = made("DiffCLIP"), open_set(folder, "test")
    model, scores = loaded.model, scores_of(loaded, folder)
    images = torch.stack([loaded.preprocess(data.source.image(i)) for i in data.indices])
    with recording(model, "visual") as layers:
        model.encode_image(images)
    expected = {name: np.zeros((3, 2, 2)) for name in ("sink", "entropy", "norm", "negative")}
    high = np.zeros((3, 2))
    with torch.no_grad():
        x = model.visual._pos_embed(model.visual.patch_embed(images))
        for number, (block, maps) in enumerate(zip(model.visual.blocks, layers, strict=True)):
            values = block.attn.qkv(block.norm1(x))[..., 64:]
            x = block(x)
            for i in range(3):
                norms = x[i, 1:].norm(dim=-1)
                high[i, number] = (norms > 1.1 * norms.median()).float().mean()
                for head in range(2):
                    full = maps.first[i, head] - maps.lam * maps.second[i, head]
                    received = full.abs().mean(0)
                    shares = full.abs() / full.abs().sum(1, keepdim=True)
                    lengths = values[i, :, 16 * head : 16 * head + 16].norm(dim=-1)
                    expected["sink"][i, number, head] = received.max() / received.median()
                    rows = -(shares * shares.log()).sum(1) / np.log(17)
                    expected["entropy"][i, number, head] = rows.mean()
                    expected["norm"][i, number, head] = lengths[received.argmax()] / lengths.mean()
                    expected["negative"][i, number, head] = -full[full < 0].sum() / full.abs().sum()
    names = {"entropy": "attention entropy", "norm": "sink_value_norm", "negative": "negative_weight"}
    for name, metric in names.items():
        assert scores[metric].value == pytest.approx(expected[name].mean(), rel=1e-4), metric
        assert scores[f"{metric}/2"].value == pytest.approx(expected[name][:, 1].mean(), rel=1e-4)
    ratios = np.log(expected["sink"])
    wanted = {"": ratios.mean(), "/1": ratios[:, 0].mean(), "/2.1": ratios[:, 1, 0].mean()}
    for suffix, value in wanted.items():
        assert np.log(scores[f"attention sink_ratio{suffix}"].value) == pytest.approx(value, rel=1e-4)
    assert scores["high_norm_share"].value == pytest.approx(high.mean())
    assert 0 < high.mean() < 0.5
    correlation = np.stack([map_correlation(layer).numpy() for layer in layers], axis=1)
    maps = [(layer.first - layer.lam * layer.second).flatten(2).numpy() for layer in layers]
    cosines = [
        (m[:, 0] * m[:, 1]).sum(-1) / np.linalg.norm(m[:, 0], axis=-1) / np.linalg.norm(m[:, 1], axis=-1)
        for m in maps
    ]
    assert scores["head_redundancy"].value == pytest.approx(np.mean(cosines), rel=1e-4)
    assert scores["map_correlation/1.2"].value == pytest.approx(correlation[:, 0, 1].mean(), abs=1e-4)


@pytest.mark.parametrize(("sign", "cosine"), [(1, 1.0), (-1, -1.0)])
def test_equal_maps_get_equal_gradients_and_opposed_maps_opposed_ones(folder, sign, cosine):
    """Each second query is the first or its negative; nearly uniform maps then change in equal or opposite ways."""
    loaded = subject()
    with torch.no_grad():
        for layer in loaded.model.attention_layers()["visual"]:
            queries, keys = (layer.qkv.weight[start : start + 32].view(2, 2, 8, 32) for start in (0, 32))
            queries[:, 1], keys[:, 1] = sign * queries[:, 0], keys[:, 0]
    scores = scores_of(loaded, folder)
    assert scores["gradient_cosine"].value == pytest.approx(cosine, abs=0.02)
    assert scores["map_correlation"].value == pytest.approx(cosine, abs=0.02)
    assert scores["noise_correlation"].value == pytest.approx(cosine, abs=0.02)
    if sign == 1:  # λ is below 1
        negative = scores["negative_weight"]
        assert negative.low == negative.value == 0 < negative.high  # Wilson's interval of equal outcomes


def test_classes_and_captions_serve_as_texts_and_one_patch_is_refused(tmp_path):
    classes = write_class_set(tmp_path / "colors", {"test": [0, 1, 1]}, 2)
    assert scores_of(made("DiffCLIP"), classes)["gradient_cosine"].count == 3
    with pytest.raises(InputError, match="a single patch"):
        scores_of(subject("CLIP", patch_size=32), classes)
    # a set with captions and a class for each pixel
    samples = [{**animal, "seg.png": png(box_mask(0, 0, 8, 8) // 255)} for animal in animals(3)]
    for sample in samples:
        del sample["mask.png"]
    folder = write_masked(tmp_path / "segments", samples, {"classnames.txt": "cat\ndog"})
    entries = [Entry(task, str(folder)) for task in ("segmentation", "mechanics", "robustness", "zero-shot")]
    results = run(made("DiffCLIP"), *entries)
    assert [bool(result.error) for result in results] == [False, False, False, True]
    assert results[2].records[0].classes == 3


def test_equal_heads_are_redundant_in_maps_and_outputs(folder):
    loaded = made("CLIP")
    with torch.no_grad():
        for layer in loaded.model.attention_layers()["visual"]:
            size = layer.head_dim
            rows = layer.qkv.weight.view(3, 4, size, 32)
            rows[:, 1:] = rows[:, :1]
            columns = layer.out_proj.weight.view(32, 4, size)
            columns[:, 1:] = columns[:, :1]
    scores = scores_of(loaded, folder)
    assert scores["head_redundancy"].value == pytest.approx(1)
    assert scores["output_redundancy"].value == pytest.approx(1)
    with torch.no_grad():
        for layer in loaded.model.attention_layers()["visual"]:
            layer.out_proj.weight.view(32, 4, layer.head_dim)[:, 2:] *= -1
    # of six pairs, two point the same way and four the opposite way
    assert scores_of(loaded, folder)["output_redundancy"].value == pytest.approx(-1 / 3)
