from pathlib import Path

import pytest
from made_sets import write_dtd, write_pets

from diffclip.data.evaluation_sets import open_set
from diffclip.data.published_sets import PUBLISHED, base_of, images_of
from diffclip.errors import InputError
from diffclip.evaluation.suite import Entry, missing_of


def test_what_is_missing(tmp_path: Path) -> None:
    write_dtd(tmp_path / "dtd")
    write_pets(tmp_path / "pets")
    (tmp_path / "pets" / "oxford-iiit-pet" / "annotations").rename(tmp_path / "elsewhere")
    entries = [Entry("zero-shot", name) for name in ("sun397", "dtd", "pets")]
    assert missing_of(entries, tmp_path) == {
        "sun397": f"39 GB to download: diffclip data download sun397 --root {tmp_path}",
        "pets": f"811 MB to download: diffclip data download pets --root {tmp_path}",
    }
    assert missing_of(entries[1:2], None)["dtd"].endswith(" --root FOLDER")
    with pytest.raises(InputError, match="dtd has no split 'dev': choose from train, val, test"):
        missing_of([Entry("zero-shot", "dtd", ("dev",))], tmp_path)

    # shards of a set are enough, also in a folder of the hub's name, and a probe needs those to learn from
    (tmp_path / "wds_sun397" / "test").mkdir(parents=True)
    (tmp_path / "wds_sun397" / "test" / "0.tar").touch()
    assert base_of("scenes-shapes-sketch") == images_of("scenes-colours") == "scenes-shapes"
    assert images_of("colours") == images_of("shapes-noisy") == images_of("shapes")
    assert images_of("shapes3d") == "shapes3d"
    assert missing_of([Entry("zero-shot", "sun397")], tmp_path) == {}
    lacks = missing_of([Entry("linear-probe", "sun397")], tmp_path)["sun397"]
    place = tmp_path / "wds_sun397"
    assert lacks.startswith("its split train, which linear-probe and few-shot learn from: put shards into")
    assert (
        f"or move {place} away and get all of it, 39 GB to download: diffclip data download sun397" in lacks
    )


def test_a_set_that_is_not_there_is_named_with_its_size_and_command(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        open_set("cifar10", "test", tmp_path)
    assert str(raised.value) == (
        f"cifar10 (CIFAR-10, 170 MB to download) is not in {tmp_path / 'cifar10'}; to get it: "
        f"diffclip data download cifar10 --root {tmp_path}"
    )
    with pytest.raises(
        InputError, match=r"imagenet1k .*6\.8 GB.*first sign in at https://image-net.org/download"
    ):
        open_set("imagenet1k", "test", tmp_path)
    with pytest.raises(
        InputError, match="needs --data-root FOLDER, with FOLDER/cifar10 in it; to get it: diffclip"
    ):
        open_set("cifar10", "test")
    assert not list(tmp_path.iterdir())


def test_nothing_here_wants_a_download_of_clip_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = pytest.importorskip("clip_benchmark.datasets.builder")
    monkeypatch.setattr(builder, "call", lambda *_, **__: pytest.fail("a shell was asked to download"))
    for name in PUBLISHED:
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match="to get it"):
            open_set(name, "test", tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(PUBLISHED)
