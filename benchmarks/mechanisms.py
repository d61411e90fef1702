"""Write docs/mechanisms.md: every kind of attention with its source, parameters, step time and verdicts against CLIP.

python -m benchmarks.mechanisms [--seconds 120] [--no-timing]

A training step of experiment A's size is timed in turns with CLIP's (benchmarks/results/mechanisms.json). The verdicts
are those of the arm whose name is the variant, in the experiments that declare their comparisons.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.about import about, add_common_options, parser_of, write_json
from benchmarks.models import Steps, config_of
from diffclip.attention import ATTENTION_LAYERS
from diffclip.benchmarking.timing import make_sampler, take_turns
from diffclip.config import VARIANTS, named_config
from diffclip.evaluation.verdicts import SPEC_FILE, VERDICTS_FILE, read_verdicts
from diffclip.files import write_text
from diffclip.model import CLIP

PAGE = Path("docs/mechanisms.md")
FILE = "mechanisms.json"
WITHDRAWN = "needle"
SIZE = "ViT-B-16"
BATCH = 16
HEAD = """# Mechanisms

Every kind of attention in the package. Parameters are those of `{size}` with this kind in both
towers, relative to plain CLIP. The step time is a training step of experiment A's size on one CPU
thread, relative to plain CLIP's (–: not measured). Verdicts are against CLIP, at the same rate where an
experiment has one, one for each endpoint of the [experiments](../experiments/README.md), corrected as
each experiment declares.
[Your own kind](plugin.md) needs one file.

| attention | what it is | source | parameters | step time | verdicts |
| --- | --- | --- | ---: | ---: | --- |
"""
TAIL = """
## Rivals and ablations

A gain may have a cheaper cause than the second map, so compare with other models than CLIP. Each exists
in every size (`CLIP-gated-ViT-S-16`). Beside the kinds above there are:

| model | what differs from CLIP or DiffCLIP |
| --- | --- |
| `CLIP-registers`, `CLIP-gated-registers` | four register tokens in the vision tower (arXiv:2309.16588) |
| `DiffCLIP-vision`, `DiffCLIP-text` | differential attention in one tower |
| `CLIP-half-heads-vision`, `CLIP-half-heads-norm-vision`, `DiffCLIP-lambda0-vision` | its rivals |
| `DiffCLIP-one-map` | DiffCLIP's first map alone, without head norm and factor |
| `DiffCLIP-no-norm`, `-no-factor`, `-bare` | DiffCLIP without head norm, without the factor 1 − λ_init, without both |
| `DiffCLIP-lambda0.2`, `DiffCLIP-lambda0.5` | another λ_init |
| `DiffCLIP-dynamic` | a λ_init that grows with depth, from 0.2 to almost 0.8 |
"""


def variant_of_kind(kind: str) -> str:
    """Return the first variant with this kind in both towers."""
    return next(name for name, variant in VARIANTS.items() if {variant.vision, variant.text} == {kind})


def count_parameters(name: str) -> int:
    with torch.device("meta"):
        model = CLIP(named_config(f"{name}-{SIZE}"), seed=0)
    return sum(parameter.numel() for parameter in model.parameters())


def time_steps(names: list[str], seconds: float) -> dict[str, float]:
    """Time a training step of each variant in turns; return the ratios to CLIP's."""
    device = torch.device("cpu")
    torch.set_num_threads(1)
    samplers = {}
    for name in names:
        config = config_of(name, None)
        vision, text = config.vision, config.text
        batch = (
            torch.randn(BATCH, 3, vision.image_size, vision.image_size),
            torch.randint(1, text.vocab_size - 1, (BATCH, text.context_length)),
        )
        steps = Steps(CLIP(config, seed=0), device, "fp32")
        samplers[name] = make_sampler(partial(steps, "training", batch), device)
    samples, _ = take_turns(samplers, 30, seconds)
    # each round has every model, so that a ratio of a round is about one state of the machine
    return {
        name: median(a / b for a, b in zip(samples[name], samples["CLIP"], strict=True)) for name in samples
    }


def source_of(kind: str) -> str:
    """Find the first paper or repository that the docstrings of a layer name."""
    layer = ATTENTION_LAYERS[kind]
    texts = inspect.getdoc(layer) or "", inspect.getmodule(layer).__doc__ or ""
    found = re.search(r"arXiv:\d+\.\d+|github\.com/[\w./-]*\w", " ".join(texts))
    return found[0] if found else "–"


def verdicts_of(variant: str) -> str:
    """Count the verdicts of the experiments about a variant against CLIP."""
    counts: Counter[str] = Counter()
    for folder in sorted(spec.parent for spec in Path("experiments").glob(f"*/{SPEC_FILE}")):
        if (folder / VERDICTS_FILE).is_file() and folder.name != WITHDRAWN:
            rows = read_verdicts(folder)
            words = rows.loc[
                (rows["arm"] == variant) & (rows["against"].str.fullmatch("CLIP(@.*|-same-rate)?")), "verdict"
            ]
            counts.update(word for word in words if not word.startswith(("not measured", "unfinished")))
    found = ", ".join(f"{word} {count}" for word, count in counts.most_common())
    return found or ("the baseline" if variant == "CLIP" else "no comparison yet")


def write_page(ratios: dict[str, float]) -> None:
    """Write the page from the ratios of step times by variant."""
    plain = count_parameters("CLIP")
    lines = []
    by_variant = {variant_of_kind(kind): kind for kind in ATTENTION_LAYERS}
    for variant in (name for name in VARIANTS if name in by_variant):
        kind = by_variant[variant]
        layer = ATTENTION_LAYERS[kind]
        summary = " ".join((inspect.getdoc(layer) or "").split()).split(". ")[0]
        share = 100 * (count_parameters(variant) / plain - 1)
        ratio = f"{ratios[variant]:.2f}" if variant in ratios else "–"
        sign = "0" if share == 0 else f"{share:+.{3 if abs(share) < 0.1 else 1}f} %".replace("-", "−")
        cells = (
            f"`{kind}` ({variant})",
            summary.rstrip("."),
            source_of(kind),
            sign,
            ratio,
            verdicts_of(variant),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    write_text(PAGE, HEAD.format(size=SIZE) + "".join(lines) + TAIL)


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=120)
    parser.add_argument("--no-timing", action="store_true", help="keep the measured step times")
    options = parser.parse_args()
    file = options.output / FILE
    measured: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"ratios": {}}
    if not options.no_timing:
        options.threads = 1
        names = [variant_of_kind(kind) for kind in ATTENTION_LAYERS]
        ratios = time_steps(sorted(names, key=lambda name: name != "CLIP"), options.seconds)
        measured = about("mechanisms", options) | {"ratios": ratios}
        write_json(file, measured)
    write_page(measured["ratios"])


if __name__ == "__main__":
    main()
