"""The task `robustness` against a loop written by hand, and against a model whose weak points are known."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masked_sets import animals, png, write_class_set, write_masked
from subjects import setting, subject
from torch import nn

from diffclip.config import PreprocessConfig
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.robustness import EPSILONS, pgd, robustness
from diffclip.evaluation.zero_shot import zero_shot
from diffclip.preprocess import EvalTransform


def scores_of(setting):
    return {(score.metric, score.facts["epsilon"]): score for score in robustness(setting)}


def setting_of(loaded, folder, **changes):
    return setting(loaded, open_set(folder, "test"), **changes)


@pytest.fixture(scope="module")
def loaded():
    return subject(image_size=16)


@pytest.fixture(scope="module")
def colors(tmp_path_factory):
    return write_class_set(tmp_path_factory.mktemp("sets") / "colors", {"test": [0, 1, 2, 3] * 2}, 4)


def test_pgd_equals_a_loop_by_hand(loaded):
    model = loaded.model
    generator = torch.Generator().manual_seed(0)
    pixels, start = (torch.rand(3, 3, 16, 16, generator=generator) for _ in range(2))
    pixels[0, :, :4] = 0
    start = 2 * start - 1
    truth = torch.tensor([0, 2, 1])
    classifier = F.normalize(torch.randn(16, 4, generator=generator), dim=0)

    def loss(images):
        return F.cross_entropy(
            20 * model.encode_image(images, normalize=True) @ classifier, truth, reduction="sum"
        )

    attacked = pgd(loss, pixels, 4 / 255, start)
    expected = []
    for i in range(3):  # one image at a time: images of a batch are independent
        x = pixels[i] + 4 / 255 * start[i]
        x = torch.minimum(torch.maximum(x, pixels[i] - 4 / 255), pixels[i] + 4 / 255).clamp(0, 1)
        for _ in range(10):
            x = x.detach().requires_grad_()
            logits = 20 * F.normalize(model.encode_image(x[None])[0], dim=-1) @ classifier
            (-logits.log_softmax(-1)[truth[i]]).backward()
            x = x.detach() + 2.5 * (4 / 255) / 10 * torch.sign(x.grad)
            x = torch.minimum(torch.maximum(x, pixels[i] - 4 / 255), pixels[i] + 4 / 255).clamp(0, 1)
        expected.append(x)
    model.zero_grad(set_to_none=True)
    torch.testing.assert_close(attacked, torch.stack(expected), atol=1e-6, rtol=0)
    assert (attacked - pixels).abs().max() <= 4 / 255 + 1e-6
    assert loss(attacked) > loss(pixels)


class Reddish(nn.Module):
    """Classify images by mean red above or below the middle, so that successful attacks can be counted."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def encode_image(self, images, normalize=False):
        red = images[:, 0].mean((1, 2))
        return torch.stack([red, torch.full_like(red, 0.1)], dim=1)

    def encode_text(self, tokens, normalize=False):
        return torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[tokens]


def test_attack_flips_the_expected_images_of_a_linear_model(tmp_path):
    """Images have margins of 0.75, 1.75, … 5.75 levels: a larger ε makes them wrong, but noise does not."""
    samples = []
    for margin in range(6):
        for label, sign in enumerate((1, -1)):
            image = np.full((16, 16, 3), 128, np.uint8)
            image[..., 0] += np.uint8(sign * margin % 256)
            image[:12, :, 0] += np.uint8(sign % 256)
            samples.append({"png": png(image), "cls": str(label)})
    folder = write_masked(tmp_path / "reds", samples, {"classnames.txt": "high\nlow"})
    preprocess = EvalTransform(16, PreprocessConfig(mean=(128 / 255,) * 3, std=(1, 1, 1)))
    tokenizer = lambda texts: torch.tensor(["low" in text for text in texts]).long()  # noqa: E731
    scores = scores_of(Setting(Reddish(), preprocess, tokenizer, open_set(folder, "test")))
    right = {0.0: 6, 0.25: 6, 0.5: 6, 1.0: 5, 2.0: 4, 4.0: 2}
    for epsilon, count in right.items():
        accuracy = scores["adversarial_accuracy", epsilon]
        assert accuracy.value == pytest.approx(count / 6)
        assert accuracy.chance == 0.5
        if epsilon:
            assert scores["attack_success", epsilon].value == pytest.approx(1 - count / 6)
            assert scores["noise_accuracy", epsilon].value == 1
    # f is steepest where red, beside the constant 0.1, crosses the middle: 1 / (0.1 · 16) over 256 pixels
    assert 0 < scores["local_lipschitz", 1.0].value <= 1 / (0.1 * 16)


def test_accuracy_without_attack_is_zero_shot_for_any_batch_size(loaded, colors):
    cut, redrawn = (
        scores_of(setting_of(loaded, colors, **extra)) for extra in ({"batch_size": 3}, {"draw": 1})
    )
    model = copy.deepcopy(loaded.model).train()
    model.logit_scale.requires_grad_(False)
    scores = scores_of(setting_of(loaded, colors, model=model))
    # the model is left as it was
    assert model.training
    assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["logit_scale"]
    assert all(value.grad is None for value in model.parameters())
    for key, score in scores.items():
        assert cut[key].value == pytest.approx(score.value, abs=1e-4), key
    assert redrawn["local_lipschitz", 1.0].value != scores["local_lipschitz", 1.0].value
    plain = zero_shot(setting_of(loaded, colors))[0]
    assert scores["adversarial_accuracy", 0.0].value == plain.value
    epsilons = {metric: [e for name, e in scores if name == metric] for metric, _ in scores}
    attacked = list(EPSILONS)
    assert epsilons == {
        "adversarial_accuracy": [0.0, *attacked],
        "noise_accuracy": attacked,
        "local_lipschitz": attacked,
        **({"attack_success": attacked} if plain.value else {}),
    }
    assert scores["adversarial_accuracy", 4.0].value <= plain.value
    facts = scores["noise_accuracy", 2.0].facts
    assert (facts["draw"], facts["classes"], facts["templates"]) == (0, 4, 1)


def test_images_are_classified_among_the_distinct_first_captions(loaded, tmp_path):
    """The first captions of six images are three texts, each shared by two images."""
    samples = [animal | {"txt": f"{animal['txt']}\na second caption"} for animal in animals(6)]
    folder = write_masked(tmp_path / "captions", samples, {"dataset_type.txt": "retrieval"})
    score = scores_of(setting_of(loaded, folder))["adversarial_accuracy", 0.0]
    assert (score.count, score.chance, score.facts["classes"]) == (6, pytest.approx(1 / 3), 3)
    folder = write_masked(tmp_path / "alike", samples[:1] * 2, {"dataset_type.txt": "retrieval"})
    with pytest.raises(InputError, match="alike has one text only, which is always right: give two"):
        scores_of(setting_of(loaded, folder))
