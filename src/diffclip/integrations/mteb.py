"""Any model under mteb's benchmarks of images and texts (MIEB): ARO, Winoground, SugarCrepe and many more.

    import mteb
    from diffclip.integrations.mteb import MTEBModel
    mteb.evaluate(MTEBModel("runs/demo/DiffCLIP"), mteb.get_benchmark("MIEB(lite)").tasks)

Tasks that mix an image and a text in one input get the sum of both embeddings, as mteb's own wrapper of open_clip does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from torch import Tensor

from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_images, embed_texts, evaluation_mode
from diffclip.sources.load import load_with_origin, pick_device


class MTEBModel(AbsEncoder):  # type: ignore[misc]  # mteb is untyped here
    """A model as mteb takes it, with embeddings of unit length.

    Args:
        model_name: what `diffclip evaluate` takes as MODEL.
        revision: the name of the weights in mteb's results; None: where they come from.
        device: where to compute; None: a CUDA device if there is one.

    Raises:
        InputError: the model cannot be loaded.
    """

    def __init__(
        self, model_name: str, revision: str | None = None, device: str | None = None, **_: Any
    ) -> None:
        self.loaded = load_with_origin(str(model_name), only_clip=False)
        self.model = self.loaded.model.to(pick_device(device or "auto"))
        modalities = ["image", "text"] if self._has_texts else ["image"]
        facts = {
            "name": f"diffclip/{self.loaded.label.replace('/', '-')}",
            "revision": revision or self.loaded.weights.replace("/", "_"),
            "modalities": modalities,
            "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "similarity_fn_name": ScoringFunction.COSINE,
            "framework": ["PyTorch"],
        }
        self.mteb_model_meta = ModelMeta.create_empty(facts)

    @property
    def _has_texts(self) -> bool:
        return bool(getattr(self.model, "has_texts", True))

    def encode(self, inputs: Iterable[Mapping[str, Any]], **_: Any) -> Tensor:
        """Embed batches with lists of PIL images ("image"), of texts ("text"), or both: float32 [N, D].

        Raises:
            InputError: texts for a model without texts, or a batch without either.
        """
        with evaluation_mode(self.model):
            return torch.cat([self._embed(batch).cpu() for batch in inputs])

    def get_image_embeddings(self, images: Iterable[Mapping[str, Any]], **_: Any) -> Tensor:
        """Embed batches of images, [N, D]."""
        return self.encode({"image": batch["image"]} for batch in images)

    def get_text_embeddings(self, texts: Iterable[Mapping[str, Any]], **_: Any) -> Tensor:
        """Embed batches of texts, [N, D]."""
        return self.encode({"text": batch["text"]} for batch in texts)

    def _embed(self, batch: Mapping[str, Any]) -> Tensor:
        parts = []
        if "image" in batch:
            prepared = [self.loaded.preprocess(image) for image in batch["image"]]
            parts.append(embed_images(self.model, torch.stack(prepared)))
        if "text" in batch:
            if not self._has_texts:
                raise InputError(f"{self.loaded.weights} has no texts: choose tasks on images alone")
            parts.append(embed_texts(self.model, self.loaded.tokenizer, list(batch["text"])))
        if not parts:
            raise InputError(f"mteb gives {', '.join(batch)}: choose tasks on images and texts")
        return torch.stack(parts).sum(0)
