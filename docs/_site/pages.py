"""MkDocs hooks: write the page of commands from their help, and the page of the tutorial from its notebook."""

import json
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File

NOTEBOOK, PAGE = "tutorial.ipynb", "tutorial.md"


def on_files(files, config, **_):
    """Add the notebook's cells as a page beside the notebook."""
    cells = json.loads((Path(config.docs_dir) / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    parts = [f"[The notebook itself]({NOTEBOOK}), to run it.\n"]
    for cell in cells:
        text = "".join(cell["source"])
        language = "bash" if text.startswith("%%bash") else "python"
        parts.append(text if cell["cell_type"] == "markdown" else f"```{language}\n{text}\n```")
    parts[:2] = parts[1::-1]  # below the title
    files.append(File.generated(config, PAGE, content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown, page, **_):
    """Append the commands' help to `reference/commands.md`; let `index.md` link to the page of the notebook."""
    if page.file.src_uri == "index.md":
        return markdown.replace(f"({NOTEBOOK})", f"({PAGE})")
    if page.file.src_uri != "reference/commands.md":
        return None
    command = [sys.executable, "-m", "typer", "diffclip.cli.main", "utils", "docs", "--name", "diffclip"]
    return markdown + subprocess.run(command, capture_output=True, text=True, check=True).stdout
