import socket
import threading

import pytest
from PIL import Image

from diffclip.errors import InputError

gradio = pytest.importorskip("gradio")

import diffclip.web  # noqa: E402
from diffclip.web.decoding import Decoder  # noqa: E402
from diffclip.web.folder import SearchedFolder  # noqa: E402
from diffclip.web.names import shown_models  # noqa: E402
from diffclip.web.page import SCRIPT, STYLE, build  # noqa: E402
from diffclip.web.scenes import shown_scenes  # noqa: E402
from diffclip.web.server import address_of, bind, is_local, local_names  # noqa: E402
from diffclip.web.studio import new_studio, told_by  # noqa: E402
from diffclip.web.upload_field import Upload  # noqa: E402


@pytest.fixture
def studio(plain, differential, tmp_path):
    decoder = Decoder()
    models = shown_models([("x/Plain", plain), ("x/Differential", differential)])
    yield new_studio(models, tmp_path, None, decoder)
    decoder.close()


def test_the_page_and_its_labels(studio):
    page = build(studio)
    for block in page.blocks.values():
        if isinstance(block, gradio.components.FormComponent | gradio.Image):
            assert block.label, block
    assert not page.analytics_enabled
    assert page._queue.max_size == 32
    computed = [fn for fn in page.fns.values() if fn.concurrency_id == "models"]
    assert len(computed) == 4
    assert {fn.concurrency_limit for fn in computed} == {1}
    assert all(fn.api_visibility == "private" for fn in page.fns.values() if fn.fn)


def test_how_far_the_indexes_are_is_told_when_the_page_is_opened(plain, photos, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = SearchedFolder(photos, [("Plain", plain)])
    studio = new_studio(shown_models([("Plain", plain)]), tmp_path, folder, Decoder())
    page = build(studio)
    (load,) = [fn for fn in page.fns.values() if fn.targets[0][1] == "load" and fn.fn]
    assert not [
        one for one in page.blocks.values() if "waiting for its turn" in str(getattr(one, "value", ""))
    ]
    folder._update()
    assert "4 pictures" in load.fn()[1]
    folder.close()


def test_a_field_for_pictures_opens_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.Image.open", lambda *_, **__: pytest.fail("gradio opened it"))
    field = Upload(render=False)
    assert field.get_block_name() == "image"
    data = gradio.data_classes.ImageData(path="/x/a.svg", url="data:image/png;base64,AAAA")
    assert field.preprocess(data) == "/x/a.svg"
    assert field.preprocess(None) is None


def test_gradio_leaves_no_file_beside_the_field():
    from pathlib import Path

    assert not list(Path(diffclip.web.__file__).parent.glob("*.pyi"))


def test_a_scene_is_looked_at_with_its_masks(studio):
    scene = studio.scenes[1]
    told, html, choice = studio.look(None, 1, "\n".join(scene.texts), "relevance", 60)
    assert told == ""
    assert html.count("AUROC") > 0
    assert [text for text, _ in choice["choices"]] == scene.texts
    assert html.count('<section class="dc-card"') == 2


def test_an_upload_is_looked_at_without(studio, tmp_path):
    Image.new("RGB", (30, 30), "red").save(tmp_path / "a.png")
    _, html, _ = studio.look(str(tmp_path / "a.png"), None, "a\nb", "rollout", 0)
    assert "AUROC" not in html


def test_what_cannot_be_done_becomes_a_message(studio, tmp_path, capsys):
    def failing():
        raise RuntimeError("out of <memory>")

    told, shown, rest = told_by(lambda: studio.look(None, None, "a", "relevance", 60), 3)
    assert "no picture yet" in told
    assert shown == ""
    assert rest == gradio.skip()
    assert "no folder to search" in told_by(lambda: studio.search("a", None, "Plain", 3), 2)[0]
    assert capsys.readouterr().err == ""
    told, _ = told_by(failing, 2)
    assert "RuntimeError" in told
    assert "a request failed: RuntimeError: out of <memory>" in capsys.readouterr().err


def test_one_request_is_computed_at_a_time(studio):
    done = []
    with studio.turn:
        thread = threading.Thread(
            target=lambda: done.append(studio.look(None, 0, "a", "relevance", 60)), daemon=True
        )
        thread.start()
        thread.join(timeout=0.3)
        assert not done
    thread.join(timeout=30)
    assert done


def test_scenes_have_objects_and_texts_that_fit():
    scenes = shown_scenes()
    assert len({scene.name for scene in scenes}) == 8
    for scene in scenes:
        assert set(scene.masks) < set(scene.texts)
        assert len(scene.texts) == len(scene.masks) + 2
        assert all(0 < mask.mean() < 1 for mask in scene.masks.values())


def test_names_and_colours_differ(plain, differential):
    shown = [one for one, _ in shown_models([("a/M", plain), ("b/M", differential)])]
    assert [one.name for one in shown] == ["a/M", "b/M"]
    twice = [one for one, _ in shown_models([("a/M", plain), ("a/M", plain)])]
    assert [one.name for one in twice] == ["a/M", "a/M (2)"]
    assert twice[0].colours != twice[1].colours


def test_style_and_script_name_no_other_place():
    for text in (STYLE, SCRIPT):
        assert "http" not in text
        assert "@import" not in text


def test_a_port_that_is_taken():
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        assert address_of(first) == f"http://127.0.0.1:{port}/"
        with pytest.raises(InputError, match=f"port {port} is taken"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "256.1.1.1", "x" * 70, "203.0.113.7"])
def test_a_host_that_is_not_here(host):
    with pytest.raises(InputError, match="--host"):
        bind(host, 0)


def test_where_a_page_can_be_reached():
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert is_local(host)
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        assert not is_local(host)
    with socket.socket() as any_:
        any_.bind(("0.0.0.0", 0))
        assert address_of(any_).startswith("http://127.0.0.1:")


def test_a_page_is_called_by_the_address_it_prints():
    with bind("127.0.0.5", 0) as bound:
        assert local_names("127.0.0.5", bound) == {"localhost", "127.0.0.1", "::1", "127.0.0.5"}


def test_names_of_models_that_are_no_text(plain):
    ((one, _),) = shown_models([("x/caf\udce9", plain)])
    assert one.name == "caf\N{REPLACEMENT CHARACTER}"
    assert one.source.encode()
