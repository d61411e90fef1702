"""Run the tutorial and keep its results in the notebook: `python docs/_site/run_tutorial.py` (minutes)."""

import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "tutorial.ipynb"


def keep_results(notebook) -> None:
    """Keep printed results, tables and images; leave out progress, warnings and the bold letters of a terminal."""
    for cell in notebook.cells:
        outputs = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
        printed = [output for output in outputs if output.output_type == "stream"]
        shown = [
            output
            for output in outputs
            if output.output_type == "execute_result" or "image/png" in output.get("data", ())
        ]
        if printed:  # the kernel cuts a stream where it likes
            text = re.sub(r"\x1b\[\d+m", "", "".join(output.text for output in printed))
            printed[0].text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if "outputs" in cell:
            cell.outputs = [*printed[:1], *shown]


if __name__ == "__main__":
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"timeout": 3600, "record_timing": False, "resources": {"metadata": {"path": folder}}}
        NotebookClient(notebook, **settings).execute()
    keep_results(notebook)
    nbformat.write(notebook, NOTEBOOK)
