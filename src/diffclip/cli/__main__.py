"""`python -m diffclip.cli`."""

from diffclip.cli.main import main

main()
