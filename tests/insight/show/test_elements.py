"""Elements as people look at them: images as images, tokens as text, sound as a waveform, arrays as a histogram."""

import base64
import io
import re
import wave
from collections import namedtuple
from dataclasses import dataclass
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace
from headrace import text
from headrace.insight.show import element_html, element_text

RNG = np.random.default_rng(0)


def pictures_in(html: str) -> list[np.ndarray]:
    """The images of a page, decoded by a library that did not write them."""
    found = re.findall(r'<img src="data:image/\w+;base64,([^"]+)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in found]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_are_shown_as_the_same_pixels(channels):
    pixels = RNG.integers(0, 256, (20, 30, channels), np.uint8)
    (shown,) = pictures_in(element_html({"image": pixels}))
    np.testing.assert_array_equal(shown.reshape(pixels.shape), pixels)
    assert "image 30×20" in element_text({"image": pixels})


def test_pixels_without_channels_and_with_channels_first_are_images():
    grey, first = RNG.integers(0, 256, (2, 9, 12), np.uint8)[0], RNG.integers(0, 256, (3, 9, 12), np.uint8)
    np.testing.assert_array_equal(pictures_in(element_html(grey))[0], grey)
    np.testing.assert_array_equal(pictures_in(element_html(first))[0], np.moveaxis(first, 0, -1))


def test_the_first_images_of_a_batch_are_shown():
    batch = RNG.integers(0, 256, (32, 10, 10, 3), np.uint8)
    html = element_html({"image": batch})
    np.testing.assert_array_equal(pictures_in(html), batch[:8])
    assert "32 in all" in html
    assert "32 images 10×10" in element_text({"image": batch})


def test_a_normalized_image_is_stretched_to_what_a_screen_shows():
    image = RNG.normal(size=(16, 20, 3)).astype(np.float32)
    (shown,) = pictures_in(element_html(image))
    assert (shown.min(), shown.max()) == (0, 255)
    assert f"{image.min():.4g} to {image.max():.4g}" in element_html(image)


def test_an_image_of_few_shades_is_stretched():
    digit = np.arange(81, dtype=np.uint8).reshape(9, 9) // 5
    (shown,) = pictures_in(element_html(digit))
    assert (shown.min(), shown.max()) == (0, 255)
    assert "0 to 16" in element_html(digit)


def test_a_large_image_is_shown_smaller():
    (shown,) = pictures_in(element_html(np.zeros((1200, 3000, 3), np.uint8)))
    assert max(shown.shape) <= 512


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_encoded_images_are_shown_as_they_are(kind):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (20, 30, 3), np.uint8)).save(file, kind)
    html = element_html({"image": {"bytes": file.getvalue(), "path": None}})
    assert base64.b64encode(file.getvalue()).decode() in html
    assert f"{kind} image" in element_text(file.getvalue())
    np.testing.assert_array_equal(pictures_in(html)[0], np.asarray(Image.open(file)))


def test_an_image_of_pillow_is_an_image():
    pixels = RNG.integers(0, 256, (20, 30, 3), np.uint8)
    np.testing.assert_array_equal(pictures_in(element_html(Image.fromarray(pixels)))[0], pixels)


@pytest.mark.parametrize("channels", [1, 2])
def test_sound_has_a_waveform_and_a_player_with_the_same_sound(channels):
    samples = np.sin(np.arange(8000)[:, None] / [[10.0, 20.0]])[:, :channels].squeeze()
    html = element_html({"audio": {"array": samples, "sampling_rate": 4000}, "label": 1})
    assert "<svg" in html
    (player,) = re.findall(r'<audio [^>]*src="data:audio/wav;base64,([^"]+)"', html)
    with wave.open(io.BytesIO(base64.b64decode(player))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (4000, channels, 8000)
        heard = np.frombuffer(file.readframes(8000), "<i2").reshape(8000, channels).squeeze() / 32767
    np.testing.assert_allclose(heard, samples, atol=1e-4)
    assert "2 s at 4,000 Hz" in element_text({"audio": samples, "sample_rate": 4000})


def test_floats_are_sound_only_beside_a_sampling_rate():
    assert "<audio" not in element_html({"audio": np.zeros(8000)})
    beside = {"x": np.zeros(8000, np.float32), "embedding": np.zeros(64, np.float32), "sampling_rate": np.int64(8000)}
    assert element_html(beside).count("<audio") == 1


def test_an_encoded_sound_has_a_player():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(8000), out.writeframes(bytes(200))
    assert base64.b64encode(file.getvalue()).decode() in element_html({"audio": file.getvalue()})


@pytest.mark.parametrize("library", [np.asarray, jnp.asarray, torch.tensor])
def test_an_array_has_its_shape_dtype_range_and_histogram(library):
    array = library(np.linspace(-1, 3, 600, dtype=np.float32).reshape(20, 30))
    assert "float32[20, 30]  -1 to 3, mean 1" in element_text(array)
    html = element_html(array)
    assert "-1 to 3" in html
    assert html.count("<rect") == 24


def test_the_values_of_a_small_array_are_shown():
    assert element_text(np.array([1, 5, 2])) == "int64[3]  1 5 2"
    assert element_text(np.array(["a", "b"])) == "<U1[2]  a b"
    assert element_text(np.float32(2.5)) == "float32  2.5"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.full(20, np.nan), "none is finite"),
        (np.array([np.inf] + [1.0] * 19), "1 to 1, mean 1, 0.05 of them not finite"),
        (np.zeros((0, 3)), "empty"),
        (np.arange(100) < 25, "25.0% true"),
        (np.zeros(3_000_000), "about 0 to 0"),
        (np.full(100, np.iinfo(np.uint64).max), "18446744073709551615 to"),
        (np.array([b"x", None, {}], object), "b'x' None {}"),
        (np.zeros(2, [("a", "i4")]), "(0,) (0,)"),
        (np.array(["2020-01-01"], "M8[D]"), "2020-01-01"),
        (np.array([1 + 2j]), "(1+2j)"),
        (np.ones(20, jnp.bfloat16), "1 to 1"),
    ],
)
def test_strange_arrays_are_shown(array, text):
    assert text in element_text(array, width=200)
    assert element_html(array)


def test_an_element_is_a_table_with_a_row_for_each_value():
    Pair = namedtuple("Pair", "left right")

    @dataclass
    class Label:
        name: str

    element = {"id": 7, "pair": Pair(1, None), "label": Label("cat"), "boxes": [np.zeros(4)] * 20, "words": ["a", "b"]}
    lines = element_text(element, width=80).splitlines()
    names = ["id", "pair.left", "pair.right", "label.name", *(f"boxes[{i}]" for i in range(8)), "boxes[…]", "words"]
    assert [line.split()[0] for line in lines] == names
    assert "20 in all" in lines[-2]
    assert element_html(element).count("<tr>") == len(names)


def test_an_element_of_very_many_values_is_cut():
    text = element_text({f"x{i}": i for i in range(1000)})
    assert len(text.splitlines()) == 51
    assert text.endswith("and more")


def test_lines_are_no_wider_than_the_terminal():
    element = {"a" * 200: "b" * 200, "c": np.arange(100), "d": "x"}
    assert max(map(len, element_text(element, width=60).splitlines())) <= 60


def test_a_text_cannot_send_codes_to_the_terminal():
    for element in ("\x1b[31m\x07\n", {"\x1b]0;title\x07": 1}, np.array(["\x1b[2J"]), b"\x1b[31m", ["\x1b", "\x9b"]):
        assert element_text(element).isprintable()


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self):
        super().__init__()
        self.tags: list[tuple[str, list]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))


HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;'"


class Hostile:
    def __repr__(self):
        return HOSTILE


Hostile.__name__ = HOSTILE
values = st.sampled_from(
    [
        HOSTILE,
        HOSTILE.encode(),
        Hostile(),
        np.array([HOSTILE] * 3),
        np.array([HOSTILE], object),
        [HOSTILE],
        (1, HOSTILE),
    ]
    + [
        np.zeros(1, [(HOSTILE, "i4")]),
        RNG.integers(0, 9, (9, 9), np.uint8),
        np.arange(99),
        b"\xff\xd8\xff" + HOSTILE.encode(),
    ]
)
elements = st.recursive(values, lambda inner: st.dictionaries(st.sampled_from([HOSTILE, "a"]), inner) | st.lists(inner))


@given(elements)
def test_nothing_from_data_becomes_a_tag(element):
    page = Tags()
    page.feed(element_html(element))
    allowed = {"table", "tr", "td", "div", "b", "code", "img", "svg", "rect", "path", "br", "audio"}
    assert {tag for tag, _ in page.tags} <= allowed
    assert not any(name.startswith("on") for _, attrs in page.tags for name, _ in attrs)


# --------------------------------------------------------------------------------------------------- tokens


@pytest.fixture(scope="module")
def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>"], initial_alphabet=made.pre_tokenizer.alphabet(), show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat"] * 10, trainer)
    return made


@pytest.fixture(scope="module")
def documents(tokenizer):
    texts = [{"text": "the cat sat"}, {"text": "on the <mat>"}]
    return headrace.MapDataset.source(texts).map(text.Tokenize(tokenizer))


def test_tokens_are_text_where_the_chain_has_a_tokenizer(documents):
    assert "the cat sat" in element_text(documents[0], documents)
    assert "on the &lt;mat&gt;" in element_html(documents[1], documents)
    assert "the cat" not in element_text(documents[0])


def test_tokens_that_are_the_element_are_text(tokenizer):
    ds = headrace.MapDataset.source(["the cat sat"]).map(text.Tokenize(tokenizer, feature=None, output=None))
    assert "the cat sat" in element_text(ds[0], ds)


def test_packed_tokens_are_the_text_of_each_document_without_padding(documents):
    packed = documents.to_iter_dataset().pack({"tokens": 64}).batch(2)
    row = next(iter(packed))
    assert "'the cat sat' | 'on the <mat>'" in element_text(row, packed, width=200)
    assert "<pad>" not in element_text(row, packed, width=200)


def test_tokens_under_another_usual_name_are_text(documents):
    shifted = documents.map(
        lambda d: {"inputs": d["tokens"][:-1], "targets": d["tokens"][1:], "length": len(d["tokens"])}
    )
    lines = element_text(shifted[0], shifted).splitlines()
    assert "'the cat'" in lines[0]
    assert "' cat sat'" in lines[1]
    assert "the" not in lines[2]


def test_tokens_that_the_tokenizer_does_not_have_are_numbers():
    class Broken:
        token_feature = "tokens"

        def map(self, element):
            return element

        def decode_tokens(self, tokens):
            raise IndexError(tokens)

    ds = headrace.MapDataset.source([{"tokens": np.array([9999, 7])}]).map(Broken())
    assert "9999 7" in element_text(ds[0], ds)


def test_a_loaders_tokens_are_text(tokenizer):
    loader = headrace.load([{"text": "the cat sat"}], num_epochs=1, transformations=[text.Tokenize(tokenizer)])
    assert "the cat sat" in element_text(next(iter(loader)), loader)
