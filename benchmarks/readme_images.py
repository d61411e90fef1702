"""The images of the documents: a sheet of scenes, and the demo's attention figure.

make demo && python -m benchmarks.readme_images
"""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from diffclip.data.evaluation_sets import open_set
from diffclip.files import write_atomically
from diffclip.model_source import load
from diffclip.report.examples import attention_examples
from diffclip.report.style import with_palette
from diffclip.scenes import draw_scene

FOLDER, DEMO = Path("docs/images"), Path("runs/demo")


def draw_sheet() -> bytes:
    """Draw eight scenes with a caption each, as PNG."""
    figure = Figure(figsize=(7.4, 4.6), layout="constrained")
    for index, axes in enumerate(figure.subplots(2, 4).flat):
        scene = draw_scene(index, size=160)
        axes.imshow(scene.image)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(textwrap.fill(scene.captions[0], 28), fontsize=8)
        axes.spines[:].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()


def main() -> None:
    with write_atomically(FOLDER / "scenes.png") as temporary:
        temporary.write_bytes(with_palette(draw_sheet()))
    models = {name: load(DEMO / name / "checkpoints" / "best") for name in ("CLIP", "DiffCLIP")}
    figure = attention_examples(models, open_set(DEMO / "scenes" / "captions", "test"), 4).figures[0]
    with write_atomically(FOLDER / "demo-attention.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    main()
