"""`diffclip benchmark`: clip_benchmark's command line on our models."""

from __future__ import annotations

import typer

# How the command is registered, with add_help_option=False: every word goes through as it stands, --help too
SETTINGS = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def benchmark(context: typer.Context) -> None:
    """Run clip_benchmark, with all its options, on our models."""
    from diffclip.integrations.clip_benchmark import run_command

    run_command(context.args)
