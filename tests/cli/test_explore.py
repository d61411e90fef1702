import socket
from functools import partial

import in_process
import pytest

from diffclip.errors import InputError

call = partial(in_process.call, "explore")


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Record the arguments of the server instead of starting it."""
    calls = []
    monkeypatch.setattr("diffclip.web.server.serve_in_background", lambda *given: calls.append(given))
    monkeypatch.setattr("diffclip.web.server.serve", lambda page: None)
    return calls


def test_explore_without_a_model_serves_the_demo_models(model_folder, tmp_path, monkeypatch, served):
    monkeypatch.chdir(tmp_path)
    for name in ("CLIP", "DiffCLIP"):
        (tmp_path / "runs" / "demo" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "runs" / "demo" / name / "checkpoints" / "best").symlink_to(model_folder)
    call("--port", 0, "--no-browser")
    assert [source for source, _ in served[0][0]] == ["runs/demo/CLIP", "runs/demo/DiffCLIP"]
    assert served[0][1] == "127.0.0.1"


def test_public_host_without_a_password_prints_a_warning(model_folder, served):
    options = {"--model": model_folder, "--host": "0.0.0.0", "--port": 0}
    words = [word for pair in options.items() for word in pair]
    (line,) = call(*words, "--no-browser")[1].splitlines()
    assert line.startswith(f"diffclip: WARNING: anyone who reaches port {served[0][2]} of this machine")
    assert call(*words, "--no-browser", "--auth", "a:b")[1] == ""


def test_a_port_in_use_is_refused(model_folder, served):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port {port} \(Address already in use\): choose another"):
            call("--model", model_folder, "--port", port)
    assert not served
