"""Export both towers as ONNX files that need neither torch nor this package.

An export folder has image.onnx, text.onnx, and config.json with the preparation of images, facts about the tokenizer
and the logit scale. Features have unit length, as those of `CLIP.forward`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import diffclip
from diffclip.config import VOCABULARY, name_of
from diffclip.convert.from_libraries import silence_warnings
from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.embed import evaluation_mode
from diffclip.files import write_atomically, write_text
from diffclip.model import CLIP

OPSET = 20  # the first opset with a Gelu operator; onnxruntime has it since 1.17
TOLERANCE = 1e-4
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
_SEED = 0


class Tower(nn.Module):
    """Encode images or texts with one tower of a CLIP, as unit-length features [B, D]."""

    def __init__(self, model: CLIP, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name
        self.file, self.output = f"{name}.onnx", f"{name}_features"
        self.input = "images" if name == "image" else "tokens"
        self.encode: Callable[..., Tensor] = model.encode_image if name == "image" else model.encode_text

    def forward(self, inputs: Tensor) -> Tensor:
        """Encode images [B, 3, S, S] (float32) or ids [B, L ≤ context_length] (int64) to [B, D]."""
        return self.encode(inputs, normalize=True)

    def axes(self) -> dict[int, Any]:
        """Return the axes whose sizes may differ between calls, with their dimensions."""
        batch = torch.export.Dim("batch")
        if self.name == "image":
            return {0: batch}
        return {0: batch, 1: torch.export.Dim("length", max=self.model.config.text.context_length)}

    def random_inputs(self, batch: int, length: int | None = None) -> Tensor:
        """Draw seeded inputs: images of noise, or texts of `length` random ids (None: the context length)."""
        generator = torch.Generator().manual_seed(_SEED)
        vision, text = self.model.config.vision, self.model.config.text
        if self.name == "image":
            return torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
        length, end = length or text.context_length, text.vocab_size - 1
        tokens = torch.randint(end, (batch, length), generator=generator)
        return tokens.scatter(1, torch.randint(length, (batch, 1), generator=generator), end)


@dataclass(frozen=True)
class Exported:
    """An exported tower. `size` is the bytes of its file and weights. `error` is the largest distance between the
    feature vectors of onnxruntime and torch for the same input, both of length 1."""

    tower: Tower
    file: Path
    size: int
    error: float


def export_onnx(
    model: CLIP, folder: str | Path, tokenizer: Any = None, on_tower: Callable[[], None] = lambda: None
) -> list[Exported]:
    """Write both towers to `folder`. If a tower fails its check, nothing is written.

    Args:
        model: a model on the CPU in float32. Its attention uses the backend "eager" during the export.
        folder: a new or empty folder.
        tokenizer: a fast tokenizer of transformers, to be written as tokenizer.json; None: no such file.
        on_tower: called when a tower is done.

    Raises:
        InputError: the folder is not empty or cannot be written, the model is not on the CPU in float32, or its
            features are not finite.
        DiffCLIPError: the features of onnxruntime are further than `TOLERANCE` from those of torch.
    """
    folder = Path(folder)
    scale = model.logit_scale
    if scale.device.type != "cpu" or scale.dtype != torch.float32:
        raise InputError(f"the model is {scale.dtype} on {scale.device}: move it to the CPU in float32 first")
    exported = []
    with write_atomically(folder) as temporary, evaluation_mode(model):
        temporary.mkdir()
        for tower in (Tower(model, "image"), Tower(model, "text")):
            file = temporary / tower.file
            _write_tower(tower, file)
            error = _check(tower, file)
            # weights that are too large for one protobuf message are in a file beside the graph
            size = sum(part.stat().st_size for part in temporary.glob(f"{tower.file}*"))
            exported.append(Exported(tower, folder / tower.file, size, error))
            on_tower()
        if tokenizer is not None:
            from tokenizers import Tokenizer

            copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            copy.enable_truncation(model.config.text.context_length)
            copy.enable_padding(pad_id=0, pad_token=copy.id_to_token(0))
            copy.save(str(temporary / TOKENIZER_FILE))
        text = json.dumps(describe_export(model, tokenizer is not None), indent=2)
        write_text(temporary / CONFIG_FILE, text + "\n")
    return exported


def _write_tower(tower: Tower, file: Path) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    inputs, axes = tower.random_inputs(2), (tower.axes(),)
    layers = [layer for tower_layers in tower.model.attention_layers().values() for layer in tower_layers]
    backends = [layer.backend for layer in layers]
    # the fast backends are custom operators, which ONNX does not have
    tower.model.set_attention_backend("eager")
    try:
        with silence_warnings():
            program: Any = torch.onnx.export(
                torch.export.export(tower, (inputs,), dynamic_shapes=axes),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[tower.input],
                output_names=[tower.output],
                dynamic_shapes=axes,
            )
    finally:
        for layer, backend in zip(layers, backends, strict=True):
            layer.backend = backend
    # every node has the source lines that made it, with the paths of this machine
    ClearMetadataAndDocStringPass()(program.model)
    program.save(str(file))


def open_session(file: Path) -> Any:
    """Open `file` in onnxruntime on the CPU, with as many threads as torch has.

    The threads do not spin between calls, so that they do not slow other code that is timed in turns with it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run(session: Any, inputs: Tensor) -> Tensor:
    """Run a session that has one input, and return its only output."""
    (features,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    return torch.from_numpy(features)


def _check(tower: Tower, file: Path) -> float:
    """Return the largest distance between features of onnxruntime and torch, at two batch sizes (and text lengths)."""
    import onnx

    onnx.checker.check_model(str(file), full_check=True)
    session, shorter = open_session(file), max(1, tower.model.config.text.context_length // 2)
    distances = []
    for inputs in (tower.random_inputs(1), tower.random_inputs(3, shorter)):
        expected = tower(inputs)
        if not expected.isfinite().all():
            raise InputError(f"the {tower.name} tower gives numbers that are not finite: use other weights")
        distances.append((run(session, inputs) - expected).norm(dim=-1))
    error = float(torch.cat(distances).max())
    if not error <= TOLERANCE:
        raise DiffCLIPError(
            f"the {tower.name} tower in onnxruntime is {error:.1e} from torch where {TOLERANCE:.0e} is allowed"
        )
    return error


def describe_export(model: CLIP, with_tokenizer: bool) -> dict[str, Any]:
    """Make the content of config.json: all facts that a program needs beside the two files."""
    config = model.config
    preprocess, size = config.preprocess, config.vision.image_size
    tokenizer = {
        **{"name": config.tokenizer, "start": VOCABULARY - 2, "end": VOCABULARY - 1, "padding": 0},
        "file": TOKENIZER_FILE if with_tokenizer else None,
    }
    image, text = (
        {"file": tower.file, "input": tower.input, "output": tower.output}
        for tower in (Tower(model, "image"), Tower(model, "text"))
    )
    return {
        "model": name_of(config),
        "diffclip": diffclip.__version__,
        "opset": OPSET,
        "embed_dim": config.embed_dim,
        "unit_length": True,
        "logit_scale": model.logit_scale.exp().item(),
        "logit_bias": model.logit_bias.item() if config.logit_bias else None,
        "image": image
        | {"size": size, "resize": preprocess.resize or size}  # "squash": scale both edges to the size
        | preprocess.model_dump(include={"interpolation", "mean", "std"}),
        "text": text
        | {"context_length": config.text.context_length, "vocab_size": config.text.vocab_size}
        # a model with a smaller vocabulary has other token ids
        | {"tokenizer": tokenizer if config.text.vocab_size >= VOCABULARY else None},
        "config": config.model_dump(),
    }
