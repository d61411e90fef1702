"""The index of a folder: updates, searches while it grows, and recovery after a kill at any moment."""

import os
import random
import shutil
import threading
import time
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from PIL import Image

import diffclip.search.index
from diffclip.data.images import find_images, read_image
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_images, embed_texts, evaluation_mode
from diffclip.model_source import load_with_origin
from diffclip.search import ImageIndex, Update


def draw(file, seed):
    """An image of 16 colored squares."""
    file.parent.mkdir(parents=True, exist_ok=True)
    colors = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(colors).resize((16, 16), Image.Resampling.NEAREST).save(file)


@pytest.fixture(scope="module")
def loaded(model_folder):
    return load_with_origin(str(model_folder))


@pytest.fixture
def folder(tmp_path):
    """Twelve images at three depths."""
    root = tmp_path / "my images"
    for number in range(12):
        draw(root / ("", "more/", "more/ü ñ/")[number % 3] / f"{number:02d}.png", number)
    return root


@pytest.fixture
def index(folder, loaded):
    return ImageIndex(folder, loaded)


def exact(loaded, query, files):
    """Return path → cosine, best first, in float32 without an index."""
    with evaluation_mode(loaded.model):
        images = torch.stack([loaded.preprocess(read_image(file)) for file in files])
        scores = (embed_images(loaded.model, images) @ query[0]).tolist()
    return dict(sorted(zip(files, scores, strict=True), key=lambda pair: -pair[1]))


def agrees(hits, wanted):
    assert {hit.path: pytest.approx(hit.score, abs=1e-3) for hit in hits} == wanted
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def check(index, loaded, folder):
    """Check that searches by text and by image rank the whole folder as without an index."""
    files = [path.resolve() for path in find_images([folder])]
    with evaluation_mode(loaded.model):
        text = embed_texts(loaded.model, loaded.tokenizer, ["a red square"])
        query = read_image(files[0])
        image = embed_images(loaded.model, loaded.preprocess(query)[None])
    agrees(index.search_text("a red square", 1000), exact(loaded, text, files))
    hits = index.search_image(query, 1000)
    agrees(hits, exact(loaded, image, files))
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    assert all(hit.score <= 1 for hit in hits)
    assert len(index) == len(files)


def test_update_finds_new_changed_deleted_and_renamed_files(index, folder, loaded):
    assert index.search_text("anything", 3) == []
    assert index.update(batch_size=5) == Update(12, 0, 0, [], 12)
    check(index, loaded, folder)
    assert index.update() == Update(0, 0, 0, [], 12)
    draw(folder / "new" / "a.png", 50)
    draw(folder / "00.png", 51)
    (folder / "03.png").unlink()
    (folder / "06.png").rename(folder / "six.png")
    shutil.rmtree(folder / "more" / "ü ñ")
    assert index.update(batch_size=2, workers=2) == Update(2, 1, 6, [], 8)
    check(index, loaded, folder)
    os.utime(folder / "new" / "a.png", ns=(1, 1))
    assert index.update() == Update(0, 1, 0, [], 8)
    check(index, loaded, folder)


def test_files_are_read_again_only_when_they_change(index, folder, loaded, monkeypatch):
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("not an image")
    (folder / "cut.png").write_bytes((folder / "00.png").read_bytes()[:60])
    stats = index.update(batch_size=2, workers=2)
    assert [fault.name for fault in stats.faults] == ["cut.png", "empty.jpg", "text.jpg"]
    assert str(stats.faults[1]).startswith("empty.jpg is empty (0 bytes)")
    assert (stats.added, stats.total) == (12, 12)
    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.index, "read_image", None)
        assert index.update() == Update(0, 0, 0, stats.faults, 12)
        assert ImageIndex(folder, loaded).update() == Update(0, 0, 0, stats.faults, 12)
    draw(folder / "cut.png", 61)
    (folder / "empty.jpg").unlink()
    stats = index.update()
    assert (stats.changed, stats.removed, [fault.name for fault in stats.faults]) == (1, 1, ["text.jpg"])


def test_file_that_cannot_be_opened_is_tried_again(index, folder, monkeypatch):
    original = diffclip.search.index.read_image

    def read_or_fail(path, name=None):
        return original(path.with_suffix(".gone"), name) if name == "00.png" else original(path, name)

    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.index, "read_image", read_or_fail)
        stats = index.update()
    assert (stats.total, [fault.name for fault in stats.faults]) == (11, ["00.png"])
    assert index.update().total == 12


def test_broken_link_is_reported_until_its_target_exists(index, folder, tmp_path):
    (folder / "gone.png").symlink_to(tmp_path / "unmounted" / "gone.png")
    for added in (12, 0):
        stats = index.update()
        assert (stats.added, stats.total, [fault.name for fault in stats.faults]) == (added, 12, ["gone.png"])
    draw(tmp_path / "unmounted" / "gone.png", 50)
    assert index.update() == Update(0, 1, 0, [], 13)


def test_faiss_finds_the_same_images(index, folder, loaded, monkeypatch):
    pytest.importorskip("faiss")
    index.update()
    without = index.search_text("a red square", 5)
    monkeypatch.setattr(diffclip.search.index, "LARGE", 1)
    with_faiss = index.search_text("a red square", 5)
    assert [hit.path for hit in with_faiss] == [hit.path for hit in without]
    check(index, loaded, folder)


def test_each_model_preprocessing_and_folder_has_its_own_index(index, folder, loaded, save_model, tmp_path):
    index.update()
    reseeded = load_with_origin(str(save_model(tmp_path / "other", seed=3)))
    larger = load_with_origin(loaded.weights, image_size=24)
    for model in (reseeded, larger):
        assert len(ImageIndex(folder, model)) == 0
    with pytest.raises(InputError, match="is the index of another model"):
        ImageIndex(folder, reseeded, index.place)
    # a folder reached by a link is the same folder
    (tmp_path / "link").symlink_to(folder)
    linked = ImageIndex(tmp_path / "link", loaded)
    assert len(linked) == 12
    assert linked.search_text("a square", 1)[0].path.is_relative_to(folder.resolve())
    draw(tmp_path / "second" / "a.png", 1)
    with pytest.raises(
        InputError, match=r"is the index of another folder \(.*my images\): choose another place"
    ):
        ImageIndex(tmp_path / "second", loaded, index.place)


def test_index_is_kept_if_the_folder_loses_all_its_images(index, folder, tmp_path):
    index.update()
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    with pytest.raises(InputError, match=r"folder .*my images has no image"):
        index.update()
    (folder / "a.png").symlink_to(tmp_path / "gone" / "a.png")
    with pytest.raises(InputError, match=r"none of 1 images in .* links have targets"):
        index.update()
    shutil.rmtree(folder)
    (tmp_path / "unmounted").rename(folder)
    assert index.update() == Update(0, 0, 0, [], 12)


def test_threads_search_saved_images_and_an_interrupt_keeps_them(index, folder, loaded, monkeypatch):
    monkeypatch.setattr(diffclip.search.index, "_SAVE_SECONDS", 0.0)  # after every batch
    monkeypatch.setattr(diffclip.search.index, "_SAVE_SHARE", 1e9)
    counts = []

    def progress(what, done, total):
        thread = threading.Thread(target=lambda: counts.append(len(index.search_text("a square", 99))))
        thread.start()
        thread.join()
        if len(counts) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.update(progress, batch_size=5)
    assert counts == [0, 5]
    reopened = ImageIndex(folder, loaded)
    assert len(reopened) == 5
    assert reopened.update() == Update(7, 0, 0, [], 12)
    check(reopened, loaded, folder)
    assert len(list(reopened.place.iterdir())) == 2


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (
            lambda place: (place / "images.jsonl").write_text('{"image": "a.jpg"}'),
            "holds other files: choose",
        ),
        (lambda place: (place / "images.jsonl").write_text('{"format": 1}'), "another version .*: remove it"),
        (lambda place: next(place.glob("*.npy")).write_bytes(b"junk"), "is damaged .*: remove that folder"),
        (lambda place: np.save(next(place.glob("*.npy")), np.zeros((3, 4), np.float16)), "12 images, but"),
    ],
)
def test_damaged_or_foreign_index_is_refused_with_the_way_out(index, folder, loaded, damage, line):
    index.update()
    damage(index.place)
    with pytest.raises(InputError, match=line):
        ImageIndex(folder, loaded)


def update(folder, loaded, place, workers):
    diffclip.search.index._SAVE_SECONDS, diffclip.search.index._SAVE_SHARE = 0.0, 1e9  # after every batch
    ImageIndex(folder, loaded, place).update(batch_size=1, workers=workers)


@pytest.mark.slow
def test_update_resumes_after_repeated_kills_with_the_same_results(loaded, tmp_path):
    folder, index_folder, generator, count = tmp_path / "many", tmp_path / "killed", random.Random(0), 150
    for number in range(count):
        draw(folder / f"{number % 7}" / f"{number:03d}.png", number)
    saved = 0
    for kill in range(3):
        # a fork starts at once, and a kill ends it like any other process
        process = get_context("fork").Process(target=update, args=(folder, loaded, index_folder, kill % 2))
        process.start()
        time.sleep(0.1 + 0.5 * generator.random())
        process.kill()
        process.join()
        indexed = len(ImageIndex(folder, loaded, index_folder))
        assert indexed >= saved
        saved = indexed
    assert saved > 0
    index = ImageIndex(folder, loaded, index_folder)
    assert index.update() == Update(count - saved, 0, 0, [], count)
    whole = ImageIndex(folder, loaded, tmp_path / "whole")
    whole.update()
    wanted = {hit.path: hit.score for hit in whole.search_text("a red square", count)}
    agrees(index.search_text("a red square", count), wanted)
