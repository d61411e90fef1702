"""The paper's groups and schedule."""

from __future__ import annotations

import math

import pytest

from diffclip.model import CLIP
from diffclip.training.optimizer import learning_rate, make_optimizer
from diffclip.training.recipe import Recipe


def test_vectors_lambdas_norms_biases_and_the_scale_are_not_decayed(recipe: Recipe) -> None:
    model = CLIP(recipe.config(), seed=0)
    decayed, *plain = make_optimizer(model, recipe).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert [group["weight_decay"] for group in (decayed, *plain)] == [0.1, 0.0, 0.0]
    assert decayed["betas"] == (0.9, 0.98)
    with_decay = {names[id(p)] for p in decayed["params"]}
    without = {names[id(p)] for group in plain for p in group["params"]}
    assert len(with_decay) + sum(len(group["params"]) for group in plain) == len(names)
    assert with_decay | without == set(names.values())
    assert not with_decay & without
    assert {"visual.pos_embed", "image_projection", "token_embedding.weight"} <= with_decay
    assert not any(part in name for name in with_decay for part in ("lambda_", "norm", "ln_", "bias"))
    # apart from the others, since they are never shared out over processes
    assert {names[id(p)].rpartition(".")[2] for p in plain[1]["params"]} == {
        *("logit_scale", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    }


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
    # no warm-up is allowed
    assert learning_rate(1, 10, 0, recipe) < recipe.lr
    assert learning_rate(10, 10, 0, recipe) == pytest.approx(recipe.lr_end)
