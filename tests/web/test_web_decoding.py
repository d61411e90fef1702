import io
import multiprocessing

import pytest
from PIL import Image
from web_bombs import endless_jpeg

from diffclip.errors import InputError
from diffclip.web.decoding import Decoder


@pytest.fixture(scope="module")
def decoder():
    one = Decoder(seconds=1.0)
    yield one
    one.close()


def png(size=(30, 20), colour=(9, 200, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_picture_comes_back_as_it_was(decoder):
    picture = decoder.decode(png(), "a.png")
    assert (picture.mode, picture.size, picture.getpixel((29, 19))) == ("RGB", (30, 20), (9, 200, 30))


def test_what_cannot_be_read_is_said_by_its_name(decoder):
    with pytest.raises(InputError, match=r"^a\udcff\.png is not an image"):
        decoder.decode(b"GIF", "a\udcff.png")
    with pytest.raises(InputError, match=r"^empty is empty"):
        decoder.decode(b"", "empty")


def test_one_that_takes_too_long_is_given_up_and_the_next_is_read(decoder):
    content = endless_jpeg()
    assert len(content) < 400_000
    with pytest.raises(InputError, match=r"^slow\.jpg took too long to read"):
        decoder.decode(content, "slow.jpg")
    assert decoder.decode(png(), "a.png").size == (30, 20)
    assert len([one for one in multiprocessing.active_children() if one.name == "decoder"]) == 1


def test_a_decoder_that_dies_is_replaced(decoder):
    decoder.decode(png(), "a.png")
    decoder._held[0].kill()
    with pytest.raises(InputError, match="its decoder stopped"):
        decoder.decode(png(), "a.png")
    assert decoder.decode(png(), "a.png").size == (30, 20)
