import os
import shutil
import threading

import pytest
import torch
from PIL import Image

import diffclip.search.ahead
from diffclip.data.images import find_images, read_image
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_images, embed_texts, evaluating
from diffclip.model_source import load_for_use
from diffclip.search import BusyError, PictureIndex, Update
from diffclip.search.lock import updating


@pytest.fixture
def index(folder, loaded):
    with PictureIndex.open(folder, loaded) as opened:
        yield opened


def exact(loaded, query, files):
    """Path → cosine, best first, in float32 without an index."""
    with evaluating(loaded.model):
        images = torch.stack([loaded.preprocess(read_image(file)) for file in files])
        scores = (embed_images(loaded.model, images) @ query[0]).tolist()
    return dict(sorted(zip(files, scores, strict=True), key=lambda pair: -pair[1]))


def agrees(hits, wanted):
    assert {hit.path: pytest.approx(hit.score, abs=1e-3) for hit in hits} == wanted
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def check(index, loaded, folder):
    """The whole folder, by a text and by a picture, is ranked as without an index."""
    files = [path.resolve() for path in find_images([folder])]
    with evaluating(loaded.model):
        text = embed_texts(loaded.model, loaded.tokenizer, ["a red square"])
        picture = read_image(files[0])
        image = embed_images(loaded.model, loaded.preprocess(picture)[None])
    agrees(index.search_text("a red square", 1000), exact(loaded, text, files))
    hits = index.search_image(picture, 1000)
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


def test_what_has_not_changed_is_not_read_again(index, folder, loaded, draw, monkeypatch):
    index.update()
    read = []
    original = diffclip.search.ahead.read_image

    def counting(path, name=None):
        read.append(name)
        return original(path, name)

    monkeypatch.setattr(diffclip.search.ahead, "read_image", counting)
    draw(folder / "new.png", 60)
    index.update()
    index.search_text("a square", 3)
    with PictureIndex.open(folder, loaded) as again:
        again.update()
    assert read == ["new.png"]


def test_broken_pictures_are_remembered_until_they_change(index, folder, loaded, draw, monkeypatch):
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no picture")
    (folder / "cut.png").write_bytes((folder / "00.png").read_bytes()[:60])
    done = index.update(batch_size=2)
    assert [fault.name for fault in done.faults] == ["cut.png", "empty.jpg", "text.jpg"]
    assert str(done.faults[1]).startswith("empty.jpg is empty (0 bytes)")
    assert (done.added, done.total) == (12, 12)
    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.ahead, "read_image", None)
        assert index.update() == Update(0, 0, 0, done.faults, 12)
    assert index.faults() == done.faults
    draw(folder / "cut.png", 61)
    (folder / "empty.jpg").unlink()
    done = index.update()
    assert (done.changed, done.removed, [fault.name for fault in done.faults]) == (1, 1, ["text.jpg"])


def test_a_file_that_goes_while_it_is_read_is_tried_again(index, folder, draw, monkeypatch):
    original = diffclip.search.ahead.read_image

    def gone(path, name=None):
        if name == "00.png":
            path.unlink(missing_ok=True)
        return original(path, name)

    with monkeypatch.context() as patched:
        patched.setattr(diffclip.search.ahead, "read_image", gone)
        done = index.update()
    assert done.total == 11
    assert "00.png does not exist" in str(done.faults[0])
    assert index.faults() == []
    draw(folder / "00.png", 0)
    assert index.update() == Update(1, 0, 0, [], 12)


def test_workers_read_the_same(folder, loaded, index, tmp_path):
    (folder / "broken.jpg").write_text("no picture")
    index.update()
    with PictureIndex.open(folder, loaded, tmp_path / "other") as other:
        done = other.update(batch_size=4, workers=2)
        assert [fault.name for fault in done.faults] == ["broken.jpg"]
        assert other.search_text("a blue square", 99) == index.search_text("a blue square", 99)


def test_progress_counts_files_and_pictures(index, folder):
    told = []
    index.update(lambda *progress: told.append(progress), batch_size=5)
    assert told == [("files", 12, None), *(("pictures", count, 12) for count in (5, 5, 2))]


def test_each_model_and_preparation_has_its_own_index(
    index, folder, loaded, save_model, tmp_path, cache_home
):
    index.update()
    other = load_for_use(str(save_model(tmp_path / "other", seed=3)))
    larger = load_for_use(loaded.weights, image_size=24)
    for model in (other, larger):
        with PictureIndex.open(folder, model) as opened:
            assert len(opened) == 0
    assert len(list((cache_home / "diffclip" / "search").iterdir())) == 3
    with PictureIndex.open(folder, loaded) as again:
        assert len(again) == 12
        assert again.place == index.place
    with pytest.raises(InputError, match="made with another model"):
        PictureIndex.open(folder, other, index.place)


def test_a_folder_reached_by_a_link_is_the_same_folder(index, folder, loaded, tmp_path, draw):
    index.update()
    (tmp_path / "link").symlink_to(folder)
    with PictureIndex.open(tmp_path / "link", loaded) as linked:
        assert len(linked) == 12
        assert linked.search_text("a square", 1)[0].path.is_relative_to(folder.resolve())
    draw(tmp_path / "second" / "a.png", 1)
    with pytest.raises(InputError, match=r"is the index of .*my pictures: choose another place"):
        PictureIndex.open(tmp_path / "second", loaded, index.place)


def test_a_folder_that_has_lost_all_its_pictures_leaves_the_index(index, folder, tmp_path):
    index.update()
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    with pytest.raises(InputError, match=r"no picture in folder .*my pictures: they end in"):
        index.update()
    folder.rmdir()
    (tmp_path / "unmounted").rename(folder)
    assert index.update() == Update(0, 0, 0, [], 12)


def test_one_updates_at_a_time_and_others_search(index, folder, loaded):
    index.update()
    with PictureIndex.open(folder, loaded) as other, updating(index.place):
        with pytest.raises(BusyError, match=r"this process updates the index .*--no-update"):
            index.update()
        assert len(other.search_text("a square", 5)) == 5
    assert index.update().total == 12


def test_an_open_index_finds_what_another_has_added(index, folder, loaded, draw):
    index.update()
    index.search_text("a square", 1)
    file = draw(folder / "later.png", 70)
    (folder / "00.png").unlink()
    with PictureIndex.open(folder, loaded) as other:
        other.update()
    check(index, loaded, folder)
    assert index.search_image(Image.open(file), 1)[0].path == file.resolve()


def test_opened_in_one_thread_used_in_another(folder, loaded):
    found = []
    with PictureIndex.open(folder, loaded) as index:

        def use():
            index.update()
            found.extend(index.search_text("a square", 4))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert found == index.search_text("a square", 4)
    assert len(found) == 4


def test_a_stop_in_the_middle_keeps_what_was_done(index, folder, loaded):
    def stop(what, done, total):
        if what == "pictures":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.update(stop, batch_size=5)
    assert len(index) == 5
    assert index.update() == Update(7, 0, 0, [], 12)
    check(index, loaded, folder)


def test_queries_that_cannot_be(index, loaded, folder, save_model, tmp_path):
    index.update()
    with pytest.raises(InputError, match="text to search for is empty"):
        index.search_text(" \n", 3)
    with pytest.raises(InputError, match="top is 0"):
        index.search_text("a square", 0)
    broken = load_for_use(str(save_model(tmp_path / "broken")))
    with torch.no_grad():
        next(iter(broken.model.visual.parameters())).fill_(float("nan"))
    with PictureIndex.open(folder, broken) as damaged, pytest.raises(InputError, match="not finite"):
        damaged.update()
