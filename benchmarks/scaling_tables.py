"""The tables of docs/scaling.md between their markers, from scaling.json (and loader.json for the speed of the loader).

python -m benchmarks.scaling_tables [docs/scaling.md] [--results benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.scaling_table_rows import (
    amount,
    checkpoints,
    checkpoints_checked,
    duration,
    index,
    order,
    share_of,
    table,
)
from diffclip.files import write_text

Result = dict[str, Any]
Results = dict[str, Result]


def about(result: Result, results: Results) -> list[str]:
    told = result["about"]
    return [
        f"`{told['command']}`, {told['device']}, torch {told['torch']}, {told['took_seconds']:.0f} s. Compute times "
        f"are the plan's, for {told['gpu'].upper()} at {told['utilisation']:.0%} of the rate of its dense matrices in "
        "bfloat16. Bytes are exact; measured times are of processes that share the cores of one machine with other "
        "work, so ratios are what to read."
    ]


def links(result: Result, results: Results) -> list[str]:
    rows = [
        [one["name"], f"{one['gpu'] / 1e9:.4g}", f"{one['node'] / 1e9:.4g}", one["source"]]
        for one in result["links"].values()
    ]
    return table(["link", "GB/s a GPU inside the node", "GB/s a node", "source"], rows)


def loss(result: Result, results: Results) -> list[str]:
    rows = []
    for row in result["loss"]:
        step = row["step_seconds"]
        cells = [row["batch"], row["world"], row["share"], amount(row["cases"]["clip"]["forward"])]
        cells += [amount(sum(case.values())) for case in row["cases"].values()]
        cells += [duration(step), duration(row["logits_seconds"])]
        cells += [_beside(row["seconds"][key], step) for key in ("h100-infiniband", "a100-cloud", "ethernet")]
        rows.append(cells)
    head = ["batch", "GPUs", "samples a GPU", "one gather of both towers", *result["loss"][0]["cases"]]
    return table([*head, "step", "logits", "InfiniBand", "cloud", "Ethernet"], rows)


def _beside(seconds: float, step: float) -> str:
    return f"{duration(seconds)} ({share_of(seconds / step)})" if seconds else "–"


def loss_checked(result: Result, results: Results) -> list[str]:
    rows = []
    for one in result["checks"]["losses"]:
        if one["world"] == 1:
            continue
        for key in ("forward", "backward", "accuracy"):
            said, found = one["model"][f"sent_{key}"], one["measured"][f"sent_{key}"]
            ratio = f"{found / said:.4f}" if said else "–"
            rows.append([one["world"], one["case"], key, f"{said:,}", f"{found:,.0f}", ratio])
    return table(["processes", "loss", "exchange", "bytes by the formula", "bytes measured", "ratio"], rows)


def transfers(result: Result, results: Results) -> list[str]:
    rows = [
        [
            one["world"],
            amount(one["part"]),
            duration(one["model"]) + (" (fitted)" if one["fitted"] else ""),
            duration(one["seconds"]),
            "–" if one["fitted"] else f"{one['seconds'] / one['model']:.2f}",
        ]
        for one in result["checks"]["transfers"]
    ]
    return table(["processes", "a process's part", "model", "measured", "ratio"], rows)


def logits(result: Result, results: Results) -> list[str]:
    rows = [
        [
            row["batch"],
            row["world"],
            amount(row["whole_logits"]),
            amount(row["memory"]["clip"]["logits"]),
            amount(row["memory"]["siglip"]["logits"]),
            amount(row["memory"]["clip"]["features"]),
        ]
        for row in result["loss"]
    ]
    head = ["batch", "GPUs", "whole logits", "local loss", "SigLIP", "features of all, with gradients"]
    return table(head, rows)


def logits_checked(result: Result, results: Results) -> list[str]:
    rows = []
    for one in result["checks"]["losses"]:
        said, found = one["model"]["saved"], one["measured"]["saved"]
        share = one["measured"]["share"]
        rows.append([one["world"], one["case"], share, f"{said:,}", f"{found:,}", f"{found / said:.4f}"])
    return table(
        ["processes", "loss", "samples a process", "bytes by the formula", "bytes measured", "ratio"], rows
    )


def parts(result: Result, results: Results) -> list[str]:
    told = result["in_parts"]
    rows = [
        [row["world"], row["share"], amount(row["whole"]), amount(row["in_parts"])] for row in told["rows"]
    ]
    lines = [
        f"`{told['recipe']}`, batch {told['batch']}: with `micro_batch={told['micro_batch']}` a step takes "
        f"{told['again']:.0%} more operations where a process's share is larger.",
        "",
    ]
    head = ["GPUs", "samples a GPU", "activations at once", f"with micro_batch={told['micro_batch']}"]
    return lines + table(head, rows)


def gradients(result: Result, results: Results) -> list[str]:
    rows = []
    for name, known in result["gradients"].items():
        model = result["models"][name]
        for row in known:
            sent = row["sent"]
            cells = [name, f"{model['parameters'] / 1e6:.0f} M", row["world"], amount(sent["ddp"])]
            cells += [duration(row["seconds"][key]["ddp"]) for key in ("h100-infiniband", "a100-cloud")]
            cells += [amount(row["held"]["ddp"]), amount(sent["fsdp gathered"] + sent["fsdp reduced"])]
            cells += [duration(row["seconds"][key]["fsdp"]) for key in ("h100-infiniband", "a100-cloud")]
            rows.append([*cells, amount(row["held"]["fsdp"])])
    head = ["model", "parameters", "GPUs", "DDP: sent", "InfiniBand", "cloud", "held"]
    return table([*head, "FSDP: sent", "InfiniBand", "cloud", "held"], rows)


def gradients_checked(result: Result, results: Results) -> list[str]:
    rows = []
    for one in result["checks"]["steps"]:
        said, found = one["model"], one["measured"]
        kinds = ("weights", "gradients", "optimiser")
        pairs = {
            "sent": (said.get("sent_by_gloo", said["sent"]), found["sent"]),
            "weights, gradients, state": (
                sum(said[kind] for kind in kinds),
                sum(found[kind] for kind in kinds),
            ),
        }
        for what, (wanted, measured) in pairs.items():
            ratio = f"{measured / wanted:.4f}" if wanted else "–"
            rows.append([one["world"], one["strategy"], what, f"{wanted:,.0f}", f"{measured:,.0f}", ratio])
    return table(["processes", "strategy", "bytes", "by the formula", "measured", "ratio"], rows)


def loader(result: Result, results: Results) -> list[str]:
    """Samples, cores and bytes a second that a node of 8 GPUs asks for."""
    found = results.get("loader", {}).get("workers", {}).get("0", {}).get("ours", {})
    core = found["per_core"]["median"] if "per_core" in found else None
    size = result["example"]["sample_bytes"]
    rows = []
    for name, model in result["models"].items():
        for gpu, rate in model["samples_per_second"].items():
            cores = f"{8 * rate / core:.1f}" if core else "–"
            rows.append([name, gpu, f"{8 * rate:,.0f}", cores, f"{8 * rate * size / 1e6:,.0f} MB/s"])
    lines = table(["model", "GPU", "samples a second and node", "cores a node", "read by a node"], rows)
    if core is None:
        return [*lines, "", "Cores: the loader has not been measured yet (`python -m benchmarks.loader`)."]
    said = f"A core reads, decodes, crops and tokenises {core:,.0f} samples a second (loader.json, without workers)"
    return [*lines, "", f"{said}; a sample is {size / 1000:.0f} kB."]


def example(result: Result, results: Results) -> list[str]:
    told = result["example"]
    plan, found = told["plan"], results.get("loader", {}).get("workers", {}).get("0", {}).get("ours", {})
    core = found["per_core"]["median"] if "per_core" in found else None
    schedule = plan["schedule"]
    lines = [
        f"{plan['model']}, batch {plan['batch_size']:,}, {plan['share']} samples a GPU, {plan['world']} GPUs; "
        f"{schedule['samples']:,} samples in {schedule['steps']:,} steps; {amount(plan['memory']['total'])} a GPU by "
        "the plan.",
        "",
    ]
    rows: list[list[Any]] = []

    def row(what: str, cell: Callable[[Result], str]) -> None:
        rows.append([what, *(cell(gpu) for gpu in told["gpus"].values())])

    row("step, computing", lambda gpu: duration(gpu["step_seconds"]))
    row("loss: exchange of features", lambda gpu: _beside(gpu["exchange_seconds"], gpu["step_seconds"]))
    row("loss: logits, in float32", lambda gpu: _beside(gpu["logits_seconds"], gpu["step_seconds"]))
    row("all-reduce of gradients", lambda gpu: _beside(gpu["ddp_seconds"], gpu["step_seconds"]))
    row("backward pass, which hides it", lambda gpu: duration(gpu["backward_seconds"]))
    row("samples a second and node", lambda gpu: f"{gpu['samples_a_node']:,.0f}")
    if core:
        row("cores a node for them", lambda gpu: f"{gpu['samples_a_node'] / core:.1f}")
    row("read by a node", lambda gpu: f"{gpu['samples_a_node'] * told['sample_bytes'] / 1e6:,.0f} MB/s")
    for share in next(iter(told["gpus"].values()))["hours"]:
        hours = [f"{gpu['hours'][share]:,.0f}" for gpu in told["gpus"].values()]
        rows.append([f"hours at {float(share):.0%} of the rate", *hours])
    return lines + table(["", *(f"{name}, {gpu['link']}" for name, gpu in told["gpus"].items())], rows)


def failures(result: Result, results: Results) -> list[str]:
    told = result["example"]
    every, check = told["checkpoint_every"], told["checkpoint"]
    disk = result["disks"][check["disk"]]["name"]
    lines = [
        f"`checkpoint_every: {every}`; a checkpoint is {amount(check['bytes'])} and takes "
        f"{duration(check['seconds'])} on a {disk}; going on after a failure is taken to need "
        f"{told['restart_seconds'] / 60:.0f} minutes. A GPU or what is around it fails once in "
        f"{told['failure_gpu_hours']:,.0f} GPU hours: 419 unexpected interruptions in 54 days of 16,384 H100s "
        "(arXiv:2407.21783, Section 3.3.4).",
        "",
    ]
    rows = []
    for name, gpu in told["gpus"].items():
        one = gpu["failures"]
        rows.append(
            [
                name,
                f"{one['hours_between']:,.0f} h",
                f"{one['expected']:.2f}",
                duration(one["lost_seconds"]),
                f"{one['lost_share']:.2%}",
                f"{one['checkpoint_share']:.2%}",
                f"{one['best_every']:,.0f}",
            ]
        )
    head = ["GPU", "between failures", "expected in the run", "lost by each", "share of time lost"]
    return lines + table([*head, "share of time in checkpoints", "best `checkpoint_every`"], rows)


SECTIONS: dict[str, Callable[[Result, Results], list[str]]] = {
    "about": about,
    "links": links,
    "loss": loss,
    "loss checked": loss_checked,
    "transfers": transfers,
    "logits": logits,
    "logits checked": logits_checked,
    "parts": parts,
    "gradients": gradients,
    "gradients checked": gradients_checked,
    "loader": loader,
    "order": order,
    "index": index,
    "checkpoints": checkpoints,
    "checkpoints checked": checkpoints_checked,
    "example": example,
    "failures": failures,
}


def write_tables(document: Path, results: Results) -> None:
    """Put what `results` tell (name of a file without its ending → what is in it) between the markers of `document`."""
    text = document.read_text(encoding="utf-8")
    for name in sections_of(text):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        told = results.get("scaling")
        lines = (
            SECTIONS[name](told, results) if told else ["Not measured yet: `python -m benchmarks.scaling`."]
        )
        before, _, rest = text.partition(begin)
        text = before + "\n".join([begin, *lines, end]) + rest.partition(end)[2]
    write_text(document, text)


def sections_of(text: str) -> Iterable[str]:
    """The sections that a document has markers for."""
    return [name for name in SECTIONS if f"<!-- begin {name} -->" in text]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, nargs="?", default=Path("docs/scaling.md"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    files = [options.results / f"{name}.json" for name in ("scaling", "loader")]
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()}
    write_tables(options.target, results)


if __name__ == "__main__":
    main()
