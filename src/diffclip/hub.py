"""Models on the Hugging Face hub: the methods that `CLIP` inherits, and the model card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin

from diffclip.config import name_of
from diffclip.model_source import fetch, load
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
_FACTS = ("templates", "corruption", "severity", "epsilon", "map", "layer", "head", "draw")


class HubModel(PyTorchModelHubMixin):  # type: ignore[misc]  # huggingface_hub is untyped here
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, with the files of `diffclip.save_weights`.

    `model_card_kwargs` of these methods are the arguments of `generate_model_card`.
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        model: Any = self
        save_weights(model, save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Any:
        names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        folder = Path(model_id)
        if not folder.is_dir():
            folder = fetch(model_id, **{key: options[key] for key in names})
        return load(folder)[0]

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
            records: the results to list, see `diffclip.load_records`.
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
    from diffclip.data.remote import hide_secrets

    rows: dict[str, Any] = {"data": hide_secrets(str(recipe["data"]["train"]))}
    rows |= {key: recipe.get(key) for key in ("seed", "init", "epochs", "batch_size", "lr", "weight_decay")}
    return "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in rows.items())])


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
