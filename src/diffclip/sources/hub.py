"""Models on the Hugging Face hub: the methods that `CLIP` inherits, and the model card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin

from diffclip.config import name_of
from diffclip.errors import hide_secrets, unknown_name
from diffclip.model_source import HUB_PREFIX, load, locate
from diffclip.weights import save_weights

if TYPE_CHECKING:
    from diffclip.evaluation.records import Record

_CARD = """\
---
{metadata}
---

# {name}

{kind} of the package diffclip: {parameters:,} parameters, images of {size} px.

## Training

{training}

## Results

{results}

## Use

```python
import diffclip

model, preprocess, tokenizer = diffclip.load("hf-hub:{repo}")
```

## License

{license}
"""
_FETCHING = ("cache_dir", "force_download", "local_files_only", "token")
_FACTS = ("templates", "corruption", "severity", "epsilon", "map", "layer", "head", "draw")


class HubModel(PyTorchModelHubMixin):  # type: ignore[misc]  # huggingface_hub is untyped here
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, with the files of `diffclip.save_weights`.

    `model_card_kwargs` of these methods are the arguments of `generate_model_card`.
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        model: Any = self
        save_weights(model, save_directory)

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: Any = None, **options: Any) -> Any:
        """Push the model and a card that names `repo_id`; the arguments are those of `PyTorchModelHubMixin`."""
        card = {"repo_id": repo_id} | (model_card_kwargs or {})
        return super().push_to_hub(repo_id, model_card_kwargs=card, **options)

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, image_size: int | None = None, attention_backend: str = "auto", **options: Any
    ) -> Any:
        options.pop("config", None)  # the content of config.json, which `load` reads
        revision, fetching = options.pop("revision"), {key: options.pop(key) for key in _FETCHING}
        if options:
            known = ["image_size", "attention_backend", "revision", *_FETCHING]
            raise unknown_name("argument", next(iter(options)), known)
        folder = Path(model_id)
        if not folder.is_dir():
            folder = locate(HUB_PREFIX + model_id + (f"@{revision}" if revision else ""), **fetching)
        model = load(folder, image_size=image_size)[0]
        model.set_attention_backend(attention_backend)
        return model

    def generate_model_card(
        self,
        repo_id: str = "OWNER/NAME",
        recipe: Mapping[str, Any] | None = None,
        records: Iterable[Record] = (),
        license: str | None = None,
    ) -> ModelCard:
        """Make the card of this model.

        Args:
            repo_id: the model's name on the hub.
            recipe: the recipe of the run that trained the model.
            records: the results to list, as `diffclip.evaluation.records.read_records` reads them.
            license: the license of the weights, by its name on the hub.
        """
        model: Any = self
        metadata = ModelCardData(
            license=license,
            library_name="diffclip",
            tags=["clip", "differential-attention"],
            pipeline_tag="zero-shot-image-classification",
        )
        return ModelCard(
            _CARD.format(
                metadata=metadata.to_yaml(),
                name=repo_id.rpartition("/")[2],
                kind=name_of(model.config),
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                size=model.config.vision.image_size,
                training=_format_training(recipe),
                results=_format_results(records),
                repo=repo_id,
                license=license or "Not stated.",
            )
        )


def _format_training(recipe: Mapping[str, Any] | None) -> str:
    if recipe is None:
        return "Not stated."
    start = "weights" if recipe.get("weights") else "init"
    data = recipe.get("data")
    rows: dict[str, Any] = {"data": data.get("train") if isinstance(data, dict) else data}
    rows |= {key: recipe.get(key) for key in ("seed", start, "epochs", "batch_size", "lr", "weight_decay")}
    lines = [f"| {key} | {hide_secrets(str(value))} |" for key, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _format_results(records: Iterable[Record]) -> str:
    rows = []
    for record in records:
        facts = [f"{fact} {value}" for fact in _FACTS if (value := getattr(record, fact)) is not None]
        interval = "" if record.low is None else f"{record.low:.4f} to {record.high:.4f}"
        if record.value is not None:
            rows.append(
                f"| {record.task} | {', '.join([record.dataset, record.split, *facts])} | {record.metric} | "
                f"{record.value:.4f} | {interval} | {record.count} |"
            )
    header = ["| task | dataset | metric | value | 95 % interval | items |", "| --- " * 6 + "|"]
    return "\n".join(header + rows) if rows else "Not stated."
