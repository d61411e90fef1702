"""`diffclip vlm data`: the part of LLaVA's conversations whose pictures are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffclip.vlm.filter import Filtered

_FOLDERS = 12


def vlm_data(
    source: Annotated[
        Path, typer.Argument(help="LLaVA's JSON, such as llava_v1_5_mix665k.json.", metavar="SOURCE.json")
    ],
    target: Annotated[
        Path, typer.Argument(help="Where to write what is kept, a sample a line.", metavar="TARGET.json")
    ],
    images: Annotated[
        str, typer.Option(help="Keep samples whose picture's path starts so.", metavar="PREFIX")
    ] = "coco/",
    pictures: Annotated[
        Path | None,
        typer.Option(help="Also leave out samples whose picture is not in this folder.", metavar="FOLDER"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object.")] = False,
) -> None:
    """Keep the conversations about one set of pictures, and count what there is.

    Example: diffclip vlm data llava_v1_5_mix665k.json coco.json --images coco/ --pictures data/llava

    Samples without a picture are left out, and so is what training would refuse; the first of those are named.
    """
    from diffclip.errors import require_group

    require_group("vlm", "transformers")
    from diffclip.vlm.filter import filter_conversations

    found = filter_conversations(source, target, images, pictures)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    _show(found)


def _show(found: Filtered) -> None:
    from diffclip.files import printable

    typer.echo(f"{found.target}: kept {found.kept:,} of {found.samples:,} samples of {found.source}")
    rows = [
        ("other pictures", found.other_pictures),
        ("text only", found.text_only),
        ("picture missing", found.missing),
        ("unusable", found.unusable),
    ]
    for what, number in rows:
        if number:
            typer.echo(f"  left out: {number:>9,} {what}")
    typer.echo("Samples by the first folder of their picture:")
    for folder, number in list(found.folders.items())[:_FOLDERS]:
        typer.echo(f"  {number:>9,} {printable(folder)}")
    if len(found.folders) > _FOLDERS:
        typer.echo(f"  and {len(found.folders) - _FOLDERS:,} folders more")
    for fault in found.faults:
        typer.echo(f"unusable: {fault}")
