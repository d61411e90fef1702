"""The paper's groups and schedule."""

from __future__ import annotations

import math

import pytest

from diffclip.model import CLIP
from diffclip.training.optimizer import learning_rate, make_optimizer, parameter_groups
from diffclip.training.recipe import Recipe


def test_vectors_lambdas_norms_biases_and_the_scale_are_not_decayed(recipe: Recipe) -> None:
    model = CLIP(recipe.config(), seed=0)
    decayed, *plain = parameter_groups(model, 0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    assert [group["weight_decay"] for group in (decayed, *plain)] == [0.5, 0.0, 0.0]
    with_decay = {names[id(p)] for p in decayed["params"]}
    without = {names[id(p)] for group in plain for p in group["params"]}
    assert len(with_decay) + sum(len(group["params"]) for group in plain) == len(names)
    assert with_decay | without == set(names.values())
    assert not with_decay & without
    assert {"visual.pos_embed", "image_projection", "token_embedding.weight"} <= with_decay
    for name in with_decay:
        assert "lambda_" not in name
        assert "norm" not in name
        assert "ln_" not in name
        assert not name.endswith("bias")
    # apart from the others, since they are never shared out over processes
    assert {names[id(p)].rpartition(".")[2] for p in plain[1]["params"]} == {
        *("logit_scale", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    }


def test_the_optimizer_is_the_recipes(recipe: Recipe) -> None:
    optimizer = make_optimizer(CLIP(recipe.config(), seed=0), recipe)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.0]
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.98)}


def test_warm_up_is_linear_then_cosine(recipe: Recipe) -> None:
    lrs = [learning_rate(step, 100, 10, recipe) for step in range(1, 101)]
    assert lrs[0] == pytest.approx(recipe.lr_start)
    assert lrs[9] == pytest.approx(recipe.lr)
    assert lrs[4] == pytest.approx(recipe.lr_start + (recipe.lr - recipe.lr_start) * 4 / 9)
    assert lrs[54] == pytest.approx(
        recipe.lr_end + (recipe.lr - recipe.lr_end) * 0.5 * (1 + math.cos(math.pi / 2))
    )
    assert lrs[99] == pytest.approx(recipe.lr_end)
    assert lrs[9:] == sorted(lrs[9:], reverse=True)


def test_no_warm_up_is_allowed(recipe: Recipe) -> None:
    assert learning_rate(1, 10, 0, recipe) < recipe.lr
    assert learning_rate(10, 10, 0, recipe) == pytest.approx(recipe.lr_end)
