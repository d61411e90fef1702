"""MkDocs hooks: the page of commands from their help, that of the tutorial from its notebook, and the experiments."""

import json
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File

NOTEBOOK, PAGE = "tutorial.ipynb", "tutorial.md"


def on_files(files, config, **_):
    """Add the notebook's cells as a page beside the notebook, and the pages and figures of the experiments."""
    top = Path(config.docs_dir).parent
    for path in sorted((top / "experiments").rglob("*")):
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, path.relative_to(top).as_posix(), abs_src_path=str(path)))
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
    """Append the commands' help to `reference/commands.md`; let `index.md` link to the page of the notebook, and links
    between `docs/` and `experiments/` be those of the site."""
    if page.file.src_uri.startswith("experiments/"):
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    markdown = markdown.replace("](../experiments/", "](experiments/")
    if page.file.src_uri == "index.md":
        return markdown.replace(f"({NOTEBOOK})", f"({PAGE})")
    if page.file.src_uri != "reference/commands.md":
        return markdown
    command = [sys.executable, "-m", "typer", "diffclip.cli.main", "utils", "docs", "--name", "diffclip"]
    return markdown + subprocess.run(command, capture_output=True, text=True, check=True).stdout
