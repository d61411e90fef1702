"""Recipes: their fields, changes and errors, the recipes of the package, and the optimizer of a recipe."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import changed

from diffclip import CLIP, InputError
from diffclip.config import (
    OPENAI_MEAN,
    OPENAI_STD,
    CLIPConfig,
    name_of,
    named_config,
    variant_config,
)
from diffclip.sources.load import read_config
from diffclip.training.optimizer import learning_rate, make_optimizer
from diffclip.training.recipe import Recipe, model_fields, parse_recipe, read_recipe
from diffclip.training.recipe_file import find_recipe, recipe_folders
from diffclip.weights import save_weights

EXEMPT = ["registers", "class_token", "positions"]


def test_changes_set_inner_keys_and_keep_other_fields(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file, ["epochs=7", "lr=1e-3", "data.workers=2", "image_size=64"])
    assert (recipe.epochs, recipe.lr, recipe.data.workers, recipe.batch_size) == (7, 1e-3, 2, 8)
    assert recipe.config().vision.image_size == 64
    assert read_recipe(recipe_file, ["architecture.vision.layers=1"]).config().vision.layers == 1
    assert read_recipe(recipe_file, ["data.statistics=openai"]).config().preprocess.mean == OPENAI_MEAN
    tiny = read_recipe(recipe_file, ["model=DiffCLIP-ViT-Ti-16", "architecture=null", "image_size=64"])
    assert tiny.config().vision.image_size == 64
    values = {"my #1/val": "my #1/val", json.dumps("🙂 #2"): "🙂 #2", " x ": "x", "'a #b'": "a #b"}
    for text, value in values.items():
        assert read_recipe(recipe_file, [f"data.val={text}"]).data.val == value
    narrow = read_recipe(recipe_file, ["architecture=null", "architecture.embed_dim=8"])
    assert narrow.config().embed_dim == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.trian=x", "unknown recipe key 'data.trian': did you mean 'data.train'?"),
        ("epochs=ten", "epochs=ten: 'ten' is not a whole number"),
        ("data.scale=[0.9, 0.5]", "two shares"),
        ("model=DifCLIP", "did you mean 'DiffCLIP'?"),
        ("init=mached", "init=mached: choose 'matched' or 'published'"),
        ("attention_backend=sdap", "attention_backend=sdap: choose 'auto', 'eager', 'sdpa' or 'triton'"),
        ("architecture.vision.heads=5", "width 32 is not a multiple of heads 5"),
        ("architecture.vision.wide=5", "vision.wide: no such key"),
        ("architecture.vision=3", "architecture.vision is 3: it must map sizes"),
        ("architecture=null", "has no size"),
        ("epochs", "write key=value"),
        ("data.caption_key={}", "{} is not a text, or {} has too few items: give at least 1"),
        ("seed=true", "seed=true: True is not a whole number"),
        ("warmup_epochs=.inf", "warmup_epochs=.inf: inf is not a finite number"),
        ("epochs.x=5", "epochs is 3 and has no inner keys"),
        ("architecture.vision.attention=softmax", "the model DiffCLIP decides that"),
        ("architecture.preprocess.mean=[0, 0, 0]", "data.statistics decides"),
        ("architecture.lambda_init=0.3", "architecture has lambda_init"),
        ("model=DiffCLIP-ViT-Ti-16", "has sizes of its own: leave architecture out"),
        ("data.train=[a.tar, {weight: 2}]", "{'weight': 2} is not a source (shards: no value is given)"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(change: str, words: str, recipe_file: Path) -> None:
    with pytest.raises(InputError) as error:
        read_recipe(recipe_file, [change])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_folder_with_the_name_of_a_recipe_does_not_hide_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cc3m_vitb16").mkdir()
    assert find_recipe("cc3m_vitb16").name == "cc3m_vitb16.yaml"


def test_errors_name_the_file_with_the_wrong_value(recipe_file: Path) -> None:
    recipe_file.write_text(recipe_file.read_text().replace("lr: 0.001", "lr: abc"))
    with pytest.raises(InputError, match=rf"^{recipe_file}: lr: 'abc' is not a number"):
        read_recipe(recipe_file, ["epochs=2"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"model: [", "is not YAML"),
        (b"- a\n- b", "is neither a recipe nor a spec"),
        (b"model: \xff\xfe", "is not YAML"),
        (b"model: CLIP\nseed: 2024-99-99\n", "is not YAML"),
        (b"seed: 0\nmodel: CLIP\nseed: 7\n", "is not YAML: the key seed stands twice: leave one out"),
        (b"vision: a\nlanguage_model: b\n", "has a language model: use `diffclip vlm train`"),
    ],
)
def test_errors_name_files_that_are_not_recipes(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(InputError, match=rf"bad\.yaml {words}"):
        read_recipe(tmp_path / "bad.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_recipe(tmp_path)


def test_recipes_inherit_from_a_base_and_refuse_cycles(fields: dict[str, Any], tmp_path: Path) -> None:
    base, more, third = (tmp_path / f"{name}.yaml" for name in ("base", "more", "third"))
    base.write_text(yaml.safe_dump(fields))
    more.write_text(yaml.safe_dump({"base": "base.yaml", "lr": 7e-4, "data": {"flip": 0.25}}))
    recipe = read_recipe(more, ["seed=3"])
    expected = fields | {"lr": 7e-4, "seed": 3, "data": fields["data"] | {"flip": 0.25}}
    assert recipe == parse_recipe(expected, "test")
    third.write_text(yaml.safe_dump({"base": "more.yaml", "lr": 8e-4}))
    assert read_recipe(third, ["seed=3"]) == recipe.model_copy(update={"lr": 8e-4})
    third.write_text("base: third.yaml")
    with pytest.raises(InputError, match=r"third\.yaml is its own base"):
        read_recipe(third)
    third.write_text("base: more.yaml")
    more.write_text("base: third.yaml")
    with pytest.raises(InputError, match=r"third\.yaml is its own base"):
        read_recipe(third)
    third.write_text("base: 3")
    with pytest.raises(InputError, match="unknown recipe '3'"):
        read_recipe(third)


@pytest.fixture(scope="module")
def saved(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small converted CLIP with all architecture details in which OpenAI's models differ."""
    sizes = fields["architecture"]
    towers = {name: sizes[name] | {"attention": "differential-added"} for name in ("vision", "text")}
    towers["vision"] |= {"pre_norm": True, "patch_bias": False, "activation": "quick_gelu", "norm_eps": 1e-5}
    preprocess = {"mean": OPENAI_MEAN, "std": OPENAI_STD, "interpolation": "bicubic", "resize": 40}
    config = CLIPConfig(embed_dim=16, lambda_init=0.0, preprocess=preprocess, **towers)
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_weights(CLIP(config, seed=0), folder)
    return folder


def of_weights(fields: dict[str, Any], saved: Path | str, **more: Any) -> dict[str, Any]:
    rest = {key: value for key, value in fields.items() if key != "architecture"}
    return rest | {"model": "of-weights", "weights": str(saved)} | more


def test_model_of_weights_takes_the_architecture_from_the_weights(fields, saved, tmp_path) -> None:
    recipe = parse_recipe(of_weights(fields, saved), "test")
    assert recipe.model == "DiffCLIP-added"
    assert recipe.data.statistics == "openai"
    assert recipe.config() == read_config(saved)
    # the resolved recipe names the architecture, so it no longer needs the weights
    (tmp_path / "resolved.yaml").write_text(recipe.to_yaml().replace(str(saved), "gone"))
    resolved = read_recipe(tmp_path / "resolved.yaml")
    assert resolved == recipe.model_copy(update={"weights": "gone"})
    config = parse_recipe(of_weights(fields, saved, image_size=48, loss="siglip"), "test").config()
    assert (config.vision.image_size, config.logit_bias) == (48, True)
    assert config.preprocess.resize == 60, "the margin around the crop keeps its share"
    data = fields["data"] | {"statistics": "imagenet"}
    assert parse_recipe(of_weights(fields, saved, data=data), "test").data.statistics == "imagenet"


@pytest.mark.parametrize("variant", ["DiffCLIP-dynamic", "CLIP-registers"])
def test_model_fields_reproduce_the_configuration_of_the_weights(variant: str) -> None:
    config = named_config(f"{variant}-ViT-B-32")
    config.vision.pre_norm = True
    fields = model_fields(config, "w")
    assert fields["model"] == variant
    assert variant_config(fields["model"], fields["architecture"]) == config


def test_wrong_uses_of_model_of_weights_raise_one_line_errors(fields: dict[str, Any], saved: Path) -> None:
    model = CLIP(read_config(saved), seed=0)
    model.config.preprocess.mean = (0.5, 0.5, 0.5)
    save_weights(model, saved.parent / "other")
    from_weights = {"model": "of-weights", "weights": str(saved)}
    for wrong, words in (
        (fields | from_weights, "has sizes of its own: leave architecture out"),
        (fields | {"model": "of-weights", "architecture": None}, "needs weights: give a saved model"),
        (of_weights(fields, "nowhere"), "nowhere does not exist: give a run folder"),
        (of_weights(fields, saved.parent / "other"), "was trained with mean (0.5, 0.5, 0.5)"),
    ):
        with pytest.raises(InputError) as error:
            parse_recipe(wrong, "test")
        assert words in str(error.value)
        assert "\n" not in str(error.value)


# recipes of `diffclip vlm train` and `diffclip study` have other schemas
FILES = sorted(
    file
    for folder in recipe_folders()
    for file in folder.glob("**/*.yaml")
    if not file.stem.startswith("vlm_") and file.parent.name != "study"
)
OF_WEIGHTS = [file for file in FILES if "\nmodel: of-weights\n" in file.read_text(encoding="utf-8")]


def plainly_read(file: Path, *changes: str) -> Recipe:
    """Read a recipe; name a model in place of `model: of-weights`, since its weights are not available here."""
    model_changes = ["model=DiffCLIP-ViT-B-16"] if file in OF_WEIGHTS else []
    return read_recipe(file, [*model_changes, *changes])


def head(file: Path) -> str:
    """Return the comment at the start of a recipe."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


def test_all_promised_recipes_exist_and_load_with_the_papers_models() -> None:
    promised = {"flickr8k_cpu", "flickr8k_gpu", "cc3m_vitb16", "cc12m_vitb16", "laion_vits16", "laion_vitl14"}
    assert promised <= {file.stem for file in FILES}
    of_weights = {file.stem for file in OF_WEIGHTS}
    assert of_weights == {"finetune_vitb16", "finetune_differential", "flickr8k_finetune"}
    for file in FILES:
        plain = plainly_read(file)
        size = "" if plain.architecture else "-" + plain.model.partition("-")[2]
        for variant in ("CLIP", "DiffCLIP", "DiffCLIP-dynamic", "DiffCLIP-vision"):
            assert name_of(read_recipe(file, [f"model={variant}{size}"]).config()).startswith(variant + "-")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipe_headers_have_reproduces_command_expected_and_cost(file: Path) -> None:
    header = head(file)
    positions = [header.find(f"# {word}: ") for word in ("Reproduces", "Command", "Expected", "Cost")]
    assert positions[0] == 0
    assert positions == sorted(positions)
    assert -1 not in positions
    assert file.stem in header[positions[1] : positions[2]]
    assert max(map(len, header.splitlines())) <= 120


def test_defaults_and_paper_recipes_have_the_papers_settings() -> None:
    fields = {"model": "DiffCLIP-ViT-B-16", "epochs": 40, "batch_size": 4096, "data": {"train": "x"}}
    plain = parse_recipe(fields, "t")
    assert (plain.init, plain.precision) == ("matched", "auto")
    stated = {"epochs": 40, "batch_size": 4096, "lr": 5e-4, "weight_decay": 0.5, "warmup_epochs": 1}
    slips = {"betas": (0.9, 0.98), "eps": 1e-8, "lr_start": 1e-6, "lr_end": 1e-5, "loss": "clip"}
    published = [read_recipe(name) for name in ("cc3m_vitb16", "cc12m_vitb16")]
    for recipe in (plain, *published):
        for key, value in {**stated, **slips, "clip_grad_norm": None}.items():
            assert getattr(recipe, key) == value, key
        assert (recipe.data.scale, recipe.data.flip, recipe.data.statistics) == ((0.5, 1.0), 0.0, "imagenet")
        assert name_of(recipe.config()) == "DiffCLIP-ViT-B-16"
    assert [recipe.data.expected_samples for recipe in published] == [2_300_000, 7_900_000]
    assert {(recipe.init, recipe.precision) for recipe in published} == {("published", "bf16")}


def test_warmups_have_the_stated_numbers_of_steps() -> None:
    warmups = {"laion_vits16": 500, "laion_vitl14": 2000, "finetune_vitb16": 50, "finetune_differential": 500}
    for name, steps in warmups.items():
        recipe = plainly_read(find_recipe(name))
        assert recipe.data.expected_samples is not None
        planned = recipe.warmup_epochs * (recipe.data.expected_samples // recipe.batch_size)
        assert planned == pytest.approx(steps, rel=0.02), name


# --- the optimizer of a recipe ---


def test_vectors_lambdas_norms_biases_and_logit_scale_have_no_decay(recipe: Recipe) -> None:
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
    # in a group of their own, since they are never sharded over processes
    assert {names[id(p)].rpartition(".")[2] for p in plain[1]["params"]} == {
        *("logit_scale", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    }


def test_registers_class_token_and_positions_can_have_no_decay_in_any_model(recipe: Recipe) -> None:
    decayed = []
    for name, parts in (("CLIP", []), ("CLIP", EXEMPT), ("CLIP-registers", EXEMPT)):
        arm = changed(recipe, model=name, no_decay=parts)
        model = CLIP(arm.config(), seed=0)
        with_decay = {id(parameter) for parameter in make_optimizer(model, arm).param_groups[0]["params"]}
        decayed.append({own for own, parameter in model.named_parameters() if id(parameter) in with_decay})
    assert decayed[0] - decayed[1] == {"visual.cls_token", "visual.pos_embed", "positional_embedding"}
    assert decayed[2] == decayed[1]


def test_keys_that_do_not_go_together_are_noted(recipe: Recipe) -> None:
    assert changed(recipe, epochs=2, warmup_epochs=2).notes() == []
    for changes, words in (
        ({"epochs": 1, "warmup_epochs": 2}, "the warm-up of 2 epochs is longer than the run of 1"),
        ({"lr": 1e-6}, "lr 1e-06 is below lr_start 1e-06 or lr_end 1e-05"),
        ({"freeze": ["visual"]}, "freeze keeps random values"),
    ):
        [note] = changed(recipe, **changes).notes()
        assert words in note


def test_wandb_takes_a_project_or_all_its_settings(recipe_file: Path) -> None:
    assert read_recipe(recipe_file, ["wandb=mine"]).wandb.project == "mine"
    wandb = read_recipe(recipe_file, ["wandb.project=mine", "wandb.entity=us", "wandb.tags=[a, b]"]).wandb
    assert (wandb.entity, wandb.group, wandb.tags) == ("us", None, ["a", "b"])
    with pytest.raises(InputError, match=r"did you mean 'wandb\.group'"):
        read_recipe(recipe_file, ["wandb.project=mine", "wandb.grop=x"])


def test_learning_rate_has_linear_warmup_then_cosine_decay(recipe: Recipe) -> None:
    lrs = [learning_rate(step, 100, 10, recipe) for step in range(1, 101)]
    assert lrs[0] == pytest.approx(recipe.lr_start)
    assert lrs[9] == pytest.approx(recipe.lr)
    assert lrs[4] == pytest.approx(recipe.lr_start + (recipe.lr - recipe.lr_start) * 4 / 9)
    half = 0.5 * (1 + math.cos(math.pi / 2))
    assert lrs[54] == pytest.approx(recipe.lr_end + (recipe.lr - recipe.lr_end) * half)
    assert lrs[99] == pytest.approx(recipe.lr_end)
    assert lrs[9:] == sorted(lrs[9:], reverse=True)
    # a warm-up of 0 steps is allowed
    assert learning_rate(1, 10, 0, recipe) < recipe.lr
    assert learning_rate(10, 10, 0, recipe) == pytest.approx(recipe.lr_end)
