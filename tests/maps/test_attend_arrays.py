"""`attend` on images × texts × models equals the single functions, for any method, layer and number of images."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import image_relevance

import diffclip
from diffclip import InputError
from diffclip.maps.attend import Prepared, attend
from diffclip.maps.attention_maps import rollout
from diffclip.maps.recording import recording
from diffclip.maps.relevance import text_relevance
from diffclip.maps.view import View
from diffclip.preprocess import EvalTransform
from diffclip.tokenizer import Tokenizer

TEXTS = ["a mug", "a lamp on a skateboardish table"]


def loaded(attention: str, image_size: int = 32) -> Prepared:
    tower = {"width": 16, "attention": attention}
    vision = tower | {"image_size": image_size, "patch_size": 8, "layers": 3, "heads": 4}
    text = tower | {"context_length": 16, "layers": 2, "heads": 2}
    config = diffclip.CLIPConfig(embed_dim=16, vision=vision, text=text)
    model = diffclip.CLIP(config, seed=0).eval()
    return model, EvalTransform(image_size, config.preprocess), Tokenizer(config.text)


def random_images(count: int) -> list[Image.Image]:
    values = np.random.default_rng(0).integers(0, 256, (count, 40, 48, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in values]


@pytest.fixture(scope="module")
def models() -> dict[str, Prepared]:
    return {"plain": loaded("softmax"), "fine": loaded("differential", 48)}


@pytest.mark.parametrize("method", ["relevance", "grad-eclip"])
def test_maps_scores_and_words_match_the_single_functions(models: dict[str, Prepared], method: str) -> None:
    photos = random_images(3)
    results = attend(models, iter(photos), TEXTS, View(method))
    assert list(results) == ["plain", "fine"]
    heads = {"relevance": "mean over heads", "grad-eclip": "all heads"}
    assert f"last vision layer, {heads[method]}: " in str(View(method, "last"))
    for name, (model, preprocess, tokenizer) in models.items():
        result, side = results[name], model.config.vision.image_size // 8
        images, tokens = torch.stack([preprocess(image) for image in photos]), tokenizer(TEXTS)
        with torch.no_grad():
            texts = model.encode_text(tokens, normalize=True)
            features = model.encode_image(images, normalize=True)
        assert result.maps.shape == (3, 2, side, side)
        close(result.maps, image_relevance(model, images, texts, method=method))
        close(result.cosines, features @ texts.T)
        close(result.probabilities, (model.logit_scale.exp() * features @ texts.T).softmax(-1))
        relevance = text_relevance(model, tokens, features, method=method)
        for text, pieces in enumerate(result.pieces):
            assert "".join(pieces).strip() == TEXTS[text]
            close(result.spoken[:, text, : len(pieces)], relevance[text, :, 1 : len(pieces) + 1])
            assert (result.spoken[:, text, len(pieces) :] == 0).all()


@pytest.mark.parametrize("method", ["rollout", "A2"])
def test_maps_of_a_patch_instead_of_the_class_token(models: dict[str, Prepared], method: str) -> None:
    model, preprocess, _ = models["fine"]
    images = torch.stack([preprocess(image) for image in random_images(2)])
    with recording(model, "visual") as layer_maps:
        model.encode_image(images)
    rows = rollout(layer_maps) if method == "rollout" else layer_maps[-1].second.mean(1)
    result = attend({"fine": models["fine"]}, random_images(2), view=View(method, patch=(3, 5)))["fine"]
    close(result.maps, rows[:, 1 + 2 * 6 + 4, 1:].view(2, 1, 6, 6))


def test_a_gated_layer_has_one_map() -> None:
    gated = {"gated": loaded("gated")}
    assert attend(gated, random_images(1), view=View("attention"))["gated"].maps.shape == (1, 1, 4, 4)
    with pytest.raises(InputError, match="gated makes one map per head, no A1: use --method attention"):
        attend(gated, random_images(1), view=View("A1"))


def test_layers_may_be_the_last_all_or_one_by_number(models: dict[str, Prepared]) -> None:
    model, preprocess, tokenizer = models["fine"]
    photos = random_images(2)
    images = torch.stack([preprocess(image) for image in photos])
    texts = model.encode_text(tokenizer(TEXTS), normalize=True)

    def compute(method: str, layers: str = "") -> np.ndarray:
        return attend(
            {"fine": models["fine"]}, photos, TEXTS if method == "relevance" else [], View(method, layers)
        )["fine"].maps

    for layers, chosen in {"1": range(1), "2": range(1, 2), "3": range(2, 3), "all": range(3)}.items():
        close(compute("relevance", layers), image_relevance(model, images, texts, layers=chosen))
    with recording(model, "visual") as layer_maps:
        model.encode_image(images)
    for method, field in {"A1": "first", "A2": "second", "attention": "combined"}.items():
        rows = [getattr(maps, field).mean(1)[:, 0, 1:].view(2, 6, 6) for maps in layer_maps]
        close(compute(method)[:, 0], rows[-1])
        close(compute(method, "2")[:, 0], rows[1])
        close(compute(method, "all")[:, 0], torch.stack(rows).mean(0))
    close(compute("rollout").reshape(2, -1), rollout(layer_maps)[:, 0, 1:])
    close(compute("rollout", "2").reshape(2, -1), rollout(layer_maps[1:2])[:, 0, 1:])


def test_images_in_batches_match_each_image_alone(models: dict[str, Prepared]) -> None:
    photos = random_images(18)  # more than a batch
    whole = attend(models, photos, TEXTS)
    for number in (0, 15, 16, 17):
        alone = attend(models, [photos[number]], TEXTS)
        for name in models:
            for field in ("maps", "cosines", "spoken"):
                close(getattr(whole[name], field)[number], getattr(alone[name], field)[0])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"view": View(layers="4")}, "plain has no vision layer 4: they are numbered from 1 to 3"),
        ({"view": View(layers="²")}, "'²' is not last, all or the number"),
        ({"texts": ["a \udcff"]}, r"the text 'a \\udcff' is not UTF-8"),
    ],
)
def test_invalid_requests_raise_input_error(
    models: dict[str, Prepared], request_: dict[str, object], message: str
) -> None:
    arguments = {"models": models, "images": random_images(1), "texts": TEXTS} | request_
    with pytest.raises(InputError, match=message):
        attend(**arguments)  # type: ignore[arg-type]


def test_weights_with_nan_are_refused() -> None:
    model, *rest = loaded("softmax")
    model.image_projection.data.fill_(float("nan"))
    with pytest.raises(InputError, match="broken gives numbers that are not finite"):
        attend({"broken": (model, *rest)}, random_images(1), TEXTS)


def close(found: np.ndarray, wanted: torch.Tensor | np.ndarray) -> None:
    values = wanted.detach().numpy() if isinstance(wanted, torch.Tensor) else wanted
    np.testing.assert_allclose(found, values, rtol=1e-3, atol=1e-7 + 1e-4 * float(np.abs(values).max()))
