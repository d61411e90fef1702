"""The line that says which backend to use."""

from __future__ import annotations

from typing import Any

from diffclip.benchmarking.advice import advise


def rows(**times: float) -> dict[str, dict[str, Any]]:
    """Rows of one tower with the given milliseconds; what is not given cannot run."""
    names = ("auto", "eager", "sdpa", "triton", "timm")
    return {
        f"differential {name}": {"both": {"median_ms": times[name]}} if name in times else {"why": "not here"}
        for name in names
    }


AUTO = {"vision": "sdpa", "text": "eager"}


def test_auto_is_advised_while_nothing_is_clearly_quicker() -> None:
    found = {
        "vision": rows(auto=10.2, sdpa=10, eager=20, timm=20.4),
        "text": rows(auto=5, sdpa=9, eager=5, timm=7.5),
    }
    backend, line = advise(found, AUTO)
    assert backend == "auto"
    assert line == (
        'use attention_backend="auto": sdpa for vision, 2.0 times; eager for text, 1.5 times '
        "the speed of timm's arrangement, forward and backward"
    )


def test_another_backend_is_advised_where_it_is_quicker_over_both_towers() -> None:
    found = {
        "vision": rows(auto=20, sdpa=10, eager=30, timm=20),
        "text": rows(auto=5, sdpa=5, eager=6, timm=5),
    }
    backend, line = advise(found, AUTO)
    assert backend == "sdpa"
    assert line.startswith('use attention_backend="sdpa": vision, 2.0 times; text, 1.0 times')
