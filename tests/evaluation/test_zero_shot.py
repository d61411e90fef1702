"""Retrieval as by clip_benchmark, and texts; tests/integrations compares clip_benchmark's whole program."""

import copy

import pytest
import torch
import torch.nn.functional as F
from masked_sets import animals, write_class_set, write_masked
from subjects import setting, subject

from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_texts, evaluation_mode, fill_template
from diffclip.evaluation.zero_shot import retrieval, zero_shot

LOADED = subject(image_size=16)


def test_retrieval_with_one_to_three_captions_equals_clip_benchmark(tmp_path):
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval")
    captions = ["\n".join(f"{i}{j}caption"[: 4 + j] for j in range(1 + i % 3)) for i in range(30)]
    samples = [animal | {"txt": text} for animal, text in zip(animals(30), captions, strict=True)]
    folder = write_masked(tmp_path / "captions", samples, {"dataset_type.txt": "retrieval"})
    data, model, tokenizer = open_set(folder, "test"), LOADED.model, LOADED.tokenizer
    batches = [(batch.images, batch.captions) for batch in data.batches(LOADED.preprocess, 7)]
    wanted = theirs.evaluate(model, batches, tokenizer, "cpu", amp=False, recall_k_list=[1, 5, 10])
    scores = {score.metric: score.value for score in retrieval(setting(LOADED, data))}
    assert scores.pop("mean_recall") == pytest.approx(sum(wanted.values()) / 6, abs=1e-7)
    assert scores == pytest.approx(wanted, abs=1e-7)


def test_recalls_in_pools_are_the_means_of_the_recalls_of_each_pool(tmp_path):
    samples = [animal | {"txt": f"a {n}\nthe {n}"} for n, animal in enumerate(animals(25))]
    data = open_set(write_masked(tmp_path / "captions", samples, {"dataset_type.txt": "retrieval"}), "test")
    scores = retrieval(setting(LOADED, data, pool=12))
    parts = [retrieval(setting(LOADED, data.part(start, start + 12))) for start in (0, 12)]
    for score, first, second in zip(scores, *parts, strict=True):
        assert score.value == pytest.approx((first.value + second.value) / 2)
        assert score.chance == pytest.approx(first.chance)
    assert scores[0].count == 48  # the 25th image is in no pool
    with pytest.raises(InputError, match="25 images, fewer than a pool of 26"):
        retrieval(setting(LOADED, data, pool=26))


@pytest.mark.parametrize("broken", ["text_projection", "image_projection"])
def test_nan_weights_are_refused(tmp_path, broken):
    data = open_set(write_class_set(tmp_path / "colors", {"test": [0, 1, 1]}, 2), "test")
    model = copy.deepcopy(LOADED.model)
    getattr(model, broken).data.fill_(float("nan"))
    with pytest.raises(InputError, match="are not finite numbers"):
        zero_shot(setting(LOADED, data, model=model))


def test_text_embeddings_do_not_depend_on_batches_and_padding():
    model, tokenizer = LOADED.model, LOADED.tokenizer
    texts = ["a much longer text about a tree frog", "cat", "a dog on a bus", "b", "word " * 40]
    wanted = torch.cat([F.normalize(model.encode_text(tokenizer([text])), dim=-1) for text in texts])
    with evaluation_mode(model):
        for batch_size in (1, 2, 256):
            got = embed_texts(model, tokenizer, texts, batch_size)
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


def test_fill_template_replaces_placeholders_literally():
    assert fill_template("a {c} of {c}", "x") == "a x of x"
    assert fill_template("a {}.", "{c}") == "a {c}."
    assert fill_template("{0} {c}", "x") == "{0} x"
