import json
import os
import shutil
import threading

import numpy as np
import pytest
import torch

import diffclip.search.embed
import diffclip.search.index
from diffclip.data.images import find_images, read_image
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_images, embed_texts, evaluating
from diffclip.model_source import load_for_use
from diffclip.search import ImageIndex, Update


@pytest.fixture
def index(folder, loaded):
    return ImageIndex(folder, loaded)


def exact(loaded, query, files):
    """Path → cosine, best first, in float32 without an index."""
    with evaluating(loaded.model):
        images = torch.stack([loaded.preprocess(read_image(file)) for file in files])
        scores = (embed_images(loaded.model, images) @ query[0]).tolist()
    return dict(sorted(zip(files, scores, strict=True), key=lambda pair: -pair[1]))


def agrees(hits, wanted):
    assert {hit.path: pytest.approx(hit.score, abs=1e-3) for hit in hits} == wanted
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def save_every_batch(monkeypatch):
    monkeypatch.setattr(diffclip.search.index, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(diffclip.search.index, "_SAVE_SHARE", 1e9)


def check(index, loaded, folder):
    """The whole folder, by a text and by an image, is ranked as without an index."""
    files = [path.resolve() for path in find_images([folder])]
    with evaluating(loaded.model):
        text = embed_texts(loaded.model, loaded.tokenizer, ["a red square"])
        query = read_image(files[0])
        image = embed_images(loaded.model, loaded.preprocess(query)[None])
    agrees(index.search_text("a red square", 1000), exact(loaded, text, files))
    hits = index.search_image(query, 1000)
    agrees(hits, exact(loaded, image, files))
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    assert all(hit.score <= 1 for hit in hits)
    assert len(index) == len(files)


def test_new_changed_deleted_renamed(index, folder, loaded, draw):
    assert index.search_text("anything", 3) == []
    assert index.update(batch_size=5) == Update(12, 0, 0, [], 12)
    check(index, loaded, folder)
    assert index.update() == Update(0, 0, 0, [], 12)
    draw(folder / "new" / "a.png", 50)
    draw(folder / "00.png", 51)
    (folder / "03.png").unlink()
    (folder / "06.png").rename(folder / "six.png")
    shutil.rmtree(folder / "more" / "ü ñ")
    assert index.update() == Update(2, 1, 6, [], 8)
    check(index, loaded, folder)
    os.utime(folder / "new" / "a.png", ns=(1, 1))
    assert index.update() == Update(0, 1, 0, [], 8)
    check(index, loaded, folder)


def test_files_that_have_not_changed_are_not_read_again(index, folder, loaded, draw, monkeypatch):
    index.update()
    read = []
    original = diffclip.search.embed.read_image

    def counting(path, name=None):
        read.append(name)
        return original(path, name)

    monkeypatch.setattr(diffclip.search.embed, "read_image", counting)
    draw(folder / "new.png", 60)
    index.update()
    index.search_text("a square", 3)
    ImageIndex(folder, loaded).update()
    assert read == ["new.png"]


def test_broken_images_are_remembered_until_they_change(index, folder, draw, monkeypatch):
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("not an image")
    (folder / "cut.png").write_bytes((folder / "00.png").read_bytes()[:60])
    done = index.update(batch_size=2)
    assert [fault.name for fault in done.faults] == ["cut.png", "empty.jpg", "text.jpg"]
    assert str(done.faults[1]).startswith("empty.jpg is empty (0 bytes)")
    assert (done.added, done.total) == (12, 12)
    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.embed, "read_image", None)
        assert index.update() == Update(0, 0, 0, done.faults, 12)
    draw(folder / "cut.png", 61)
    (folder / "empty.jpg").unlink()
    done = index.update()
    assert (done.changed, done.removed, [fault.name for fault in done.faults]) == (1, 1, ["text.jpg"])


def test_a_file_that_the_system_does_not_let_us_read_is_tried_again(index, folder, monkeypatch):
    original = diffclip.search.embed.read_image

    def refused(path, name=None):
        return original(path.with_suffix(".gone"), name) if name == "00.png" else original(path, name)

    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.embed, "read_image", refused)
        done = index.update()
    assert (done.total, [fault.name for fault in done.faults]) == (11, ["00.png"])
    assert index.update().total == 12


def test_workers_read_the_same(folder, loaded, index, tmp_path):
    (folder / "broken.jpg").write_text("not an image")
    index.update()
    other = ImageIndex(folder, loaded, tmp_path / "other")
    done = other.update(batch_size=4, workers=2)
    assert [fault.name for fault in done.faults] == ["broken.jpg"]
    assert other.search_text("a blue square", 99) == index.search_text("a blue square", 99)


def test_faiss_finds_the_same(index, folder, loaded, monkeypatch):
    pytest.importorskip("faiss")
    index.update()
    without = index.search_text("a red square", 5)
    monkeypatch.setattr(diffclip.search.index, "LARGE", 1)
    with_faiss = index.search_text("a red square", 5)
    assert [hit.path for hit in with_faiss] == [hit.path for hit in without]
    check(index, loaded, folder)


def test_each_model_and_preparation_has_its_own_index(index, folder, loaded, save_model, tmp_path):
    index.update()
    other = load_for_use(str(save_model(tmp_path / "other", seed=3)))
    larger = load_for_use(loaded.weights, image_size=24)
    for model in (other, larger):
        assert len(ImageIndex(folder, model)) == 0
    assert len(ImageIndex(folder, loaded)) == 12
    with pytest.raises(InputError, match="made with another model"):
        ImageIndex(folder, other, index.place)


def test_a_folder_reached_by_a_link_is_the_same_folder(index, folder, loaded, tmp_path, draw):
    index.update()
    (tmp_path / "link").symlink_to(folder)
    linked = ImageIndex(tmp_path / "link", loaded)
    assert len(linked) == 12
    assert linked.search_text("a square", 1)[0].path.is_relative_to(folder.resolve())
    draw(tmp_path / "second" / "a.png", 1)
    with pytest.raises(InputError, match=r"is the index of .*my images: choose another place"):
        ImageIndex(tmp_path / "second", loaded, index.place)


def test_a_folder_that_has_lost_all_its_images_leaves_the_index(index, folder, tmp_path):
    index.update()
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    with pytest.raises(InputError, match=r"folder .*my images has no image"):
        index.update()
    folder.rmdir()
    (tmp_path / "unmounted").rename(folder)
    assert index.update() == Update(0, 0, 0, [], 12)


def test_a_read_only_index_is_searched(folder, loaded, tmp_path, draw):
    place = tmp_path / "place"
    ImageIndex(folder, loaded, place).update()
    whole = {file: file.read_bytes() for file in place.iterdir()}
    for file in [*whole, place]:
        file.chmod(0o500 if file == place else 0o400)
    index = ImageIndex(folder, loaded, place)
    assert index.update().total == 12
    assert len(index.search_text("a square", 20)) == 12
    if os.geteuid():  # nothing is read-only to root
        draw(folder / "new.png", 60)
        with pytest.raises(InputError, match="cannot write"):
            index.update()
    place.chmod(0o700)
    assert {file: file.read_bytes() for file in place.iterdir()} == whole


def test_one_thread_searches_what_another_has_embedded_so_far(index, folder, monkeypatch):
    save_every_batch(monkeypatch)
    counts = []

    def progress(what, done, total):
        thread = threading.Thread(target=lambda: counts.append(len(index.search_text("a square", 99))))
        thread.start()
        thread.join()

    index.update(progress, batch_size=5)
    assert counts == [0, 5, 10]


def test_a_stop_in_the_middle_keeps_what_was_saved(folder, loaded, monkeypatch):
    save_every_batch(monkeypatch)
    done = []

    def stop(what, count, total):
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ImageIndex(folder, loaded).update(stop, batch_size=5)
    index = ImageIndex(folder, loaded)
    assert len(index) == 5
    assert index.update() == Update(7, 0, 0, [], 12)
    check(index, loaded, folder)
    assert len(list(index.place.iterdir())) == 2


def test_what_a_killed_first_save_leaves_is_not_an_index(folder, loaded, tmp_path):
    place = tmp_path / "index"
    place.mkdir()
    (place / ".1a2b3c4d.tmp").write_bytes(b"half")
    np.save(place / "vectors-1a2b3c4d.npy", np.zeros((3, 4), np.float16))
    assert ImageIndex(folder, loaded, place).update().total == 12
    assert len(ImageIndex(folder, loaded, place)) == 12
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "letter.txt").write_text("Dear")
    with pytest.raises(InputError, match="holds other files"):
        ImageIndex(folder, loaded, tmp_path / "notes")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda place: (place / "images.jsonl").write_text("junk"), "is damaged"),
        (lambda place: (place / "images.jsonl").write_text('{"format": 1}'), "another version"),
        (lambda place: next(place.glob("*.npy")).unlink(), "is missing"),
        (lambda place: next(place.glob("*.npy")).write_bytes(b"junk"), "is damaged"),
        (lambda place: np.save(next(place.glob("*.npy")), np.zeros((3, 4), np.float16)), "12 images, but"),
    ],
)
def test_a_damaged_index_is_one_line(index, folder, loaded, damage, line):
    index.update()
    damage(index.place)
    with pytest.raises(InputError, match=line) as caught:
        ImageIndex(folder, loaded)
    assert "remove" in str(caught.value)


def test_names_that_are_not_text(index, folder):
    name = b"not \xff utf-8\n.png"
    os.link(folder / "00.png", os.path.join(os.fsencode(folder), name))
    index.update()
    again = ImageIndex(folder, index.loaded)
    assert os.fsdecode(name) in [hit.path.name for hit in again.search_text("a square", 99)]
    lines = (index.place / "images.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 14


def test_queries_that_cannot_be(index, loaded, folder, save_model, tmp_path):
    assert index.search_text("a square", 3) == []
    index.update()
    with pytest.raises(InputError, match="text to search for is empty"):
        index.search_text(" \n", 3)
    with pytest.raises(InputError, match="top is 0"):
        index.search_text("a square", 0)
    broken = load_for_use(str(save_model(tmp_path / "broken")))
    with torch.no_grad():
        next(iter(broken.model.visual.parameters())).fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        ImageIndex(folder, broken).update()
