"""Compare relevance with finite differences and its recursion written out, and Grad-ECLIP with its formula."""

import pytest
import torch
from tiny import END, START, TOKENS, directions, image_relevance, random_images, tiny
from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffclip import CLIP, InputError
from diffclip.attention import eager
from diffclip.attention.module import AttentionMaps
from diffclip.maps.recording import recording
from diffclip.maps.relevance import gradients, image_logits, image_relevances, text_relevance

STEP = 1e-6


def logits_of(model: CLIP, tower: str) -> Tensor:
    """Compute logits [B] of two images with a text, or of two texts with an image."""
    if tower == "visual":
        return image_logits(model, random_images().double(), directions(1).double())[:, 0]
    features = model.encode_text(TOKENS, normalize=True)
    return model.logit_scale.detach().exp() * features @ directions(1).double()[0]


@pytest.mark.parametrize("tower", ["visual", "text"])
@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP", "DiffCLIP-dynamic"])
def test_gradients_are_finite_differences(variant: str, tower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(variant).double()
    with recording(model, tower, gradients=True, norm="graph") as layer_maps:
        logits = logits_of(model, tower)
        grads = gradients(logits, layer_maps)
    assert {gradient.dtype for gradient in grads} == {torch.float64}
    plain = eager.softmax_maps
    # an entry of the combined map A1 − λ·A2 moves with that of A1, which is the even head of a pair
    stride = 1 if variant == "CLIP" else 2
    entries = [(0, 0, 0, 5), (1, 1, 3, 2), (1, 0, 0, 0), (0, 1, 2, 1)]

    def perturb(layer: int, place: tuple[int, int, int, int], step: float) -> Tensor:
        calls = iter(range(100))

        def softmax_maps(q: Tensor, k: Tensor, causal: bool) -> Tensor:
            maps = plain(q, k, causal).clone()
            if next(calls) == layer:
                maps[place[0], stride * place[1], place[2], place[3]] += step
            return maps

        monkeypatch.setattr(eager, "softmax_maps", softmax_maps)
        with recording(model, tower):
            return logits_of(model, tower)

    for layer in range(3):
        for entry in entries:
            slope = (perturb(layer, entry, STEP) - perturb(layer, entry, -STEP)) / (2 * STEP)
            torch.testing.assert_close(grads[layer][entry], slope[entry[0]], rtol=1e-5, atol=1e-8)
    assert max(gradient.abs().max() for gradient in grads) > 1e-3


def test_a_detached_norm_keeps_the_output_and_is_a_constant_factor() -> None:
    layer = tiny("DiffCLIP").double().attention_layers()["visual"][1]
    with torch.no_grad():
        layer.diff_norm.weight.uniform_(0.5, 2.0)
    x = torch.randn(2, 17, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weights = torch.randn(2, 17, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    in_graph, _ = layer.attend_through_maps(x, False)
    out, maps = layer.attend_through_maps(x, False, detach_norm=True)
    torch.testing.assert_close(out, in_graph)
    (gradient,) = torch.autograd.grad((out * weights).sum(), [maps.combined])
    values = layer.qkv(x)[..., 64:].unflatten(-1, (2, 16)).transpose(1, 2)
    heads = maps.combined @ values
    factor = layer.diff_norm.weight / (heads.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.out_scale
    by_hand = (weights.unflatten(-1, (2, 16)).transpose(1, 2) * factor) @ values.mT
    torch.testing.assert_close(gradient, by_hand)


def plainly(maps: list[AttentionMaps], found: tuple[Tensor, ...], first: int, sample: int) -> Tensor:
    """Compute R [N, N] of one sample as in the paper of the method, head by head."""
    tokens = maps[0].first.shape[-1]
    relevance = torch.eye(tokens, dtype=torch.float64)
    for layer, gradient in list(zip(maps, found, strict=True))[first:]:
        heads = layer.combined.shape[1]
        mean = torch.zeros(tokens, tokens, dtype=torch.float64)
        for head in range(heads):
            product = gradient[sample, head] * layer.combined.detach()[sample, head]
            mean += torch.where(product > 0, product, 0.0).double() / heads
        relevance = relevance + mean @ relevance
    return relevance


@pytest.mark.parametrize("first", [0, 1, -1])
@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_image_relevance_matches_its_recursion(variant: str, first: int) -> None:
    model, images, texts = tiny(variant), random_images(), directions(3)
    with recording(model, "visual", gradients=True) as layer_maps:
        logits = image_logits(model, images, texts)
        text_grads = [gradients(logits[:, text], layer_maps) for text in range(3)]
    relevance = image_relevance(model, images, texts, layers=range(3)[first:])
    assert relevance.shape == (2, 3, 4, 4)
    assert (relevance > 0).any()
    assert not relevance.requires_grad
    for text, grads in enumerate(text_grads):
        for sample in range(2):
            row = plainly(layer_maps, grads, first, sample)[0, 1:]
            found = relevance[sample, text].flatten().double()
            torch.testing.assert_close(found, row, rtol=1e-4, atol=1e-7)
    if first == -1:
        torch.testing.assert_close(image_relevance(model, images, texts), relevance)


@pytest.mark.parametrize("first", [0, -1])
@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_text_relevance_matches_its_recursion_within_the_caption(variant: str, first: int) -> None:
    model, images = tiny(variant), directions(2)
    relevance = text_relevance(model, TOKENS, images, first)
    assert relevance.shape == (2, 2, 8)
    with recording(model, "text", gradients=True) as layer_maps:
        logits = model.logit_scale.exp() * model.encode_text(TOKENS, normalize=True) @ images.T
        image_grads = [gradients(logits[:, image], layer_maps) for image in range(2)]
    for sample, end in enumerate((3, 6)):
        for image in range(2):
            row = plainly(layer_maps, image_grads[image], first, sample)[end]
            torch.testing.assert_close(
                relevance[sample, image, 1:end].double(), row[1:end], rtol=1e-4, atol=1e-7
            )
            assert relevance[sample, image, 1:end].max() > 0
            assert relevance[sample, image, 0] == 0
            assert (relevance[sample, image, end:] == 0).all()


@pytest.mark.parametrize("method", ["relevance", "grad-eclip", "legrad"])
def test_text_relevance_ignores_tokens_after_the_end(method: str) -> None:
    model, images = tiny("DiffCLIP"), directions(1)
    short = torch.tensor([[START, 5, 6, END]])
    padded = torch.tensor([[START, 5, 6, END, 13, 21, 8, 1]])
    relevance, wanted = (
        text_relevance(model, tokens, images, 0, method=method) for tokens in (padded, short)
    )
    torch.testing.assert_close(relevance[..., :4], wanted, rtol=1e-4, atol=1e-8)
    assert (relevance[..., 4:] == 0).all()
    assert (relevance >= 0).all()


def test_each_image_may_have_its_own_texts() -> None:
    model, images, texts = tiny("DiffCLIP"), random_images(), directions(4)
    per_image = image_relevance(model, images, texts.view(2, 2, 16))
    all_pairs = image_relevance(model, images, texts)
    torch.testing.assert_close(per_image[0], all_pairs[0, :2])
    torch.testing.assert_close(per_image[1], all_pairs[1, 2:])
    alone = image_relevance(model, images[1:], texts[2:])
    torch.testing.assert_close(per_image[1:], alone, rtol=1e-4, atol=1e-7)


def last_layer(model: CLIP, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys [B, heads, N, d] and values [B, H, N, e] of the last layer."""
    layer, outputs = model.attention_layers()["visual"][-1], []
    handle = layer.qkv.register_forward_hook(lambda _, __, out: outputs.append(out.detach()))
    model.encode_image(images)
    handle.remove()
    q, k, v = outputs[0].chunk(3, dim=-1)
    heads = (4, 4, 4 if model.config.vision.attention == "softmax" else 2)
    return tuple(x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in zip((q, k, v), heads, strict=True))


def literal(model: CLIP, images: Tensor, text: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Compute ReLU(Σ_c w_c·λ_i·v_ic), [B, patches]. w is the derivative of the cosine by the class token's output,
    with the head norm's denominator held constant."""
    layer = model.attention_layers()["visual"][-1]
    q, k, v = last_layer(model, images)
    maps = eager.softmax_maps(q, k, False)
    plain = model.config.vision.attention == "softmax"
    lam = torch.tensor(0.0) if plain else layer.current_lambda().detach()
    combined = maps if plain else maps[:, 0::2] - lam * maps[:, 1::2]
    heads = (combined @ v).detach().requires_grad_()

    def attend(x: Tensor, causal: bool) -> Tensor:
        out = heads
        if not plain:
            root = (heads.detach().square().mean(-1, keepdim=True) + 1e-5).sqrt()
            out = heads / root * layer.diff_norm.weight * layer.out_scale
        return out.transpose(1, 2).flatten(2)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "_attend", attend)
        cosine = model.encode_image(images, normalize=True) @ text
    (grad,) = torch.autograd.grad(cosine.sum(), [heads])
    channels = (grad[:, :, :1] * v).sum((1, 3))[:, 1:]

    def similarity(first: int, step: int = 2) -> Tensor:
        query, keys = q[:, first::step, 0].flatten(1), k[:, first::step].transpose(1, 2).flatten(2)
        return cosine_similarity(query[:, None], keys, dim=-1)[:, 1:]

    weights = similarity(0, 1) if plain else similarity(0) - lam * similarity(1)
    low, high = weights.amin(-1, keepdim=True), weights.amax(-1, keepdim=True)
    return ((weights - low) / (high - low) * channels).clamp_min(0)


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_grad_eclip_matches_the_papers_formula(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, texts = tiny(variant), random_images(), directions(2)
    relevance = image_relevance(model, images, texts, method="grad-eclip").flatten(2)
    assert (relevance >= 0).all()
    assert (relevance > 0).any()
    for text in range(2):
        wanted = model.logit_scale.exp() * literal(model, images, texts[text], monkeypatch)
        torch.testing.assert_close(relevance[:, text], wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("variant", ["DiffCLIP-v2", "CLIP-gated-registers"])
def test_both_methods_at_once_match_each_method_alone(variant: str) -> None:
    model, images, texts = tiny(variant), random_images(), directions(3)
    both = image_relevances(model, images, texts)
    for method, maps in both.items():
        assert maps.shape == (2, 3, 4, 4)
        assert maps.isfinite().all()
        assert maps.amax() > 0
        alone = image_relevance(model, images, texts, method=method)
        torch.testing.assert_close(maps, alone, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_legrad_is_the_mean_of_positive_slopes_of_the_score_of_each_layer(variant: str) -> None:
    """Written out for one image and text: the score of a layer is the logit of the class token after it."""
    model, images, texts = tiny(variant), random_images(1), directions(2)
    expected = []
    with recording(model, "visual", gradients=True) as maps:
        x = model.visual.norm_pre(model.visual._pos_embed(model.visual.patch_embed(images)))
        for block in model.visual.blocks:
            x = block(x)
            feature = torch.nn.functional.normalize(
                model.visual.norm(x)[0, 0] @ model.image_projection, dim=-1
            )
            score = model.logit_scale.exp() * feature @ texts[1]
            slope = torch.autograd.grad(score, maps[-1].combined, retain_graph=True)[0]
            expected.append(slope[0, :, 0, 1:].clamp_min(0).mean(0))
    legrad = image_relevance(model, images, texts, method="legrad")[0, 1].flatten()
    torch.testing.assert_close(legrad, torch.stack(expected).mean(0))
    assert legrad.max() > 0
    head = image_relevance(model, images, texts, method="legrad", layers=range(2, 3), head=1)
    assert head.shape == (1, 2, 4, 4)
    with pytest.raises(InputError, match="this model has no head 5"):
        image_relevance(model, images, texts, method="legrad", head=4)
