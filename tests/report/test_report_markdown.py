import re

import pytest
from run_folders import make_run
from suite_records import suite_records

from diffclip.errors import InputError
from diffclip.report.markdown import write_section
from diffclip.report.runs import read_run
from diffclip.report.series import collect

BEFORE = (
    "# Results\r\n\r\nWritten by hand, with spaces at the end.  \n\n"
    "<!-- begin other -->\nkept\n<!-- end other -->\n"
)
AFTER = "\n\n## Later\n\nNo newline at the end"


@pytest.fixture
def collection(tmp_path):
    return collect(
        [read_run(make_run(tmp_path / m, m, level=v)) for m, v in (("CLIP", 0.2), ("DiffCLIP", 0.6))], []
    )


def test_the_section_is_replaced_and_the_rest_kept_to_the_byte(tmp_path, collection):
    file = tmp_path / "docs" / "results.md"
    file.parent.mkdir()
    file.write_bytes(f"{BEFORE}<!-- begin demo -->\nold\n<!-- end demo -->{AFTER}".encode())
    write_section(file, "demo", collection, file.parent / "figures", "diffclip report x")
    text = file.read_bytes().decode()
    assert text.startswith(f"{BEFORE}<!-- begin demo -->\n")
    assert text.endswith(f"<!-- end demo -->{AFTER}")
    assert "\nold\n" not in text
    assert "| DiffCLIP − CLIP (points) |" in text
    assert "**In one training run each on scenes (test), DiffCLIP is better than CLIP" in text
    assert "What this does not show" in text
    assert "diffclip report x" in text
    write_section(file, "demo", collection, file.parent / "figures", "diffclip report x")
    assert file.read_bytes().decode() == text


def test_links_are_relative_and_lead_to_the_figures(tmp_path, collection):
    file = tmp_path / "docs" / "results.md"
    written = write_section(file, "demo", collection, tmp_path / "pictures")
    links = re.findall(r"\(([^()\s]+\.(?:png|svg))\)", file.read_text())
    assert len(links) == 12
    assert all(link.startswith("../pictures/demo_") for link in links)
    assert {(file.parent / link).resolve() for link in links} == {path.resolve() for path in written[:-1]}
    assert all(path.is_file() for path in written)


def test_a_new_section_goes_to_the_end(tmp_path, collection):
    file = tmp_path / "results.md"
    file.write_text("# Results\n")
    write_section(file, "demo", collection, tmp_path / "figures")
    assert file.read_text().startswith("# Results\n\n<!-- begin demo -->\n")
    assert file.read_text().endswith("<!-- end demo -->\n")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- begin demo -->",
        "<!-- end demo --><!-- begin demo -->",
        "<!-- begin demo --><!-- begin demo --><!-- end demo -->",
    ],
)
def test_markers_that_do_not_match_are_named(tmp_path, collection, text):
    file = tmp_path / "results.md"
    file.write_text(text)
    with pytest.raises(InputError, match="needs one begin and one end marker"):
        write_section(file, "demo", collection, tmp_path / "figures")
    assert file.read_text() == text
    assert not (tmp_path / "figures").exists()


def test_a_section_name_that_could_end_a_comment_is_refused(tmp_path, collection):
    with pytest.raises(InputError, match="letters, digits"):
        write_section(tmp_path / "results.md", "a --> b", collection, tmp_path / "figures")


def test_a_suite_has_its_figures_tables_and_every_set_folded(tmp_path):
    collection = collect([], suite_records({"CLIP": 0.0, "DiffCLIP": 0.03}))
    file = tmp_path / "results.md"
    written = write_section(file, "demo", collection, tmp_path / "figures", paper=True)
    assert [path.name for path in written[:-1:2]] == [
        "demo_six_tasks.png",
        "demo_out_of_domain.png",
        "demo_minimal_pairs.png",
    ]
    text = file.read_text()
    assert text.index("demo_six_tasks.png") < text.index("**Six tasks (%)**") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 1
    assert "| *DiffCLIP, CC12M (paper)* | 89.5 (+1.2) |" in text
    # GitHub reads Markdown inside of HTML after an empty line only
    assert "</summary>\n\n" in text
