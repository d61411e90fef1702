"""The choice of an attention map: method, layers, head, patch. A wrong choice is reported before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffclip.errors import InputError, unknown_name
from diffclip.files import printable

METHODS = {
    "relevance": ("Relevance", "how much each patch speaks for the text"),
    "grad-eclip": ("Grad-ECLIP", "how much each patch speaks for the text, by the channels of its value"),
    "legrad": ("LeGrad", "how much more attention to each patch would speak for the text, over the layers"),
    "rollout": ("Rollout", "how much of each patch reaches the class token if layers only mixed"),
    "attention": ("Attention", "the class token's row of A, or of A1 − λ·A2"),
    "A1": ("A1", "the class token's row of the first map"),
    "A2": ("A2", "the class token's row of the second map, which is subtracted"),
}
"""The maps by name, with title and meaning."""
LEGRAD = "legrad"
PAIR_MAPS = ("A1", "A2")  # only differential layers have them
OF_TEXTS = ("relevance", "grad-eclip", LEGRAD)  # methods that need a text; the others take none


def check_encoding(texts: Sequence[str]) -> None:
    """Raise `InputError` for a text of the command line whose bytes were not UTF-8."""
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"the text '{printable(text)}' is not UTF-8: write it in that encoding")


@dataclass(frozen=True)
class View:
    """A choice of maps.

    Attributes:
        method: one of `METHODS`; "" means "relevance" if there are texts, else "attention".
        layers: the vision layers: "last", "all" or a number from 1; "" means "all" for rollout and LeGrad, else "last".
            Relevance and rollout propagate through the layers, Grad-ECLIP sums over them, the other methods take their
            mean. The relevance of tokens takes all text layers for "all", else the last.
        head: one head, counted from 1, instead of all; a pair of heads in a differential layer counts as one head.
        patch: the row and column, from 1 at the top left, of a patch whose row of the map replaces the class token's.
    """

    method: str = ""
    layers: str = ""
    head: int | None = None
    patch: tuple[int, int] | None = None

    def resolved(self, texts: Sequence[str]) -> View:
        """Replace the defaults, given the texts, or raise `InputError` for an invalid view."""
        method = self.method or ("relevance" if texts else "attention")
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        if method in OF_TEXTS and self.patch is not None:
            raise InputError(
                f"--patch does not work with --method {method}: leave --patch out, or use --method attention"
            )
        if method in OF_TEXTS and not texts:
            raise InputError(f'{method} is for a text: give at least one, as in --text "a dog"')
        if method not in OF_TEXTS and texts:
            raise InputError(f"{method} knows no text: leave --text out, or use --method relevance")
        if method == "rollout" and self.head is not None:
            raise InputError("rollout mixes all heads: leave --head out, or use another --method")
        check_encoding(texts)
        layers = self.layers or ("all" if method in ("rollout", LEGRAD) else "last")
        if layers not in ("last", "all") and not layers.isdecimal():
            raise InputError(f"layers {layers!r} is not last, all or the number of a layer, counted from 1")
        return replace(self, method=method, layers=layers)

    def __str__(self) -> str:
        """Describe the view: "Relevance, last vision layer, mean over heads: how much each patch speaks for …"."""
        descriptions = {"last": "last vision layer", "all": "all vision layers"}
        layers = descriptions.get(self.layers, f"vision layer {self.layers}")
        all_heads = "all heads" if self.method == "grad-eclip" else "mean over heads"
        heads = all_heads if self.head is None else f"head {self.head}"
        name, meaning = METHODS[self.method]
        if self.patch is not None:
            name += f" of the patch in row {self.patch[0]}, column {self.patch[1]}"
            meaning = meaning.replace("the class token", "the framed patch")
        return f"{name}, {layers}, {heads}: {meaning}"
