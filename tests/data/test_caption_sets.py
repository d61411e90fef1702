from pathlib import Path

import pytest

from diffclip.data.caption_sets import CAPTION_SETS, counted, duration, needs, told


def test_needs_grow_with_the_list_and_time_shrinks_with_processes() -> None:
    entry = CAPTION_SETS["cc12m"]
    all_of_it = needs(entry, entry.pairs, 16)
    assert all_of_it.pictures == pytest.approx(0.62 * 12_423_374, rel=1e-6)
    # img2dataset documents 5 h with 16 processes
    assert all_of_it.hours == pytest.approx(5.48, abs=0.01)
    half = needs(entry, entry.pairs // 2, 8)
    assert half.hours == pytest.approx(all_of_it.hours, rel=1e-6)
    assert half.size == pytest.approx(all_of_it.size / 2, rel=1e-6)
    assert 300e9 < all_of_it.size < 330e9


def test_what_is_said_before() -> None:
    lines = told(CAPTION_SETS["cc3m"], 3_318_333, 1, Path("sets/cc3m"), 10**12)
    assert lines[0] == (
        "3.3 M pairs in the list; about 2.3 M pictures can be expected "
        "(70 % came in January 2024, by img2dataset's issue 391; fewer each month, as links rot)"
    )
    assert lines[1].startswith("about 94 GB in sets/cc3m, where 1000 GB are free (40 KB a picture")
    assert lines[2].startswith("about 17 h with 1 process (")
    assert "links rot" not in told(CAPTION_SETS["mscoco"], 10, 2, Path("x"), 0)[0]


def test_lists_with_and_without_an_address() -> None:
    assert len(CAPTION_SETS["coyo700m"].files) == 128
    assert (
        CAPTION_SETS["coyo700m"]
        .files[127]
        .endswith("/part-00127-17da4908-939c-46e5-91d0-15f256041956-c000.snappy.parquet")
    )
    for name, entry in CAPTION_SETS.items():
        assert bool(entry.addresses) != bool(entry.wants), name
        assert all(file.startswith("https://") for file in entry.files)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (17, "17"),
        (999, "999"),
        (1000, "1.0 k"),
        (591_753, "592 k"),
        (999_999, "1.0 M"),
        (413_000_000, "413 M"),
    ],
)
def test_counts_in_words(number: int, text: str) -> None:
    assert counted(number) == text


@pytest.mark.parametrize(
    ("hours", "text"), [(0.001, "1 min"), (0.21, "13 min"), (5.48, "5 h"), (88, "3.7 days"), (700, "29 days")]
)
def test_times_in_words(hours: float, text: str) -> None:
    assert duration(hours) == text
