"""Models of other libraries that do not convert: measured as they are, with the numbers of clip_benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import diffclip_command
from torch.utils.data import DataLoader, Dataset

import diffclip
from diffclip import InputError
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.open_set import open_set
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.sources.load import load_clip, load_with_origin
from diffclip.sources.registry import READERS, register_model_source
from diffclip.sources.wrapped import WrappedModel

TEXT = {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "timm-tower": {
        "custom_text": True,
        "vision_cfg": {
            "timm_model_name": "test_vit",
            "timm_pool": "map",
            "timm_proj": "none",
            "image_size": 32,
        },
        "embed_dim": 64,
        "init_logit_bias": -10,
        "text_cfg": TEXT | {"pool_type": "last", "no_causal_mask": True},
    },
    "coca-tiny": {
        "embed_dim": 16,
        "vision_cfg": {
            **{"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
            **{"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        },
        "text_cfg": TEXT | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
        "custom_text": True,
    },
}


@pytest.fixture
def open_clip_weights(tmp_path: Path) -> Any:
    """Return a function that writes random weights of one of `ARCHITECTURES` and gives the model's name for MODEL."""
    open_clip = pytest.importorskip("open_clip")

    def write(name: str) -> str:
        (tmp_path / f"{name}.json").write_text(json.dumps(ARCHITECTURES[name]))
        open_clip.add_model_config(tmp_path / f"{name}.json")
        torch.manual_seed(0)
        torch.save(open_clip.create_model(name).state_dict(), tmp_path / f"{name}.pt")
        return f"open_clip:{name}/{tmp_path / name}.pt"

    return write


def measure(source: str, *entries: Entry) -> dict[str, float | None]:
    loaded = load_with_origin(source, only_clip=False)
    measured = [*run_entries(loaded, entries, ResultsFile(None), Sets())]
    assert not [entry.error for entry in measured if entry.error]
    return {record.metric: record.value for entry in measured for record in entry.records}


class Labeled(Dataset[Any]):
    """The images and classes of a set, as clip_benchmark takes them."""

    def __init__(self, data: EvaluationSet, prepare: Any) -> None:
        self.data, self.prepare, self.classes = data, prepare, data.classnames

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.prepare(self.data.source.image(self.data.indices[i])), self.data.labels[i]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_open_clip_models_get_the_numbers_of_clip_benchmark(name, open_clip_weights, scenes: Path) -> None:
    import open_clip

    classification = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification")
    from clip_benchmark.metrics import zeroshot_retrieval

    source = open_clip_weights(name)
    ours = measure(source, Entry(None, str(scenes / "colours")), Entry(None, str(scenes / "captions")))
    model, _, prepare = open_clip.create_model_and_transforms(name, source.partition("/")[2])
    tokenizer = open_clip.get_tokenizer(name)
    colors, captions = (open_set(scenes / folder, "test") for folder in ("colours", "captions"))
    loader = DataLoader(Labeled(colors, prepare), 16)
    theirs = classification.evaluate(
        model.eval(),
        loader,
        tokenizer,
        colors.classnames,
        colors.templates,
        "cpu",
        amp=False,
    )
    for metric in ("acc1", "mean_per_class_recall"):
        assert ours[metric] == pytest.approx(theirs[metric], abs=1e-9)
    captioned = [
        (prepare(captions.source.image(i)), texts)
        for i, texts in zip(captions.indices, captions.captions, strict=True)
    ]
    batches = DataLoader(
        captioned, 16, collate_fn=lambda rows: (torch.stack([r[0] for r in rows]), [r[1] for r in rows])
    )
    found = zeroshot_retrieval.evaluate(model, batches, tokenizer, "cpu", amp=False, recall_k_list=[5])
    for metric in ("image_retrieval_recall@5", "text_retrieval_recall@5"):
        assert ours[metric] == pytest.approx(found[metric], abs=1e-6)
    with pytest.raises(InputError, match="cannot be converted"):
        load_clip(source)


@pytest.fixture
def siglip(tmp_path: Path) -> str:
    """Save a SigLIP of transformers with its processor, and return its name for MODEL."""
    transformers = pytest.importorskip("transformers")
    from diffclip.integrations.transformers import tokenizer_of

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SiglipConfig(
        vision_config=size | {"image_size": 32, "patch_size": 8},
        text_config=size | {"vocab_size": 49408, "max_position_embeddings": 16, "projection_size": 32},
    )
    transformers.SiglipModel(config).save_pretrained(tmp_path / "siglip")
    edge = {"height": 32, "width": 32}
    transformers.SiglipImageProcessor(size=edge, resample=3).save_pretrained(tmp_path / "siglip")
    tokenizer = tokenizer_of(diffclip.CLIPConfig(text={"context_length": 16}))
    tokenizer.model_input_names = ["input_ids"]
    tokenizer.save_pretrained(tmp_path / "siglip")
    return f"transformers:{tmp_path / 'siglip'}"


def test_a_siglip_of_transformers_is_measured_with_its_own_processor(siglip: str, scenes: Path) -> None:
    from transformers import AutoImageProcessor, AutoModel

    model, preprocess, tokenizer = diffclip.load(siglip)
    folder = siglip.partition(":")[2]
    theirs, processor = AutoModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder)
    image = open_set(scenes / "colours", "test").source.image(0)
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        assert torch.equal(preprocess(image), pixels[0])
        expected = theirs.get_image_features(pixel_values=pixels).pooler_output
        torch.testing.assert_close(model.encode_image(pixels), expected)
        tokens = tokenizer(["a cat", "a dog on a mat"])
        assert tokens["input_ids"].shape == (2, 16)
        assert model.encode_text(tokens).shape == (2, 32)
    entry = Entry("robustness", str(scenes / "colours"), ("test[:8]",))
    assert {"adversarial_accuracy", "local_lipschitz"} <= measure(siglip, entry).keys()
    assert "acc1" in measure(siglip, Entry("zero-shot", str(scenes / "colours")))


def test_a_siglip_2_of_images_of_any_shape_is_refused(siglip: str) -> None:
    from transformers import Siglip2Config, Siglip2ImageProcessor, Siglip2Model

    folder = siglip.partition(":")[2]
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Siglip2Config(
        vision_config=size | {"patch_size": 8, "num_patches": 16},
        text_config=size | {"vocab_size": 49408, "max_position_embeddings": 16, "projection_size": 32},
    )
    Siglip2Model(config).save_pretrained(folder)
    Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(folder)
    with pytest.raises(InputError, match="spatial_shapes beside an image's pixels, as NaFlex models do"):
        load_with_origin(siglip, only_clip=False)


@pytest.mark.parametrize(
    "source", ["open_clip:ViT-B-32/openai", "timm:vit_tiny_patch16_224", "transformers:owner/name"]
)
def test_without_a_network_a_name_of_the_hub_is_tried_once(source: str, monkeypatch) -> None:
    import huggingface_hub

    asked = []

    def fail(api: object, repository: str, **_: object) -> None:
        asked.append(repository)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    with pytest.raises(InputError, match=r"cannot be fetched \(Name or .*check the name and the connection"):
        load_with_origin(source, only_clip=False)
    assert len(asked) == 1


def test_an_image_model_of_timm_does_what_it_can(scenes: Path, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    # a head of another number of classes does not matter
    torch.save({"state_dict": timm.create_model("test_vit", num_classes=3).state_dict()}, tmp_path / "vit.pt")
    torch.save({"cls_token": torch.zeros(1, 1, 9)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"cannot be read \(Error.* for VisionTransformer: Missing key"):
        load_with_origin(f"timm:test_vit/{tmp_path / 'other.pt'}", only_clip=False)
    with pytest.raises(InputError, match=r"'nothing': timm\.list_models\(\) has the names$"):
        load_with_origin("timm:nothing", only_clip=False)
    loaded = load_with_origin(f"timm:test_vit/{tmp_path / 'vit.pt'}", only_clip=False)
    colors = str(scenes / "colours")
    entries = (Entry("zero-shot", colors), Entry("mechanics", colors))
    refused, mechanics = run_entries(loaded, entries, ResultsFile(None), Sets())
    assert refused.left_out == (
        f"zero-shot compares images with texts, and timm:test_vit/{tmp_path / 'vit.pt'} has no texts: "
        "use linear-probe or few-shot"
    )
    items = [(torch.full((3, 8, 8), 20 * i, dtype=torch.uint8), i % 2) for i in range(12)]
    probe = diffclip.evaluate(loaded, "linear-probe", items, classnames=["dark", "light"], train=items)
    assert "the encoder's features" in probe[0].protocol
    assert {"sink_ratio", "entropy"} <= {record.metric for record in mechanics.records}
    done = diffclip_command("evaluate", loaded.weights, "--data", colors, "--task", "zero-shot")
    assert done.returncode == 2
    assert "has no texts: use linear-probe or few-shot" in done.stderr


@pytest.mark.parametrize("options", [{"attn_layer": "diff"}, {"gated": True}, {"qk_norm": True}])
def test_the_attention_of_timm_is_recorded_with_equal_outputs(options: dict[str, Any]) -> None:
    timm = pytest.importorskip("timm")
    from diffclip.maps.recording import recording
    from diffclip.sources.timm import _with_maps

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 0}
    gated = options.pop("gated", False)
    tower = timm.models.VisionTransformer(**sizes, **options).eval()
    for block in tower.blocks if gated else ():
        block.attn = timm.layers.Attention(32, 2, gated=True)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = tower(images)
        model = _with_maps(tower, "it", 32)
        assert model is not None
        torch.testing.assert_close(model.encode_image(images), before)
        with recording(model, "visual") as maps:
            model.encode_image(images)
    assert [layer.first.shape for layer in maps] == [(2, 2, 17, 17)] * 2
    assert all((layer.second is None) == ("attn_layer" not in options) for layer in maps)


def test_a_registered_source_is_a_model(scenes: Path) -> None:
    class Color(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(3))

        def encode_image(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) * self.gain

        def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.float() * self.gain

    from torchvision.transforms import v2

    prepare = v2.Compose([v2.Resize((16, 16)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    normalized = v2.Compose([*prepare.transforms, v2.Normalize((0.5,) * 3, (0.5,) * 3)])

    def tokenize(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[word in text for word in ("red", "green", "blue")] for text in texts]) + 0.1

    register_model_source("colors")(
        lambda name: (Color(), normalized if name == "good" else prepare, tokenize)
    )
    try:
        assert isinstance(diffclip.load("colors:good")[0], WrappedModel)
        accuracy = measure("colors:good", Entry("zero-shot", str(scenes / "colours")))["acc1"]
        assert accuracy is not None
        with pytest.raises(InputError, match="does not end in torchvision's Normalize"):
            diffclip.load("colors:bad")
        with pytest.raises(InputError, match="is taken"):
            register_model_source("colors")
    finally:
        del READERS["colors"]
