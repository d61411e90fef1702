"""What the numbers of the task `focus` are called: `{map}_{measure}`, and its details by layer and head."""

from __future__ import annotations

READING = (
    "Higher auroc, ap, inside, inside_over_area and pointing: more of a map on the object. "
    "Lower background10: less on other places.\n"
    "entropy, effective_patches, class_token, top10 and what compares A1 with A2 describe a map; "
    "neither direction is a merit.\n"
    "Chance: a map that is the same everywhere."
)

_DETAIL = "/layer "
_BOTH = ("A1_minus_A2", "A1_A2")
_NOT_SHARES = ("inside_over_area", "effective_patches", "A1_A2_correlation")


def detail(metric: str, layer: int, head: int | None = None) -> str:
    """The name of a headline's detail, of a layer or of one head (of one pair, in a differential layer), from 1 on."""
    return f"{metric}{_DETAIL}{layer}" + ("" if head is None else f" head {head}")


def headline(metric: str) -> str:
    """The headline that a metric belongs to: itself, or what it is a detail of."""
    return metric.partition(_DETAIL)[0]


def kind_of(metric: str) -> str:
    """What was measured, whatever the map; what compares A1 with A2 is its own measure."""
    whole = headline(metric)
    return whole if whole.startswith(_BOTH) else whole.partition("_")[2]


def is_detail(metric: str) -> bool:
    """Whether a metric is of one layer or head, and not a headline."""
    return _DETAIL in metric


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which may be shown in %; a count, a ratio and a correlation are none."""
    return not headline(metric).endswith(_NOT_SHARES)


def bounds(metric: str) -> tuple[float, float] | None:
    """What a metric lies between: a share 0 and 1, a difference of shares or a correlation −1 and 1, others nothing."""
    if headline(metric).startswith(_BOTH):
        return -1.0, 1.0
    return (0.0, 1.0) if is_share(metric) else None
