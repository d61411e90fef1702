"""A record's protocol: how a number was measured and, after a bar, what one run of it found on the way.

The first part is the same for all models that may be compared; the second, such as the cost that a search chose
and the seconds of each fit, is each run's own. Where a task draws at random (episodes, what is held out), the second
part begins with the seed of that draw: runs that differ in nothing else are repetitions of one measurement.
"""

from __future__ import annotations

import re

_BAR = " | "
_DRAW = re.compile(r"draw (\d+)(?:; |$)")


def with_particulars(method: str, particulars: str) -> str:
    """The protocol of a run that measured by `method`; empty particulars add nothing."""
    return f"{method}{_BAR}{particulars}" if particulars else method


def method_of(protocol: str) -> str:
    """How the number was measured; equal for numbers that may be compared."""
    return protocol.partition(_BAR)[0]


def particulars_of(protocol: str) -> str:
    """What the run found on the way; empty where there is nothing to say."""
    return protocol.partition(_BAR)[2]


def drawn(seed: int, particulars: str = "") -> str:
    """The particulars of a run that drew with `seed`."""
    return f"draw {seed}; {particulars}" if particulars else f"draw {seed}"


def draw_of(protocol: str) -> int | None:
    """The seed of what the run drew at random; None where nothing was."""
    found = _DRAW.match(particulars_of(protocol))
    return int(found[1]) if found else None
