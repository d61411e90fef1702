"""`python -m diffclip`: the command line."""

from diffclip.cli import run

run()
