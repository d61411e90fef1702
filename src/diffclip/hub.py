"""Models on the Hugging Face hub: methods of the core model, and the model card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, snapshot_download

from diffclip.config import VOCABULARY, Differential, name_of

if TYPE_CHECKING:
    from diffclip.evaluation.records import Record

_TAGS = ["clip", "differential-attention"]
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

```python
import open_clip
from diffclip.integrations.open_clip import register

register({{"ViT-mine": diffclip.CLIP.from_pretrained("{repo}").config}})
model, _, preprocess = open_clip.create_model_and_transforms("ViT-mine", pretrained="hf-hub:{repo}")
```
{transformers}
## License

{license}
"""


_TRANSFORMERS = """
```python
from diffclip.integrations.transformers import from_diffclip, processor_of

model = from_diffclip(diffclip.CLIP.from_pretrained("{repo}"))
processor = processor_of(diffclip.CLIP.from_pretrained("{repo}").config)
```
"""


def fetch(repository: str, revision: str | None = None, **options: Any) -> Path:
    """Return the folder on this machine with the weights of a repository, fetched or found in the hub's cache.

    Args:
        options: of `huggingface_hub.snapshot_download`.
    """
    from diffclip.weights import CONFIG_FILE, PUBLISHED_FILE, WEIGHTS_FILE

    files = [CONFIG_FILE, WEIGHTS_FILE, PUBLISHED_FILE]
    return Path(snapshot_download(repository, revision=revision, allow_patterns=files, **options))


class HubModel(PyTorchModelHubMixin):  # type: ignore[misc]  # it has no types here
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, with the files of `diffclip.save_weights`.

    `model_card_kwargs` of these methods are the arguments of `generate_model_card`.
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        from diffclip.weights import save_weights

        model: Any = self
        save_weights(model, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        attention_backend: str = "auto",
        **_: Any,
    ) -> Any:
        from diffclip.published import infer_config
        from diffclip.weights import put_weights, read_weights

        folder = Path(model_id)
        if not folder.is_dir():
            options: dict[str, Any] = {"force_download": force_download, "local_files_only": local_files_only}
            folder = fetch(model_id, revision, cache_dir=cache_dir, token=token, **options)
        weights = read_weights(folder)
        make: Any = cls
        model = make(weights.config or infer_config(weights.state), attention_backend=attention_backend)
        return put_weights(model, weights, folder).eval()

    def generate_model_card(
        self,
        repo_id: str = "OWNER/NAME",
        recipe: Mapping[str, Any] | None = None,
        records: Iterable[Record] = (),
        license: str | None = None,
    ) -> ModelCard:
        """Make the card of this model.

        Args:
            repo_id: its name on the hub.
            recipe: of the run that trained it.
            records: results, see `diffclip.load_records`.
            license: of the weights, as the hub calls it.
        """
        model: Any = self
        # transformers has no ablations, and its tokenizer is the whole one
        usual = model.config.differential == Differential() and model.config.text.vocab_size >= VOCABULARY
        metadata = ModelCardData(
            license=license,
            library_name="diffclip",
            tags=_TAGS,
            pipeline_tag="zero-shot-image-classification",
        )
        return ModelCard(
            _CARD.format(
                metadata=metadata.to_yaml(),
                name=repo_id.rpartition("/")[2],
                kind=name_of(model.config),
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                size=model.config.vision.image_size,
                training=_training(recipe),
                results=_results(records),
                repo=repo_id,
                transformers=_TRANSFORMERS.format(repo=repo_id) if usual else "",
                license=license or "Not stated.",
            )
        )


def _training(recipe: Mapping[str, Any] | None) -> str:
    if recipe is None:
        return "Not stated."
    from diffclip.data.remote import shown

    data = recipe.get("data")
    rows: dict[str, Any] = {"data": shown(str(data.get("train") if isinstance(data, Mapping) else data))}
    rows |= {key: recipe.get(key) for key in ("seed", "init", "epochs", "batch_size", "lr", "weight_decay")}
    return "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in rows.items())])


def _results(records: Iterable[Record]) -> str:
    facts = ("templates", "corruption", "severity", "epsilon", "map", "layer", "head", "draw")

    def measured_on(record: Record) -> str:
        told = [f"{fact} {own}" for fact in facts if (own := getattr(record, fact)) is not None]
        return ", ".join([record.dataset, record.split, *told])

    rows = [
        f"| {record.task} | {measured_on(record)} | {record.metric} | {record.value:.4f} | "
        f"{'' if record.low is None else f'{record.low:.4f} to {record.high:.4f}'} | {record.count} |"
        for record in records
        if record.value is not None
    ]
    head = ["| task | dataset | metric | value | 95 % interval | items |", "| --- " * 6 + "|"]
    return "\n".join(head + rows) if rows else "Not stated."
