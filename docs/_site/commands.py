"""MkDocs hook: fill the page of commands with what typer says of each command."""

import subprocess
import sys


def on_page_markdown(markdown, page, **_):
    """Append the commands' help as Markdown to `reference/commands.md`."""
    if page.file.src_uri != "reference/commands.md":
        return None
    command = [sys.executable, "-m", "typer", "diffclip.cli.main", "utils", "docs", "--name", "diffclip"]
    return markdown + subprocess.run(command, capture_output=True, text=True, check=True).stdout
