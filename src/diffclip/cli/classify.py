"""`diffclip classify`: pictures sorted by labels of your own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.skipped import say_skipped
from diffclip.errors import InputError
from diffclip.model_source import MODEL_HELP, load_for_use, pick_device

if TYPE_CHECKING:
    from torch import Tensor

    from diffclip.data.samples import Fault
    from diffclip.model_source import Loaded


def classify(
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.", metavar="IMAGE...")],
    labels: Annotated[str, typer.Option(help='Labels between commas, or @FILE with one a line: "cat, dog".')],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    template: Annotated[str, typer.Option(help="Text around a label, {} in its place.")] = "a photo of a {}.",
    top: Annotated[int, typer.Option(min=1, help="Show this many labels a picture.")] = 5,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a picture, one a line.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON lines to this file.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures at once.")] = 64,
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Say which of your labels fits each picture, with probabilities.

    Example: diffclip classify photos/ --labels "cat, dog, train" --model runs/demo/DiffCLIP

    Pictures of a folder that cannot be read are skipped, counted and named at the end; one named here must be readable.
    """
    names = parse_labels(labels)
    from diffclip.data.images import find_images
    from diffclip.evaluation.zero_shot import fill_template
    from diffclip.files import check_writable, write_text

    fill_template(template, names[0])
    files = find_images(images)
    named = {path for path in images if not path.is_dir()}
    if output is not None:
        check_writable(output)
    place = pick_device(device)
    loaded = load_for_use(model, model_name)
    loaded.model.to(place)
    read, probabilities, faults = _probabilities(loaded, files, named, names, template, batch_size)
    results = [_result(file, names, row, top) for file, row in zip(read, probabilities.tolist(), strict=True)]
    lines = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
    if output is not None:
        write_text(output, lines)
    if json_lines:
        print(lines, end="")
    else:
        _show(results)
    say_skipped(f"{len(faults)} of {len(files)} pictures", faults)


def parse_labels(labels: str) -> list[str]:
    """Labels between commas, or those in the file after an @, one a line.

    Raises:
        InputError: an empty label, the same label twice (whatever its case), or a file that cannot be read.
    """
    if labels.startswith("@"):
        file = Path(labels[1:])
        try:
            names = [
                line.strip() for line in file.read_text(encoding="utf-8-sig").split("\n") if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InputError(f"cannot read labels from {file}: {reason}") from error
        if not names:
            raise InputError(f"{file} has no label in it: write one a line")
    else:
        names = [name.strip() for name in labels.split(",")]
    if not all(names):
        raise InputError(f"--labels {labels!r} has an empty label: write them as in 'cat, dog'")
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InputError(f"--labels has {name!r} twice: name each label once")
        seen.add(name.casefold())
    return names


def _probabilities(
    loaded: Loaded, files: list[Path], named: set[Path], names: list[str], template: str, batch_size: int
) -> tuple[list[Path], Tensor, list[Fault]]:
    """The files that could be read, their probabilities [files, labels], and what was skipped.

    Raises:
        InputError: one of the files in `named` or all others cannot be read, or the weights give no finite numbers.
    """
    import torch

    from diffclip.cli.progress import showing_progress
    from diffclip.data.images import read_image
    from diffclip.data.samples import sample_fault
    from diffclip.evaluation.embed import embed_images, evaluating
    from diffclip.evaluation.zero_shot import build_classifier

    classifier = build_classifier(loaded.model, loaded.tokenizer, names, [template], batch_size)
    read: list[Path] = []
    faults: list[Fault] = []
    broken: list[str] = []
    rows = []
    with showing_progress("classify", {"pictures": len(files)}) as progress, evaluating(loaded.model):
        for start in range(0, len(files), batch_size):
            batch = []
            chunk = files[start : start + batch_size]
            for file in chunk:
                try:
                    batch.append(loaded.preprocess(read_image(file)))
                    read.append(file)
                except InputError as error:
                    faults.append(sample_fault(str(file), error))
                    broken += [str(error)] if file in named else []
            if batch and not broken:
                features = embed_images(loaded.model, torch.stack(batch))
                logits = loaded.model.logit_scale.exp() * features @ classifier
                rows.append(logits.softmax(-1).cpu())
            progress("pictures", len(chunk), None)
    if broken:
        more = f" (and {len(broken) - 1} more of the named pictures)" if len(broken) > 1 else ""
        raise InputError(broken[0] + more)
    if not read:
        more = f" (and none of the other {len(files) - 1} can be read either)" if len(files) > 1 else ""
        raise InputError(f"{faults[0].name}: {faults[0].reason}{more}")
    probabilities = torch.cat(rows)
    if not probabilities.isfinite().all():
        raise InputError(f"{loaded.weights} gives numbers that are not finite: use other weights")
    return read, probabilities, faults


def _result(file: Path, names: list[str], row: list[float], top: int) -> dict[str, Any]:
    best = sorted(zip(names, row, strict=True), key=lambda pair: -pair[1])
    return {"image": str(file), "label": best[0][0], "probabilities": dict(best[:top])}


def _show(results: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("picture", overflow="fold")
    table.add_column("label", overflow="fold")
    table.add_column("", width=20)
    table.add_column("probability", justify="right")
    for result in results:
        pairs = list(result["probabilities"].items())
        for index, (name, probability) in enumerate(pairs):
            first = index == 0
            table.add_row(
                Text(result["image"] if first else ""),
                Text(name, style="bold" if first else ""),
                Bar(size=1, begin=0, end=probability, width=20),
                f"{probability:.1%}",
                end_section=index == len(pairs) - 1,
            )
    Console().print(table)
