"""The pictures of the README: a sheet of scenes, and the demo's attention figure.

make demo && python -m benchmarks.readme_pictures
"""

from __future__ import annotations

import io
from pathlib import Path

from diffclip.data.evaluation_sets import open_set
from diffclip.files import write_atomically
from diffclip.loading import load
from diffclip.report.examples import attention_examples
from diffclip.report.style import with_palette
from diffclip.scenes import contact_sheet, draw_scene

FOLDER, DEMO = Path("docs/images"), Path("runs/demo")


def main() -> None:
    scenes = [draw_scene(index, size=128) for index in range(8)]
    sheet = contact_sheet(
        [scene.image for scene in scenes], [scene.captions[0] for scene in scenes], edge=160
    )
    drawn = io.BytesIO()
    sheet.save(drawn, "PNG")
    with write_atomically(FOLDER / "scenes.png") as temporary:
        temporary.write_bytes(with_palette(drawn.getvalue()))
    models = {name: load(DEMO / name / "checkpoints" / "best") for name in ("CLIP", "DiffCLIP")}
    figure = attention_examples(models, open_set(DEMO / "scenes" / "captions", "test"), 4).figures[0]
    with write_atomically(FOLDER / "demo-attention.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    main()
