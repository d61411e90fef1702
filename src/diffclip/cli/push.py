"""`diffclip push`: put a model with its card on the Hugging Face hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from diffclip.errors import InputError, explain_errors
from diffclip.sources.load import load_with_origin
from diffclip.sources.registry import find_model


def push(
    model: Annotated[str, typer.Argument(help="A run folder, a saved folder or a published file.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name of the repository on the hub.")],
    results: Annotated[list[Path] | None, typer.Option(help="Results of `diffclip evaluate`.")] = None,
    license: Annotated[
        str | None, typer.Option(help="The hub's name of the license, such as apache-2.0.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a private repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card; send nothing.")] = False,
) -> None:
    """Put a model on the Hugging Face hub, with a card from its run and its results.

    Example: diffclip push runs/demo/DiffCLIP me/my-diffclip --results results.jsonl --dry-run

    The token comes from `hf auth login` or HF_TOKEN. Load the model as hf-hub:OWNER/NAME.
    """
    if name.count("/") != 1 or not all(name.split("/")):
        raise InputError(f"{name} is not a name on the hub: give OWNER/NAME")
    if find_model(model) is None:
        raise InputError(f"{model} is a model's name, which has no weights to share: give a folder or a file")
    loaded = load_with_origin(model)
    from diffclip.evaluation.records import read_records
    from diffclip.integrations.hub import push_to_hub, write_folder
    from diffclip.weights import weights_digest

    digest = weights_digest(loaded.model)
    records = [record for file in results or () for record in read_records(file)]
    records = [record for record in records if record.digest and digest.startswith(record.digest)]
    if results and not records:
        raise InputError(
            f"{results[0]} has no record of the weights of {loaded.weights}: evaluate the model that you push"
        )
    about: dict[str, Any] = {
        "origin": loaded.origin,
        "recipe": loaded.recipe or loaded.origin or None,
        "records": records,
        "license": license,
    }
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(loaded.model, folder, name, **about)
            for file in sorted(Path(folder).iterdir()):
                print(f"{file.name}: {file.stat().st_size:,} bytes")
            print(f"\n{(Path(folder) / 'README.md').read_text(encoding='utf-8')}")
        return
    with explain_errors(f"{name} cannot be written", "check the token and the connection"):
        push_to_hub(loaded.model, name, private or None, **about)
    print(f"hf-hub:{name}")
