"""Files of attention: pages of figures, or the arrays behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.focus.attend import Attended
from diffclip.report.style import png_of, style, svg_of

DRAWN = (".png", ".svg", ".pdf")
ARRAYS = ".npz"


def check_suffix(path: Path) -> None:
    """Raise `InputError` where the name does not say what to write."""
    if path.suffix.lower() not in (*DRAWN, ARRAYS):
        raise InputError(f"{path} should end in {', '.join(DRAWN)} or, for arrays, {ARRAYS}")


def page_files(path: Path, pages: int) -> list[Path]:
    """The files that so many pages become: PDF holds all, else NAME-1.png, NAME-2.png, …"""
    if pages == 1 or path.suffix.lower() == ".pdf":
        return [path]
    return [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(1, pages + 1)]


def write_pages(path: Path, figures: Sequence[Figure], pages: int) -> list[Path]:
    """Write figures on white, as what `path` ends in, to the first of the `page_files` of so many pages.

    The names count the `pages` that were asked for, so that pictures which cannot be read change no name.

    Raises:
        InputError: they cannot be written.
    """
    files = page_files(path, pages)[: len(figures)]
    kind = path.suffix.lower()
    if kind == ".pdf":
        with write_atomically(path) as temporary, style(), PdfPages(temporary, metadata=_NO_DATE) as whole:
            for figure in figures:
                whole.savefig(figure, facecolor="white")
        return files
    for file, figure in zip(files, figures, strict=True):
        content = (
            png_of(figure, ground="white") if kind == ".png" else svg_of(figure, ground="white").encode()
        )
        with write_atomically(file) as temporary:
            temporary.write_bytes(content)
    return files


def write_arrays(
    path: Path, found: Mapping[str, Attended], pictures: Sequence[str], texts: Sequence[str], method: str
) -> Path:
    """Write what each of M models makes of P pictures and T texts as a file for `numpy.load`.

    It holds `models` [M], `pictures` [P], `texts` [T], `method`; `maps` float32 [M, P, T, h, w], raw (T is 1 for a
    method that knows no text), or where grids differ `maps_0`, `maps_1`, … [P, T, h, w] by model; and for texts
    `cosines` and `probabilities` [M, P, T], `tokens` [M, T, L], "" past a text's end, and their `token_relevance`
    [M, P, T, L].

    Raises:
        InputError: it cannot be written.
    """
    each = list(found.values())
    arrays: dict[str, object] = {
        "models": np.array(list(found)),
        "pictures": np.array(pictures),
        "texts": np.array(texts, dtype=np.str_),
        "method": np.array(method),
    }
    if len({one.maps.shape for one in each}) == 1:
        arrays["maps"] = np.stack([one.maps for one in each])
    else:
        arrays |= {f"maps_{number}": one.maps for number, one in enumerate(each)}
    if texts:
        longest = max(one.spoken.shape[-1] for one in each)
        arrays |= {
            "cosines": np.stack([one.cosines for one in each]),
            "probabilities": np.stack([one.probabilities for one in each]),
            "tokens": np.array(
                [[row + [""] * (longest - len(row)) for row in one.pieces] for one in each], dtype=np.str_
            ),
            "token_relevance": np.stack(
                [np.pad(one.spoken, ((0, 0), (0, 0), (0, longest - one.spoken.shape[-1]))) for one in each]
            ),
        }
    # into an open file: numpy gives a name without its suffix another one
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


_NO_DATE = {"CreationDate": None, "Creator": None, "Producer": None}
