"""Put a model on the Hugging Face hub, with its card."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import ModelCard, ModelCardData

from diffclip.config import name_of
from diffclip.errors import hide_secrets
from diffclip.evaluation.averages import DERIVED, headline_metrics
from diffclip.evaluation.records import Record
from diffclip.model import CLIP
from diffclip.names import HEADLINE_EPSILON
from diffclip.weights import save_weights

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


def push_to_hub(model: CLIP, repository: str, private: bool | None = None, **card: Any) -> None:
    """Push `model` and its card to `repository`, OWNER/NAME; `card` as in `write_folder`."""
    hub = huggingface_hub.HfApi()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, folder, repository, **card)
        hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Push the model")


def write_folder(
    model: CLIP,
    folder: str | Path,
    repository: str,
    origin: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    records: Iterable[Record] = (),
    license: str | None = None,
) -> None:
    """Write the files of `save_weights` to `folder`, and the model's card for the hub: with the recipe of its run, the
    results to list, and the license of the weights by its name on the hub."""
    save_weights(model, folder, origin=origin)
    metadata = ModelCardData(
        license=license,
        library_name="diffclip",
        tags=["clip", "differential-attention"],
        pipeline_tag="zero-shot-image-classification",
    )
    text = _CARD.format(
        metadata=metadata.to_yaml(),
        name=repository.rpartition("/")[2],
        kind=name_of(model.config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        size=model.config.vision.image_size,
        training=_format_training(recipe),
        results=_format_results(records),
        repo=repository,
        license=license or "Not stated.",
    )
    ModelCard(text).save(Path(folder) / "README.md")


def _format_training(recipe: Mapping[str, Any] | None) -> str:
    if recipe is None:
        return "Not stated."
    start = "weights" if recipe.get("weights") else "init"
    data = recipe.get("data")
    rows: dict[str, Any] = {"data": data.get("train") if isinstance(data, dict) else data}
    rows |= {key: recipe.get(key) for key in ("seed", start, "epochs", "batch_size", "lr", "weight_decay")}
    lines = [f"| {key} | {hide_secrets(str(value))} |" for key, value in rows.items() if value is not None]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _format_results(records: Iterable[Record]) -> str:
    """List the headlines of each task on each set."""
    measured: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.value is not None and record.layer is None and record.task not in DERIVED:
            measured.setdefault((record.task, record.dataset, record.split), []).append(record)
    lines = ["| task | dataset | metric | value | 95 % interval | items |", "| --- " * 6 + "|"]
    for (task, dataset, split), found in measured.items():
        metrics = headline_metrics(task, dataset) or (found[0].metric,)
        shown = {one.metric: one for one in reversed(found) if one.epsilon in (None, HEADLINE_EPSILON)}
        for record in [shown[metric] for metric in metrics if metric in shown] or found[:1]:
            interval = "" if record.low is None else f"{record.low:.4f} to {record.high:.4f}"
            facts = f"{record.metric} | {record.value:.4f} | {interval} | {record.count}"
            lines.append(f"| {task} | {dataset}, {split} | {facts} |")
    return "\n".join(lines) if measured else "Not stated."
