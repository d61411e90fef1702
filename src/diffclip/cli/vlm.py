"""`diffclip vlm`: a language model that sees through DiffCLIP."""

from __future__ import annotations

import typer

from diffclip.cli.vlm_ask import ask
from diffclip.cli.vlm_data import vlm_data
from diffclip.cli.vlm_demo import demo
from diffclip.cli.vlm_evaluate import evaluate
from diffclip.cli.vlm_train import train

vlm = typer.Typer(help="A language model that sees through DiffCLIP: train it, ask it.", no_args_is_help=True)
vlm.command("train")(train)
vlm.command("ask")(ask)
vlm.command("evaluate")(evaluate)
vlm.command("data")(vlm_data)
vlm.command("demo")(demo)
