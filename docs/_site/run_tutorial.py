"""Run the tutorial and keep its results in the notebook: `python docs/_site/run_tutorial.py` (minutes)."""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "tutorial.ipynb"

os.environ |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}
notebook = nbformat.read(NOTEBOOK, as_version=4)
with tempfile.TemporaryDirectory() as folder:
    client = NotebookClient(
        notebook, timeout=3600, record_timing=False, resources={"metadata": {"path": folder}}
    )
    client.execute()
for cell in notebook.cells:
    # results alone: neither progress nor warnings
    outputs = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
    printed = [output for output in outputs if output.output_type == "stream"]
    shown = [
        output
        for output in outputs
        if output.output_type == "execute_result" or "image/png" in output.get("data", ())
    ]
    if printed:  # the kernel cuts a stream where it likes
        printed[0].text = "".join(output.text for output in printed)
    if "outputs" in cell:
        cell.outputs = [*printed[:1], *shown]
nbformat.write(notebook, NOTEBOOK)
