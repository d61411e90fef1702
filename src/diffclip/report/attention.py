"""Figures of attention: images with maps of their patches over them, on one scale, and on a model's own.

Shapes: P images, T texts, h × w patches, S pixels of an image's edge.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from diffclip.files import printable, write_atomically
from diffclip.maps.attend import Attended, Prepared
from diffclip.maps.attention_maps import visible_part
from diffclip.maps.view import View

Map = npt.NDArray[np.floating[Any]]
Pixels = npt.NDArray[np.uint8]

RELEVANCE_FLOOR = 0.02
"""The smallest upper end of a relevance scale: smaller values hardly change a logit, and should hardly be visible."""
_SIDE = 288  # pixels: the edge of an image as a model sees it
_LINE = 0.15  # height of a line of text, inches
_MUTED = "#57606a"
_TEXT: dict[str, Any] = {"fontsize": 7.5, "parse_math": False, "linespacing": 1.15}


class Cell(NamedTuple):
    """One image of a figure [S, S, 3], with a map [h, w] over it, a title above and a caption below.

    `patch` is the row and column, from 1, of a patch of the map to frame. `scale` is None for the figure's scale.
    """

    image: Pixels
    values: Map | None = None
    title: str = ""
    caption: str = ""
    patch: tuple[int, int] | None = None
    scale: ScalarMappable | None = None


def scale_of(maps: Sequence[Map], floor: float) -> ScalarMappable:
    """Choose one scale for all maps: from 0, or if a map is signed symmetric about 0, red above and blue below.

    It ends at the 99.5th percentile of magnitudes, so that one patch does not hide the rest, but not below `floor`.
    """
    values = np.concatenate([np.abs(map).ravel() for map in maps]) if maps else np.ones(1)
    limit = max(float(np.quantile(values, 0.995)) or float(values.max()), floor) or 1.0
    if any((map < 0).any() for map in maps):
        return ScalarMappable(Normalize(-limit, limit), "RdBu_r")
    return ScalarMappable(Normalize(0, limit), "inferno")


def own_scales(groups: Mapping[str, Sequence[Map]], floor: float = 0.0) -> dict[str, ScalarMappable]:
    """Choose a scale for each model whose maps would look pale on the scale of all: below four fifths of it."""
    end = scale_of([values for maps in groups.values() for values in maps], floor).get_clim()[1]
    scales = {label: scale_of(maps, floor) for label, maps in groups.items()}
    return {label: scale for label, scale in scales.items() if scale.get_clim()[1] < 0.8 * end}


def draw_map(values: Map, edge: int, scale: ScalarMappable) -> Pixels:
    """Draw a map [h, w], smoothly upsampled, as RGBA [edge, edge, 4]; smaller values are more transparent."""
    small = Image.fromarray(np.asarray(values, np.float32))
    smooth = np.asarray(small.resize((edge, edge), Image.Resampling.BICUBIC))
    colors = scale.to_rgba(smooth)
    colors[..., 3] = 0.5 + 0.4 * np.clip(np.abs(smooth) / scale.get_clim()[1], 0, 1)
    return (255 * colors).round().astype(np.uint8)


def grid_figure(
    rows: Sequence[Sequence[Cell]], note: str = "", labels: Sequence[str] = (), floor: float = 0.0
) -> Figure:
    """Draw rows of cells, with a color bar below if there are maps.

    Args:
        rows: of cells; the last ones may be shorter.
        note: what the maps are.
        labels: one per row, at its left.
        floor: the smallest upper end of the scale.
    """
    columns = max(map(len, rows))
    side = min(max(9.0 / columns, 1.15), 2.2)  # inches
    width, letters = max(columns * side, 3.0) + 0.3, int(side * 14)
    footer = textwrap.fill(note, int(width * 14))
    texts = [[_lines(cell.title, letters) + _lines(cell.caption, letters) for cell in row] for row in rows]
    lines = sum(map(max, texts)) + footer.count("\n") + 1
    height = len(rows) * (side + 0.05) + lines * _LINE + 0.5
    figure = Figure((width, height), layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02))
    scale = scale_of([cell.values for row in rows for cell in row if cell.values is not None], floor)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_row, row, label in zip(grid, rows, [*labels, *[""] * len(rows)], strict=False):
        for axes, cell in zip(axes_row, row, strict=False):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if cell.values is None:
                axes.imshow(cell.image)
            else:
                gray = np.asarray(cell.image).mean(-1, keepdims=True).repeat(3, -1) / 255
                axes.imshow(gray)
                axes.imshow(draw_map(cell.values, cell.image.shape[0], cell.scale or scale))
                if cell.patch:
                    edge = cell.image.shape[0] / cell.values.shape[0]
                    corner = ((cell.patch[1] - 1) * edge - 0.5, (cell.patch[0] - 1) * edge - 0.5)
                    for color, line in (("black", 2.4), ("white", 1.0)):
                        axes.add_patch(Rectangle(corner, edge, edge, fill=False, color=color, lw=line))
            axes.set_title(_wrapped(cell.title, letters), pad=3, weight="bold", **_TEXT)
            axes.set_xlabel(_wrapped(cell.caption, letters), loc="left", labelpad=1, color=_MUTED, **_TEXT)
        short_label = textwrap.fill(printable(label), int(side * 11), max_lines=2, placeholder=" …")
        axes_row[0].set_ylabel(short_label, weight="bold", **_TEXT)
        for axes in axes_row[len(row) :]:
            axes.remove()
    if any(cell.values is not None for row in rows for cell in row):
        options: dict[str, Any] = {"location": "bottom", "anchor": (0.02, 1), "pad": 0.01}
        options |= {"shrink": 2.6 / width, "aspect": 30, "ticks": MaxNLocator(4)}
        bar = figure.colorbar(scale, ax=figure.axes, **options)
        bar.ax.tick_params(labelsize=7, length=2, pad=1)
    figure.supxlabel(footer, x=0.01, ha="left", color=_MUTED, **_TEXT)
    return figure


def _wrapped(text: str, letters: int) -> str:
    return "\n".join(textwrap.fill(printable(line), letters) for line in text.split("\n"))


def _lines(text: str, letters: int) -> int:
    return _wrapped(text, letters).count("\n") + 1 if text else 0


def model_view(image: Image.Image, loaded: Prepared) -> Pixels:
    """Return the part of an image that a model sees, [S, S, 3]."""
    return np.asarray(visible_part(image, loaded[1], _SIDE))


def attend_figures(
    model_maps: Mapping[str, Attended],
    views: Mapping[str, Sequence[Pixels]],
    names: Sequence[str],
    texts: Sequence[str],
    view: View,
) -> Iterator[Figure]:
    """Yield a figure per image with a row per model, as in the paper's Figure 2; each is drawn when it is asked for.

    `model_maps` has the maps by model, for P images and the texts; `views` has the images by model, as the model sees
    them; `view` says which maps they are.
    """
    floor = RELEVANCE_FLOOR if view.method == "relevance" else 0.0
    shares = " %: share of each text, by the softmax of the logits over the texts." if len(texts) > 1 else ""
    for number, name in enumerate(names):
        images = {label: model_views[number] for label, model_views in views.items()}
        labels, rows = model_rows(model_maps, images, list(texts) or [view.method], number, floor, view.patch)
        yield grid_figure(rows, f"{printable(name)}: {view}.{shares}", labels, floor)


def model_rows(
    model_maps: Mapping[str, Attended],
    views: Mapping[str, Pixels],
    titles: Sequence[str],
    number: int = 0,
    floor: float = 0.0,
    patch: tuple[int, int] | None = None,
) -> tuple[list[str], list[list[Cell]]]:
    """Make a row per model for image `number`, the image and its maps, and return labels and rows.

    A model whose maps would look empty beside the others' gets a second row, on a scale of its own. Only the first row
    has titles. `patch` is framed in the maps.
    """
    scales = own_scales({label: list(attended.maps[number]) for label, attended in model_maps.items()}, floor)
    labels: list[str] = []
    rows: list[list[Cell]] = []
    for label, attended in model_maps.items():
        maps = map_cells(attended, number, views[label], titles)
        cells = [Cell(views[label], title="image"), *(cell._replace(patch=patch) for cell in maps)]
        labels.append(label)
        rows.append(cells)
        if scale := scales.get(label):
            labels.append(f"{label}, own scale to {scale.get_clim()[1]:.2g}")
            rows.append([cell._replace(scale=scale, caption="") for cell in cells])
    return labels, [rows[0], *([cell._replace(title="") for cell in row] for row in rows[1:])]


def map_cells(attended: Attended, number: int, image: Pixels, titles: Sequence[str]) -> list[Cell]:
    """Make a cell per map of image `number`, with its cosine and, among several texts, its share."""
    cells = []
    for text, title in enumerate(titles):
        caption = ""
        if attended.pieces:
            cosine = round(float(attended.cosines[number, text]), 2) + 0  # −0.0 becomes 0
            caption = f"cosine {cosine:.2f}".replace("-", "−")
            if len(attended.pieces) > 1:
                caption += f", {100 * attended.probabilities[number, text]:.0f} %"
        cells.append(Cell(image, attended.maps[number, text], title, caption))
    return cells


def write_figures(paths: Sequence[Path], figures: Iterable[Figure], count: int) -> list[Path]:
    """Write `count` figures to each path, in the format of its ending; several get the names NAME-1.png, NAME-2.png, …

    A figure takes 10 MB, so each is written before the next is drawn.
    """
    written = []
    with warnings.catch_warnings():
        # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for number, figure in enumerate(figures, 1):
            for path in paths:
                file = path if count == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
                with write_atomically(file) as temporary:
                    figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=144)
                written.append(file)
    return written
