"""Plugins: the layer of docs/plugin.md works everywhere, and only what the user names is loaded."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from in_process import diffclip_command
from tiny import SIZES, TOKENS, random_images
from tiny_recipe import tiny_recipe

import diffclip
from diffclip import CLIP, InputError, plugins
from diffclip.attention import ATTENTION_LAYERS
from diffclip.config import VARIANTS, variant_config
from diffclip.evaluation.run import TASKS
from diffclip.maps.recording import recording
from diffclip.model import empty_model
from diffclip.training.plan import forward_flops

DOCUMENT = Path(__file__).parents[1] / "docs" / "plugin.md"
LINEAR = '''
import torch, diffclip
from diffclip.attention.heads import split_heads

@diffclip.register_attention("linear")
class LinearAttention(diffclip.attention.SelfAttention):
    """Linear attention (arXiv:2006.16236)."""

    def __init__(self, dim, num_heads, device=None, **rest):
        super().__init__(dim, num_heads, device=device, **rest)
        self.noise = torch.nn.Parameter(torch.empty(dim, device=device))
        self.extra = torch.nn.Linear(dim, dim, device=device)

    @classmethod
    def starting_value(cls, name, shape, start):
        return start(name, shape, std=0.5) if name == "noise" else super().starting_value(name, shape, start)

    def _attend(self, x, causal):
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        weights = q @ k.mT
        weights = weights.tril() if causal else weights
        out = (weights @ v / weights.sum(-1, keepdim=True)).transpose(1, 2).flatten(2)
        return out + self.extra(x) * self.noise

diffclip.register_variant("CLIP-linear", vision="linear", text="linear")
'''

KEEPS = '''
import torch, diffclip
from diffclip.attention.softmax import SoftmaxAttention

@diffclip.register_attention("keeps")
class Keeps(SoftmaxAttention):
    """Parameters of every kind, and tensors that are no parameters."""

    def __init__(self, dim, num_heads, device=None, **rest):
        super().__init__(dim, num_heads, device=device, **rest)
        self.scales = torch.nn.ParameterList([torch.full((1,), 0.5, device=device)])
        self.drawn = torch.nn.Parameter(torch.randn(dim, device=device))
        self.register_buffer("shift", torch.arange(float(dim)), persistent=False)
        self.register_buffer("order", torch.arange(dim).flip(0))
        self.plain = torch.tensor([3.0])

    def _attend(self, x, causal):
        x = (x + self.drawn + self.shift)[..., self.order] * self.plain
        return super()._attend(x, causal) * self.scales[0]

diffclip.register_variant("CLIP-keeps", vision="keeps", text="keeps")
'''


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test registers."""
    monkeypatch.setenv("DIFFCLIP_PLUGINS", "")
    tables: list[Any] = [ATTENTION_LAYERS, VARIANTS, TASKS, plugins._digests]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    plugins._loading.clear()


def forget_plugins() -> None:
    """Let a plugin be loaded again, as a new process would."""
    plugins._digests.clear()
    plugins._loading.clear()
    ATTENTION_LAYERS.pop("relu")


def documented_code() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.S | re.M)


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    """The plugin of docs/plugin.md."""
    file = tmp_path / "mine.py"
    file.write_text(documented_code()[0])
    return file


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    file = tmp_path / "linear.py"
    file.write_text(LINEAR)
    return file


def recipe_file(folder: Path, scenes: Path, **fields: Any) -> Path:
    data = {split: str(scenes / "captions" / split) for split in ("train", "val")}
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe(epochs=1, data=data, **fields)))
    return file


def test_the_documented_layer_is_short_and_starts_as_clip_does(relu: Path) -> None:
    assert len([line for line in relu.read_text().splitlines() if line.strip()]) <= 25
    plugins.load_plugin(str(relu))
    model, clip = (CLIP(variant_config(name, SIZES), seed=3) for name in ("CLIP-relu", "CLIP"))
    ours, theirs = model.state_dict(), clip.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert {name.rpartition(".")[2] for name in ours.keys() - theirs.keys()} == {"scale"}
    assert model.visual.blocks[0].attn.scale.eq(1).all()
    assert diffclip.create_model("CLIP-relu-ViT-Ti-16", seed=0).config.vision.attention == "relu"
    with pytest.raises(InputError, match="'relu' is ReluAttention already"):
        diffclip.register_attention("relu")(ATTENTION_LAYERS["softmax"])
    with pytest.raises(InputError, match="variant 'CLIP' is registered already"):
        diffclip.register_variant("CLIP", vision="relu")


def test_own_random_parameters_start_equal_for_equal_seeds(linear: Path) -> None:
    plugins.load_plugin(str(linear))
    first, second, other = (
        CLIP(variant_config("CLIP-linear", SIZES), seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "visual.blocks.0.attn.noise"
    assert not torch.equal(first[name], other[name])
    assert 0.3 < float(first[name].std()) < 0.7


def test_all_that_a_layer_keeps_is_there_again_after_loading(tmp_path: Path) -> None:
    file = tmp_path / "keeps.py"
    file.write_text(KEEPS)
    plugins.load_plugin(str(file))
    config = variant_config("CLIP-keeps", SIZES)
    model, same = (CLIP(config, seed=1) for _ in range(2))
    layer = model.visual.blocks[0].attn
    assert layer.scales[0].item() == 0.5
    assert torch.equal(layer.drawn, same.visual.blocks[0].attn.drawn)
    assert not torch.equal(layer.drawn, CLIP(config, seed=2).visual.blocks[0].attn.drawn)

    diffclip.save_weights(model, tmp_path / "saved")
    loaded = diffclip.load(tmp_path / "saved")[0]
    for encode, inputs in (("encode_image", random_images()), ("encode_text", TOKENS)):
        assert torch.equal(getattr(loaded, encode)(inputs), getattr(model.eval(), encode)(inputs))
    assert sum(forward_flops(empty_model(config)).values()) > 0
    from diffclip.integrations.transformers.conversion import from_diffclip

    with pytest.raises(InputError, match=r"attn\.shift.* transformers loses it: register it as a persistent"):
        from_diffclip(model)


def test_train_evaluate_and_attend_with_a_plugin_and_refuse_without(
    relu: Path, scenes: Path, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path, scenes, model="CLIP-relu", plugins=["mine.py"])
    run = tmp_path / "run"
    environment = {**os.environ, "DIFFCLIP_PLUGINS": ""}
    command = [sys.executable, "-m", "diffclip.cli", "train", str(recipe), "-r", str(run)]
    command += ["--devices", "2", "--strategy", "fsdp", "--accelerator", "cpu"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    kept = yaml.safe_load((run / "recipe.yaml").read_text())["plugins"]
    assert list(kept) == ["mine.py"]

    refused = diffclip_command("evaluate", run, "--data", scenes / "shapes")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "unknown attention 'relu'" in refused.stderr
    assert "--plugin" in refused.stderr
    refused = diffclip_command("train", "--resume", "--run", run, "epochs=2")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "needs the plugin mine.py: give it with --plugin" in refused.stderr

    measured = diffclip_command("evaluate", run, "--data", scenes / "shapes", "--json", "--plugin", relu)
    assert measured.returncode == 0, measured.stderr
    image = tmp_path / "image.png"
    from PIL import Image

    Image.new("RGB", (32, 32)).save(image)
    ended = diffclip_command(
        *("attend", image, "--model", run, "--output", tmp_path / "map.png", "--plugin", relu),
        *("--text", "a red dot", "--method", "grad-eclip"),
    )
    assert ended.returncode == 0, ended.stderr

    relu.write_text(relu.read_text() + "\n# changed\n")
    forget_plugins()
    refused = diffclip_command("train", recipe, "--resume", "--run", run, "epochs=2")
    assert refused.returncode == 2
    assert "the plugin mine.py has changed since" in refused.stderr


def test_a_layer_without_maps_is_measured_and_says_so_where_maps_are_needed(
    linear: Path, scenes: Path, tmp_path: Path
) -> None:
    plugins.load_plugin(str(linear))
    sizes = {**SIZES, "text": {**SIZES["text"], "context_length": 24, "vocab_size": 49408}}
    model = CLIP(variant_config("CLIP-linear", sizes), seed=0)
    assert model.encode_text(TOKENS).shape == (2, 16)
    assert model.encode_image(random_images()).shape == (2, 16)
    diffclip.save_weights(model, tmp_path / "saved")
    ended = diffclip_command("evaluate", tmp_path / "saved", "--data", scenes / "shapes")
    assert ended.returncode == 0, ended.stderr
    ended = diffclip_command(
        "evaluate", tmp_path / "saved", "--task", "mechanics", "--data", scenes / "shapes"
    )
    assert ended.returncode == 2
    assert "LinearAttention offers no attention maps" in ended.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_like_this\n", "line 1: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("def (\n", "SyntaxError"),
        ("import diffclip\ndiffclip.register_variant('X', vision='sotfmax')\n", "did you mean 'softmax'"),
        ("import diffclip\ndiffclip.register_attention('x')(int)\n", "int is no subclass of"),
        ("import diffclip\ndiffclip.register_attention(int)\n", '@register_attention("NAME")'),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("import diffclip\ndiffclip.register_variant('X', color='greenish')\n", "'greenish' is not one"),
        (
            LINEAR.replace("    def _attend", "    options = frozenset({'lambda_int'})\n    def _attend"),
            "'lambda_init'",
        ),
    ],
)
def test_a_faulty_plugin_is_refused_in_one_line(code: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(code)
    ended = diffclip_command("evaluate", "x", "--plugin", file)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert words in ended.stderr


def test_a_layer_of_the_wrong_shape_is_named_and_may_be_mended(
    relu: Path, scenes: Path, tmp_path: Path
) -> None:
    right = relu.read_text()
    relu.write_text(right.replace("(x, causal)[0]", "(x, causal)[0][..., 1:]"))
    command = ["train", recipe_file(tmp_path, scenes, model="CLIP-relu", plugins=["mine.py"])]
    command += ["--run", tmp_path / "run", "--resume"]
    refused = diffclip_command(*command)
    assert refused.returncode == 2
    assert "ReluAttention._attend maps x [8, 5, 16] to [8, 5, 15]: return [B, N, C]" in refused.stderr
    relu.write_text(right)
    forget_plugins()
    ended = diffclip_command(*command)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_parameter_that_nothing_uses_is_named(relu: Path, scenes: Path, tmp_path: Path) -> None:
    unused = "\n        self.unused = torch.nn.Parameter(torch.ones(1, device=device))\n\n    def _attend("
    relu.write_text(relu.read_text().replace("\n\n    def _attend(", unused, 1))
    recipe = recipe_file(tmp_path, scenes, model="CLIP-relu", plugins=["mine.py"])
    command = [sys.executable, "-m", "diffclip.cli", "train", str(recipe), "-r", str(tmp_path / "run")]
    command += ["--devices", "2", "--strategy", "ddp", "--accelerator", "cpu"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    line = (
        "diffclip: the loss does not depend on visual.blocks.0.attn.unused, as DDP expects: use it, or give"
    )
    assert ended.stderr.count(line) == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            "return out, AttentionMaps(maps.first.mean(1))",
            r"a map \[2, 17, 17\] of 17 tokens: return maps \[B, H",
        ),
        ("return 2 * out, maps", "different outputs for the same x"),
        ("self.is_differential = True; return out, maps", "gives one map, and is_differential is True"),
    ],
)
def test_wrong_maps_of_a_layer_are_refused(wrong: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "import diffclip\nfrom diffclip.attention import AttentionMaps\n"
        "from diffclip.attention.softmax import SoftmaxAttention\n"
        "@diffclip.register_attention('wrong')\nclass Wrong(SoftmaxAttention):\n"
        "    def attend_through_maps(self, x, causal, detach_norm=False):\n"
        f"        out, maps = super().attend_through_maps(x, causal, detach_norm)\n        {wrong}\n"
        "diffclip.register_variant('CLIP-wrong', vision='wrong')\n"
    )
    plugins.load_plugin(str(file))
    model = CLIP(variant_config("CLIP-wrong", SIZES), seed=0)
    with recording(model, "visual"), pytest.raises(InputError, match=words):
        model.encode_image(random_images())


@pytest.mark.parametrize("source", ["missing.py", "no_such_module_here", "folder/missing.py"])
def test_a_missing_plugin_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"there is no such (file|module); give FILE\.py"):
        plugins.load_plugin(source)


def test_installed_plugins_load_for_unknown_names_alone(
    linear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(linear.parent)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint("mine", "linear", group)])
    variant_config("DiffCLIP", SIZES)
    assert "linear" not in ATTENTION_LAYERS
    assert variant_config("CLIP-linear", SIZES).vision.attention == "linear"
    assert plugins.loaded_plugins().keys() == {"linear"}


def test_the_documented_task_is_run(scenes: Path, tmp_path: Path, model_folder: Path) -> None:
    file = tmp_path / "task.py"
    task, _, _ = documented_code()[2].partition("\n@diffclip.register_model_source")
    file.write_text(f"import diffclip, torch\n{task}")
    output = tmp_path / "out.jsonl"
    ended = diffclip_command(
        "evaluate",
        model_folder,
        "--task",
        "norms",
        "--data",
        scenes / "shapes",
        "--output",
        output,
        "--plugin",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    (record,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert (record["task"], record["metric"]) == ("norms", "length")


def test_a_study_loads_its_plugins_before_its_arms(relu: Path, tmp_path: Path) -> None:
    from diffclip.study.spec import read_study

    (tmp_path / "tiny.yaml").write_text(
        yaml.safe_dump(tiny_recipe(data={"train": "nowhere", "val": "nowhere"}))
    )
    arms = {name: {"change": {"model": name}} for name in ("CLIP", "DiffCLIP", "CLIP-relu")}
    study = {"title": "t", "recipe": str(tmp_path / "tiny.yaml"), "data": "flickr8k", "plugins": ["mine.py"]}
    study["models"] = {"seeds": [0, 1], "suite": "brief", "arms": arms}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    recipe = read_study(file).recipes["CLIP-relu"]
    assert recipe.config().vision.attention == "relu"
    assert list(recipe.plugins) == ["mine.py"]
