"""Zero-shot classification and retrieval: the same numbers as clip_benchmark."""

import copy
from itertools import chain, islice
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from subjects import subject

from diffclip.data.evaluation_set import ImageBatch
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, build_classifier, embed_texts, evaluation_mode, fill_template
from diffclip.evaluation.zero_shot import retrieval, zero_shot

NAMES = ["cat", "dog", "tree frog", "a", "b"]
TEMPLATES = ["a photo of a {c}.", "{c}", "a drawing of many {c}, small"]
LOADED = subject(image_size=16)
tokenizer = LOADED.tokenizer


def in_batches(answers, size):
    """Batches of up to `size` images, one for each of `answers`: a label or a list of captions."""
    images = torch.randn(len(answers), 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return [(images[i : i + size], answers[i : i + size]) for i in range(0, len(answers), size)]


LABELED = in_batches([i % 5 for i in range(17)], 7)
CAPTIONED = in_batches([[f"{i}{j}caption"[: 4 + j] for j in range(1 + i % 3)] for i in range(50)], 16)


def in_memory(batches, model=LOADED.model):
    """A setting whose set is `batches`, with the attributes that both tasks read."""
    positions = iter(range(1000))
    wrapped = [
        ImageBatch(images, list(islice(positions, len(images))), answers) for images, answers in batches
    ]
    answers = list(chain.from_iterable(answers for _, answers in batches))
    names = {"classnames": NAMES, "templates": TEMPLATES}
    return Setting(
        model, None, tokenizer, SimpleNamespace(batches=lambda *_: iter(wrapped), labels=answers, **names)
    )


def test_zero_shot_equals_clip_benchmark():
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification")

    class Loader(list):
        dataset = SimpleNamespace(classes=NAMES)

    loader = Loader((images, torch.tensor(labels)) for images, labels in LABELED)
    with evaluation_mode(LOADED.model):
        wanted = theirs.evaluate(LOADED.model, loader, tokenizer, NAMES, TEMPLATES, "cpu", amp=False)
    scores = zero_shot(in_memory(LABELED))
    assert {score.metric: score.value for score in scores} == pytest.approx(wanted, abs=1e-9)


def test_retrieval_equals_clip_benchmark():
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval")
    wanted = theirs.evaluate(LOADED.model, CAPTIONED, tokenizer, "cpu", amp=False, recall_k_list=[1, 5, 10])
    scores = {score.metric: score.value for score in retrieval(in_memory(CAPTIONED))}
    assert scores.pop("mean_recall") == pytest.approx(sum(wanted.values()) / 6, abs=1e-7)
    assert scores == pytest.approx(wanted, abs=1e-7)


def test_images_without_captions_are_left_out_of_text_retrieval():
    batches = copy.deepcopy(CAPTIONED)
    batches[0][1][3] = []
    scores = {score.metric: score for score in retrieval(in_memory(batches))}
    assert scores["text_retrieval_recall@1"].count == 49
    assert scores["image_retrieval_recall@1"].count == sum(1 + i % 3 for i in range(50)) - 1


def test_template_without_a_place_and_nan_weights_are_refused():
    with pytest.raises(InputError, match=r"'a photo'.*\{c\}"):
        build_classifier(LOADED.model, tokenizer, NAMES, ["a photo"])
    for broken in ("text_projection", "image_projection"):
        model = copy.deepcopy(LOADED.model)
        getattr(model, broken).data.fill_(float("nan"))
        with pytest.raises(InputError, match="are not finite numbers"):
            zero_shot(in_memory(LABELED, model))


def test_text_embeddings_do_not_depend_on_batches_and_padding():
    model, texts = (
        LOADED.model,
        ["a much longer text about a tree frog", "cat", "a dog on a bus", "b", "word " * 40],
    )
    wanted = torch.cat([F.normalize(model.encode_text(tokenizer([text])), dim=-1) for text in texts])
    with evaluation_mode(model):
        for batch_size in (1, 2, 256):
            got = embed_texts(model, tokenizer, texts, batch_size)
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


def test_fill_template_replaces_placeholders_literally():
    assert fill_template("a {c} of {c}", "x") == "a x of x"
    assert fill_template("a {}.", "{c}") == "a {c}."
    assert fill_template("{0} {c}", "x") == "{0} x"
