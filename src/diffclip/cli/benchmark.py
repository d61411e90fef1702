"""`diffclip benchmark`: clip_benchmark's command line on our models."""

from __future__ import annotations

import typer

# Settings for typer: pass all words on to clip_benchmark unchanged, after the first one (`eval`) even --help
SETTINGS = {"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True}


def benchmark(context: typer.Context) -> None:
    """Run clip_benchmark, with all its options, on our models.

    Example: diffclip benchmark eval --pretrained runs/clip --dataset wds/cifar10 --dataset_root sets/cifar10 --no_amp

    --pretrained takes a MODEL of diffclip evaluate that is, or converts to, one of our CLIPs. --plugin stands before
    eval. diffclip benchmark eval --help lists clip_benchmark's options.
    """
    from diffclip.integrations.clip_benchmark import run_command

    run_command(context.args)
