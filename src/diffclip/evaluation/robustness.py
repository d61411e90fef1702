"""The task `robustness`: PGD on pixels (Madry et al. 2018, arXiv:1706.06083), and noise of equal size for comparison.

The attacker knows the model and raises the cross-entropy of each image's logits: over the classes or, in a set without
classes, over the first captions of all images. Shapes: B images, S image size, D joint width, K classes or captions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, check_embeddings, embed_images
from diffclip.evaluation.metrics import chance_at, classification_ranks
from diffclip.evaluation.scores import Score, mean_score, with_facts
from diffclip.evaluation.zero_shot import true_texts

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The largest change of a pixel, in 255ths of the range from black to white."""
STEPS = 10
STEP_SIZE = 2.5 / STEPS  # of ε: all steps together cross the ball of ±ε, with a little to spare


def robustness(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure at each ε `adversarial_accuracy`, `noise_accuracy`, `attack_success` and `local_lipschitz`.

    At ε = 0 `adversarial_accuracy` is the accuracy on unchanged images. `attack_success` is the share of the images
    right at ε = 0 that the attack turns wrong; it is left out if no image is right.
    """
    model = copy.deepcopy(setting.model).requires_grad_(False).eval()  # gradients of pixels alone
    of_classes = setting.data.kind == "classification"
    if of_classes:
        classifier, labels = setting.classifier(), setting.data.labels
    else:
        texts, labels = true_texts(setting)
        classifier = texts.T.contiguous()
    if classifier.shape[1] < 2:
        raise InputError(f"{setting.data.name} has one text only, which is always right: give two or more")
    classifier = classifier.clone()  # a graph cannot keep a tensor of inference mode
    preprocess = setting.preprocess.preprocess
    mean, std = torch.tensor([preprocess.mean, preprocess.std], device=classifier.device)[..., None, None]
    scale = model.logit_scale.detach().exp().float()

    def embed(pixels: Tensor) -> Tensor:
        return embed_images(model, (pixels - mean) / std)

    def loss(truth: Tensor, attacked: Tensor) -> Tensor:
        return F.cross_entropy(scale * embed(attacked) @ classifier, truth, reduction="sum")

    def right(features: Tensor, truth: Tensor) -> Tensor:
        return (classification_ranks(features, classifier, truth) == 0).double()

    hits: dict[tuple[str, float], list[Tensor]] = {}
    for batch in setting.batches(setting.preprocess.pixels):
        pixels = batch.images.to(classifier.device) / 255
        truth = torch.tensor([labels[position] for position in batch.positions], device=pixels.device)
        start, signs = _draw_noise(setting.draw, batch.positions, pixels)
        clean = check_embeddings(embed(pixels).detach(), "images")
        found = {("adversarial_accuracy", 0.0): right(clean, truth)}
        for epsilon in EPSILONS:
            attacked = pgd(partial(loss, truth), pixels, epsilon / 255, start)
            features = embed(attacked).detach()
            change = (attacked - pixels).flatten(1).norm(dim=1).clamp_min(1e-12)
            noisy = (pixels + epsilon / 255 * signs).clamp(0, 1)
            found["adversarial_accuracy", epsilon] = right(features, truth)
            found["noise_accuracy", epsilon] = right(embed(noisy).detach(), truth)
            found["local_lipschitz", epsilon] = (features - clean).norm(dim=1).div(change).double().cpu()
        for key, values in found.items():
            hits.setdefault(key, []).append(values)
    outcomes = {key: torch.cat(values).numpy() for key, values in hits.items()}
    was_right = outcomes["adversarial_accuracy", 0.0] == 1
    for epsilon in EPSILONS if was_right.any() else ():
        outcomes["attack_success", epsilon] = 1 - outcomes["adversarial_accuracy", epsilon][was_right]
    chances = dict.fromkeys(("adversarial_accuracy", "noise_accuracy"), chance_at(1, classifier.shape[1]))
    scores: list[Score] = []
    for (metric, epsilon), own in sorted(outcomes.items()):
        score = mean_score(metric, own, chances.get(metric))
        scores += with_facts([score], epsilon=epsilon)
    method = (
        f"PGD in L∞ on pixels, {STEPS} steps of {STEP_SIZE:g} ε, random start, cross-entropy of the logits; noise: ±ε "
        "at random; ties count against"
    )
    facts = {"templates": len(setting.prompts)} if of_classes else {}
    return with_facts(scores, protocol=method, draw=setting.draw, classes=classifier.shape[1], **facts)


def pgd(loss: Callable[[Tensor], Tensor], pixels: Tensor, epsilon: float, start: Tensor) -> Tensor:
    """Raise `loss` by projected gradient ascent in the L∞ ball of `epsilon` around `pixels`, within [0, 1].

    Args:
        loss: of images [B, 3, S, S], the sum over images; the loss of an image depends on its own pixels alone.
        pixels: [B, 3, S, S] in [0, 1].
        epsilon: the largest change of a pixel.
        start: the initial change of the pixels [B, 3, S, S], as a multiple of `epsilon` in [−1, 1].
    """
    low, high = (pixels - epsilon).clamp_min(0), (pixels + epsilon).clamp_max(1)
    attacked = torch.clamp(pixels + epsilon * start, low, high)
    for _ in range(STEPS):
        attacked.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(attacked), attacked)
        attacked = torch.clamp(attacked.detach() + STEP_SIZE * epsilon * gradient.sign(), low, high)
    return attacked


def _draw_noise(draw: int, positions: list[int], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the start of the attack in [−1, 1] and the signs of the noise, for each image whatever its batch is."""
    starts, signs = torch.empty_like(pixels), torch.empty_like(pixels)
    for start, sign, position in zip(starts, signs, positions, strict=True):
        generator = np.random.default_rng([draw, position])
        start.copy_(torch.from_numpy(generator.uniform(-1, 1, start.shape)))
        sign.copy_(torch.from_numpy(generator.choice(np.array([-1, 1], np.float32), sign.shape)))
    return starts, signs
