"""Both inits have the expected statistics, and `matched` isolates attention."""

import math

import pytest
import torch

from diffclip import CLIP
from diffclip.config import VARIANTS, variant_config
from diffclip.initialisation import initialise

SMALL = {
    "embed_dim": 64,
    "vision": {"image_size": 32, "patch_size": 8, "width": 128, "layers": 3, "heads": 4},
    "text": {"context_length": 32, "vocab_size": 2000, "width": 192, "layers": 2, "heads": 4},
}


def model(variant: str, init: str, seed: int = 0) -> CLIP:
    return CLIP(variant_config(variant, SMALL), init=init, seed=seed)


# name (end) → standard deviation in the plain models, and in differential towers of the published code
UNIFORM = 1 / math.sqrt(3)
EXPECTED = {
    "visual.pos_embed": (0.02, 0.02),
    "visual.cls_token": (1e-6, 1e-6),
    "visual.patch_embed.proj.weight": (UNIFORM / math.sqrt(192), UNIFORM / math.sqrt(192)),
    "visual.patch_embed.proj.bias": (UNIFORM / math.sqrt(192), UNIFORM / math.sqrt(192)),
    "visual.blocks.1.attn.qkv.weight": (0.02, UNIFORM / math.sqrt(128)),
    "visual.blocks.1.attn.qkv.bias": (0.0, UNIFORM / math.sqrt(128)),
    "visual.blocks.1.attn.out_proj.weight": (0.02, UNIFORM / math.sqrt(128)),
    "visual.blocks.1.attn.out_proj.bias": (0.0, UNIFORM / math.sqrt(128)),
    "visual.blocks.1.mlp.fc1.weight": (0.02, UNIFORM / math.sqrt(128)),
    "visual.blocks.1.mlp.fc2.weight": (0.02, UNIFORM / math.sqrt(512)),
    "visual.blocks.1.mlp.fc2.bias": (0.0, UNIFORM / math.sqrt(512)),
    "token_embedding.weight": (0.02, 0.02),
    "positional_embedding": (0.01, 0.01),
    "image_projection": (128**-0.5, 128**-0.5),
    "text_projection": (192**-0.5, 192**-0.5),
    "transformer.resblocks.1.attn.qkv.weight": (192**-0.5, 192**-0.5),
    "transformer.resblocks.1.attn.qkv.bias": (0.0, UNIFORM / math.sqrt(192)),
    "transformer.resblocks.1.attn.out_proj.weight": (192**-0.5 * 4**-0.5, 192**-0.5 * 4**-0.5),
    "transformer.resblocks.1.attn.out_proj.bias": (0.0, UNIFORM / math.sqrt(192)),
    "transformer.resblocks.1.mlp.c_fc.weight": (384**-0.5, 384**-0.5),
    "transformer.resblocks.1.mlp.c_fc.bias": (UNIFORM / math.sqrt(192), UNIFORM / math.sqrt(192)),
    "transformer.resblocks.1.mlp.c_proj.weight": (192**-0.5 * 4**-0.5, 192**-0.5 * 4**-0.5),
    "transformer.resblocks.1.mlp.c_proj.bias": (UNIFORM / math.sqrt(768), UNIFORM / math.sqrt(768)),
}


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP", "DiffCLIP-vision"])
@pytest.mark.parametrize("init", ["matched", "published"])
def test_initial_standard_deviations_match_the_expected_values(variant: str, init: str) -> None:
    parameters = dict(model(variant, init).named_parameters())
    for name, expected in EXPECTED.items():
        differential = variant == "DiffCLIP" or (variant == "DiffCLIP-vision" and name.startswith("visual."))
        values = parameters[name].detach()
        wanted = expected[init == "published" and differential]
        deviation = float(values.std(unbiased=False))
        assert deviation == pytest.approx(wanted, rel=4 / math.sqrt(values.numel()), abs=1e-12), name


@pytest.mark.parametrize("init", ["matched", "published"])
def test_norms_lambdas_and_logit_scale_have_their_starting_values(init: str) -> None:
    built = model("DiffCLIP", init)
    for name, parameter in built.named_parameters():
        if name.endswith("norm.weight") or (name.endswith("weight") and parameter.ndim == 1):
            assert (parameter == 1).all(), name
        if ".norm" in name and name.endswith("bias"):
            assert (parameter == 0).all(), name
    lambdas = torch.cat([p.detach() for name, p in built.named_parameters() if "lambda_" in name])
    assert float(lambdas.std()) == pytest.approx(0.1, rel=0.1)
    assert abs(float(lambdas.mean())) < 0.02
    assert built.logit_scale.item() == pytest.approx(math.log(1 / 0.07))


@pytest.mark.parametrize("other", [name for name in VARIANTS if name != "CLIP"])
def test_matched_models_start_with_bit_equal_shared_weights(other: str) -> None:
    clip, rival = (model(name, "matched", 7).state_dict() for name in ("CLIP", other))
    if registers := variant_config(other, SMALL).vision.registers:
        first, drawn, rest = rival["visual.pos_embed"].split([1, registers, 16], dim=1)
        assert all(not torch.equal(drawn[:, 0], drawn[:, i]) for i in range(1, registers))  # they differ
        rival["visual.pos_embed"] = torch.cat([first, rest], dim=1)
    for name in [name for name in rival if ".part_qkv." in name]:  # queries and keys of some heads
        part, whole = rival.pop(name), clip.pop(name.replace("part_", ""))
        (q, k, v), size = whole.chunk(3), len(whole) // 12
        for ours, theirs in zip(part[: -len(v)].chunk(2), (q, k), strict=True):
            heads = theirs.unflatten(0, (4, size))
            assert all(torch.equal(heads[0], h) or torch.equal(heads[2], h) for h in ours.split(size)[:2])
        assert torch.equal(part[-len(v) :], v)
    assert clip.keys() <= rival.keys()
    assert all(torch.equal(clip[name], rival[name]) for name in clip)
    parts = ("lambda_", "diff_norm", "q2_proj", "k2_proj", "gate_proj", "reg_token")
    assert all(any(part in name for part in parts) for name in rival.keys() - clip.keys())
    diffclip = model("DiffCLIP", "matched", 7).state_dict()
    own = ("lambda_", "diff_norm") if "added" not in other and "v2" not in other else ()
    assert all(
        torch.equal(diffclip[name], rival[name]) for name in rival if any(part in name for part in own)
    )


def test_values_are_drawn_on_the_cpu_for_any_default_device() -> None:
    built = model("DiffCLIP", "matched", 7)
    with torch.device("meta"):
        initialise(built.named_parameters(), built.config, "matched", 8)
        assert CLIP(built.config).logit_scale.is_meta
    expected = model("DiffCLIP", "matched", 8).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in built.state_dict().items())


def test_published_init_differs_only_where_the_published_code_does() -> None:
    clip, diff = model("CLIP", "published").state_dict(), model("DiffCLIP", "published").state_dict()
    differing = {name for name in clip if not torch.equal(clip[name], diff[name])}
    assert differing
    for name in differing:
        assert name.startswith("visual.blocks.") or ".attn." in name, name


@pytest.mark.parametrize(
    ("variant", "init", "eps"),
    [("DiffCLIP", "matched", 1e-6), ("CLIP", "published", 1e-6), ("DiffCLIP-vision", "published", 1e-5)],
)
def test_epsilon_is_resolved_and_recorded(variant: str, init: str, eps: float) -> None:
    built = model(variant, init)
    assert {m.eps for m in built.visual.modules() if isinstance(m, torch.nn.LayerNorm)} == {eps}
    assert built.config.vision.norm_eps == eps
    assert built.ln_final.eps == 1e-5
