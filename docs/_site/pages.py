"""MkDocs hooks: make the pages of commands (from their help), of the tutorial (its notebook) and of experiments."""

import json
import re
from base64 import b64decode
from pathlib import Path

import typer
from mkdocs.structure.files import File

from diffclip.cli.main import app

NOTEBOOK, PAGE = "tutorial.ipynb", "tutorial.md"
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/log.md")


def on_files(files, config, **_):
    """Add the notebook's cells as a page beside the notebook, the experiments' pages, and those of the project."""
    top = Path(config.docs_dir).parent
    for path in (*(top / name for name in PROJECT), *sorted((top / "experiments").rglob("*"))):
        if path.suffix in (".md", ".png") or path.name == "spec.yaml":
            files.append(File.generated(config, path.relative_to(top).as_posix(), abs_src_path=str(path)))
    cells = json.loads((Path(config.docs_dir) / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    parts = [f"[The notebook itself]({NOTEBOOK}), to run it.\n"]
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        language = "bash" if text.startswith("%%bash") else "python"
        parts.append(text if cell["cell_type"] == "markdown" else f"```{language}\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                picture = f"tutorial-{number}.png"
                content = b64decode("".join(shown["image/png"]))
                files.append(File.generated(config, picture, content=content))
                parts.append(f"![Output of the cell above]({picture})")
            else:
                parts.append(
                    "".join(shown.get("text/html") or f"```text\n{''.join(shown['text/plain'])}\n```")
                )
    parts[:2] = parts[1::-1]  # below the title
    files.append(File.generated(config, PAGE, content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown, page, **_):
    """Append the commands' help to `reference/commands.md`; let `index.md` link to the page of the notebook, and links
    between `docs/` and the other folders be those of the site."""
    if page.file.src_uri.startswith("experiments/"):
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    markdown = re.sub(r"\]\(\.\./(experiments|benchmarks)/", r"](\1/", markdown)
    if page.file.src_uri in PROJECT:
        return markdown.replace("](docs/", "](")
    if page.file.src_uri == "index.md":
        return markdown.replace(f"({NOTEBOOK})", f"({PAGE})")
    if page.file.src_uri != "reference/commands.md":
        return markdown
    return markdown + "\n\n".join(_command_sections(typer.main.get_command(app), "diffclip"))


def _command_sections(command, name):
    """Yield the help of a command as Markdown, or that of all commands of a group."""
    if commands := getattr(command, "commands", None):
        for word, child in commands.items():
            yield from _command_sections(child, f"{name} {word}")
        return
    context = typer.Context(command, info_name=name)
    yield f"## `{name}`"
    for paragraph in command.help.split("\n\n"):
        label, _, example = paragraph.partition(": ")
        yield f"```bash\n{example}\n```" if label == "Example" else paragraph
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"Usage: `{name} {usage}`"
    records = [(param, *param.get_help_record(context)) for param in command.params]
    yield "\n".join(
        f"- `{param.metavar if param.param_type_name == 'argument' else names}`: {text}"
        for param, names, text in records
    )
