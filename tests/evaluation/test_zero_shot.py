import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from in_memory import in_memory
from subjects import subject

from diffclip.errors import InputError
from diffclip.evaluation.embed import build_classifier, embed_texts, evaluating, fill_template
from diffclip.evaluation.zero_shot import zero_shot

NAMES = ["cat", "dog", "tree frog", "{odd} name", "bus"]
ONE = subject(image_size=16)
tokenizer = ONE.tokenizer
TEMPLATES = ["a photo of a {c}.", "{c}", "a drawing of many {c}, small"]


@pytest.fixture(scope="module")
def model():
    return ONE.model


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    sizes = (7, 7, 3)
    return [(torch.randn(n, 3, 16, 16, generator=generator), [i % 5 for i in range(n)]) for n in sizes]


def test_it_equals_clip_benchmark(model, batches):
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification")

    class Loader(list):
        dataset = SimpleNamespace(classes=[*NAMES[:3], "a", "b"])

    names = Loader.dataset.classes
    loader = Loader((images, torch.tensor(labels)) for images, labels in batches)
    with evaluating(model):
        wanted = theirs.evaluate(model, loader, tokenizer, names, TEMPLATES, "cpu", amp=False)
    scores = zero_shot(in_memory(model, tokenizer, batches, classnames=names, templates=TEMPLATES))
    assert {score.metric: score.value for score in scores} == pytest.approx(wanted, abs=1e-9)


def test_bad_input(model, batches):
    with pytest.raises(InputError, match="0 and 3"):
        build_classifier(model, tokenizer, [], TEMPLATES)
    with pytest.raises(InputError, match=r"'a photo'.*\{c\}"):
        build_classifier(model, tokenizer, NAMES, ["a photo"])
    with pytest.raises(InputError, match="no text"):
        embed_texts(model, tokenizer, [])
    broken = copy.deepcopy(model)
    broken.text_projection.data.fill_(float("nan"))
    with pytest.raises(InputError, match="are not finite numbers"):
        embed_texts(broken, tokenizer, ["a"])
    broken = copy.deepcopy(model)
    broken.image_projection.data.fill_(float("nan"))
    with pytest.raises(InputError, match="are not finite numbers"):
        zero_shot(in_memory(broken, tokenizer, batches, classnames=NAMES, templates=TEMPLATES))


def test_order_and_padding_change_nothing(model):
    texts = ["a much longer text about a tree frog", "cat", "a dog on a bus", "b", "word " * 40]
    wanted = torch.cat([F.normalize(model.encode_text(tokenizer([text])), dim=-1) for text in texts])
    with evaluating(model):
        for batch_size in (1, 2, 256):
            got = embed_texts(model, tokenizer, texts, batch_size)
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


def test_templates():
    assert fill_template("a {c} of {c}", "x") == "a x of x"
    assert fill_template("a {}.", "{c}") == "a {c}."
    assert fill_template("{0} {c}", "x") == "{0} x"
