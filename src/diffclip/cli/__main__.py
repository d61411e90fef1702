"""`python -m diffclip.cli`."""

from diffclip.cli import run

run()
