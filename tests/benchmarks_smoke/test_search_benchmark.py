"""benchmarks/search.py, as small as its options allow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

pytest.importorskip("faiss")

from benchmarks import search


def test_an_index_of_made_vectors(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(search, "alone", search.measured)
    monkeypatch.setattr(
        sys, "argv", ["program", "--vectors", "2000", "--width", "32", "--output", str(tmp_path)]
    )
    search.main()
    found = json.loads((tmp_path / "search.json").read_text())
    steps = found["steps"]
    assert [steps["build"][key] for key in ("added", "changed", "removed")] == [2000, 0, 0]
    assert [steps["nothing changed"][key] for key in ("added", "changed", "removed")] == [0, 0, 0]
    assert [steps["1.2 % changed"][key] for key in ("added", "changed", "removed")] == [2, 20, 2]
    assert steps["load after that"]["vectors"] == 2000
    assert steps["search"]["overlap"] > 0.98
    assert found["bytes"]["compact/vectors.faiss"] > 2000 * 2 * 32
    assert str(tmp_path) not in found["about"]["command"]
