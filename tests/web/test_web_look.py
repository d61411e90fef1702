import numpy as np
import pytest
import torch
from PIL import Image

from diffclip.errors import InputError
from diffclip.maps import measures
from diffclip.maps.recording import recording
from diffclip.maps.relevance import image_relevances
from diffclip.maps.view import METHODS
from diffclip.sources.load import load_with_origin
from diffclip.web.look import look

TEXTS = ["a red square", "a dog"]


@pytest.fixture(scope="module")
def image():
    values = np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_scores_and_maps_match_the_model(plain, image):
    view = look(plain, image, TEXTS)
    with torch.no_grad():
        images = plain.preprocess(image)[None]
        image = plain.model.encode_image(images, normalize=True)
        texts = plain.model.encode_text(plain.tokenizer(TEXTS), normalize=True)
        cosines = (image @ texts.T)[0]
    assert view.cosines == pytest.approx(cosines.tolist(), abs=1e-5)
    wanted = (plain.model.logit_scale.exp() * cosines).softmax(-1)
    assert view.probabilities == pytest.approx(wanted.tolist(), abs=1e-4)
    for method, maps in image_relevances(plain.model, images, texts).items():
        for index in range(2):
            values = view.maps[method, index].values
            np.testing.assert_allclose(values, maps[0, index].numpy(), rtol=1e-3, atol=1e-7)


def test_maps_of_a_layer_and_a_head(differential, image):
    with recording(differential.model, "visual") as maps:
        differential.model.encode_image(differential.preprocess(image)[None])
    view = look(differential, image, TEXTS, layer=1, head=1)
    np.testing.assert_allclose(view.maps["A2", None].values.flatten(), maps[0].second[0, 0, 0, 1:], atol=1e-6)
    assert not np.allclose(
        view.maps["legrad", 0].values, look(differential, image, TEXTS).maps["legrad", 0].values
    )
    for choice, message in (({"layer": 9}, "has no vision layer 9"), ({"head": 3}, "has no head 3")):
        with pytest.raises(InputError, match=message):
            look(differential, image, TEXTS, **choice)


def test_differential_models_get_all_maps_and_stay_unchanged(differential, image):
    images = differential.preprocess(image)[None]
    with torch.no_grad():
        before = differential.model.encode_image(images)
        view = look(differential, image, TEXTS)
        assert torch.equal(differential.model.encode_image(images), before)
    assert all(parameter.grad is None for parameter in differential.model.parameters())
    with recording(differential.model, "visual", -1) as maps:
        differential.model.encode_image(images)
    for name, field in (("A1", "first"), ("A2", "second"), ("attention", "combined")):
        row = getattr(maps[0], field)[0].mean(0)[0, 1:]
        np.testing.assert_allclose(view.maps[name, None].values.flatten(), row, atol=1e-6)
    assert [len(values) for values in view.lambdas.values()] == [2, 2]
    assert {name for name, _ in view.maps} == set(METHODS)


def test_map_numbers_are_the_measures_of_the_map(differential, image):
    view = look(differential, image, TEXTS)
    relevance = view.maps["relevance", 1]
    values = torch.from_numpy(relevance.values).flatten()
    assert relevance.numbers["entropy"] == pytest.approx(float(measures.entropy(values)), abs=1e-6)
    assert relevance.numbers["top10"] == pytest.approx(float(measures.top(values)), abs=1e-6)
    assert "class_token" not in relevance.numbers
    assert 0 < view.maps["A1", None].numbers["class_token"] < 1


def test_weights_that_are_not_finite_are_an_error(model_folders, image):
    loaded = load_with_origin(str(model_folders[0]))
    with torch.no_grad():
        loaded.model.image_projection.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        look(loaded, image, TEXTS)
