"""Files of every kind: odd ones are read right, and damaged ones are errors that name the file."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import DataError, install_command
from headrace.images import CenterCrop, Compose, Decode, RandomResizedCrop, Resize, decoding, geometry, sampling
from headrace.images.headers import read_header
from headrace.images.operation import ImageOperation
from headrace.sources import ImageFolderDataSource
from headrace.sources import image_decoding as whole_images
from headrace.testing import assert_equal
from tests.media.images.photos import difference, encoded, photo
from tests.support.proc import LIMIT_S

pillow = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")

PHOTO = photo(173, 230, 1)
SMALL = photo(40, 56, 2)


def rng(seed=0):
    return np.random.default_rng(seed)


def by_pillow(content, mode="RGB"):
    return np.asarray(pillow.open(io.BytesIO(content)).convert(mode))


def oriented(image, number, kind="JPEG", **options):
    exif = pillow.Exif()
    exif[0x112] = number
    return encoded(image, kind, exif=exif, **options)


FILES = {
    "jpeg": encoded(PHOTO),
    "progressive": encoded(PHOTO, progressive=True),
    "full colours": encoded(PHOTO, subsampling=0),
    "half colours": encoded(PHOTO, subsampling=1),
    "restarts": encoded(PHOTO, restart_marker_blocks=5),
    "grey jpeg": encoded(PHOTO, mode="L"),
    "cmyk": encoded(PHOTO, mode="CMYK"),
    "png": encoded(PHOTO, "PNG"),
    "grey png": encoded(PHOTO, "PNG", mode="L"),
    "palette": encoded(PHOTO, "PNG", mode="P"),
    "bits": encoded(PHOTO, "PNG", mode="1"),
    "alpha": encoded(PHOTO, "PNG", mode="RGBA"),
    "webp": encoded(PHOTO, "WEBP"),
    "lossless webp": encoded(PHOTO, "WEBP", lossless=True),
    "webp with alpha": encoded(PHOTO, "WEBP", mode="RGBA"),
    "bmp": encoded(PHOTO, "BMP"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file(name):
    content = FILES[name]
    whole = by_pillow(content)
    tolerance = 1.5 if name in ("cmyk", "webp") else 0
    assert difference(Decode().map(content), whole) <= tolerance
    header = read_header(content)
    assert header is None or header[:2] == (173, 230)
    assert (header is None) == (name == "bmp")
    compose = Compose([RandomResizedCrop(40)])
    for seed in range(5):
        assert difference(compose.random_map(content, rng(seed)), compose.random_map(whole, rng(seed))) < 2 + tolerance


@pytest.mark.parametrize("name", ["jpeg", "full colours", "half colours", "restarts", "progressive", "grey jpeg"])
@pytest.mark.parametrize("eighths", [8, 4, 2, 1])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_rows_above_the_end_of_a_crop_are_those_of_the_whole(name, eighths, channels):
    content = FILES[name]
    header = read_header(content)
    least = {"min_height": -(-173 * eighths // 8), "min_width": -(-230 * eighths // 8)} if eighths < 8 else {}
    whole = simplejpeg.decode_jpeg(content, {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels], **least)
    for bottom in (1, 7, 8, 15, 16, 17, 90, 150, 172, 173):
        how = decoding.Decoding(channels)
        rows = decoding.decode_rows(content, header, how, eighths=eighths, bottom=bottom)
        needed = -(-bottom * eighths // 8)
        assert len(rows) >= needed
        assert_equal(rows[:needed].copy(), whole[:needed])
    if name not in ("progressive", "restarts"):
        assert len(decoding.decode_rows(content, header, how, eighths=8, bottom=50)) < 173


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientations(number, kind):
    content = oriented(PHOTO, number, kind, **({"lossless": True} if kind == "WEBP" else {}))
    upright = np.asarray(ImageOps.exif_transpose(pillow.open(io.BytesIO(content))))
    decode = Decode(apply_exif_orientation=True)
    assert_equal(decode.map(content), upright)
    assert_equal(Decode().map(content), by_pillow(content))
    compose = Compose([decode, RandomResizedCrop(40)])
    for seed in range(6):
        assert difference(compose.random_map(content, rng(seed)), compose.random_map(upright, rng(seed))) < 2
    size = compose.draw(*upright.shape[:2], rng(3))
    assert size == Compose([RandomResizedCrop(40)]).draw(*upright.shape[:2], rng(3))


def test_sixteen_bits():
    deep = (PHOTO.astype(np.uint16) << 8) + 77
    content = cv2.imencode(".png", deep[..., ::-1])[1].tobytes()
    assert_equal(Decode().map(content), PHOTO)
    assert_equal(Decode(dtype=np.uint16).map(content), deep)
    grey = cv2.imencode(".png", deep[..., 0])[1].tobytes()
    assert_equal(Decode(1, dtype=np.uint16).map(grey)[..., 0], deep[..., 0])
    assert Compose([Decode(dtype=np.uint16), Resize(30)]).random_map(content, rng()).dtype == np.uint16


@pytest.mark.parametrize("channels", [1, 3, 4, None])
def test_channels(channels):
    for name, own in (("jpeg", 3), ("grey jpeg", 1), ("alpha", 4), ("grey png", 1)):
        made = Compose([Decode(channels), CenterCrop(30)]).random_map(FILES[name], rng())
        assert made.shape == (30, 30, channels or own)
        assert_equal(made, CenterCrop(30).map(Decode(channels).map(FILES[name])))


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8X", b"\xff\xd8\xff\xe1"]),
)
def test_no_header_is_too_odd(content, start):
    header = read_header(start + content)
    assert header is None or min(header[:2]) > 0


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_file_that_is_cut_or_changed_is_read_or_an_error(name, data):
    content = bytearray(FILES[name])
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, min(len(content) - 1, 1000)))] = data.draw(st.integers(0, 255))
    try:
        made = Compose([RandomResizedCrop(24)]).random_map(bytes(content), rng(data.draw(st.integers(0, 9))))
    except DataError:
        return
    assert made.shape == (24, 24, 3)


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "progressive"])
@pytest.mark.parametrize("left", [0, 0.3, 0.6, 0.97])
@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_ends_too_early_is_an_error_wherever_its_crop_is(name, left, seed):
    content = FILES[name][: int(left * len(FILES[name]))]
    with pytest.raises(DataError, match=r"The image does not decode as an image: .*(start with|it is empty)"):
        Compose([RandomResizedCrop(24)]).random_map(content, rng(seed))


def test_damage_in_the_rows_that_are_read_is_an_error():
    content = FILES["jpeg"]
    start = read_header(content).frame.pixels_at
    damaged = bytearray(content)
    damaged[start + 2000 : start + 2002] = b"\xff\xd9"  # the end, in the middle
    crops = [CenterCrop(60), CenterCrop(160), Resize(20)]
    for crop in crops:
        with pytest.raises(DataError, match="premature end"):
            crop.map(bytes(damaged))


def test_errors_name_the_file(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.jpg").write_bytes(FILES["jpeg"] if i != 2 else FILES["jpeg"][:3000])
    source = ImageFolderDataSource(tmp_path, decode=False)
    assert bytes(source[0]["image"]) == FILES["jpeg"]
    assert source[0]["image"].path == str(tmp_path / "0.jpg")
    ds = MapDataset.source(source).seed(1).random_map(Compose([RandomResizedCrop(32)]))
    assert ds[1]["image"].shape == (32, 32, 3)
    for num_workers in (0, 2):
        stream = ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=num_workers))
        with iter(stream) as iterator, pytest.raises(DataError, match=r"/2\.jpg does not decode as an image") as error:
            list(iterator)
        assert "random_map" in "".join(error.value.__notes__)
    assert len(list(ds.on_error("skip"))) == 3


def test_bytes_without_a_name_have_the_number_of_their_element():
    ds = MapDataset.source([FILES["jpeg"], b"no image"]).map(Decode())
    with pytest.raises(DataError, match="The image does not decode") as error:
        list(ds)
    assert "element 1" in "".join(error.value.__notes__)


# -------------------------------------------------------------------------------------- what is not installed


@pytest.fixture
def without(monkeypatch):
    """Makes libraries seem to be missing."""

    def hide(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
        for cached in (
            decoding._simplejpeg,
            sampling.opencv,
            sampling.resize,
            whole_images._decoder,
            whole_images._jpeg_decoder,
        ):
            cached.cache_clear()

    yield hide
    monkeypatch.undo()
    hide()


@pytest.mark.parametrize("name", sorted(set(FILES) - {"cmyk", "bits"}))
def test_pillow_is_enough(without, name):
    compose = Compose([RandomResizedCrop(40)], exact=True)
    expected = [compose.random_map(FILES[name], rng(seed)) for seed in range(6)]
    without("cv2", "simplejpeg")
    for seed, one in enumerate(expected):
        assert difference(compose.random_map(FILES[name], rng(seed)), one) < 2


def test_colours_by_pillow(without):
    from headrace.images import augment, pixels

    def results():
        found = []
        for name in augment.OPERATIONS:
            for negative in (False, True):
                image = PHOTO.copy()
                augment.apply_operation(
                    image, name, 0.2 if name not in ("Rotate", "Posterize") else 5, sampling.BILINEAR, negative=negative
                )
                found.append(image)
        image = PHOTO.copy()
        pixels.adjust_hue(image, 0.2)
        return [*found, image]

    expected = results()
    without("cv2", "simplejpeg")
    for one, other in zip(expected, results(), strict=True):
        assert difference(one, other) < 2


def test_sizes_by_pillow(without):
    images = [PHOTO, PHOTO[..., :1], PHOTO[..., 0], PHOTO.astype(np.uint16) * 257, PHOTO / np.float32(255)]
    crops = [
        geometry.Crop(3.25, 4.5, 100.5, 90.25, True, 60, 50),
        geometry.Crop(-5, 4, 100, 90, False, 60, 50),
        geometry.resized(173, 230, (300, 200)),
    ]
    hows = [sampling.BILINEAR, sampling.Sampling("nearest"), sampling.Sampling("bilinear", antialias=False)]
    cases = [(image, crop, how) for image in images for crop in crops for how in hows[:1] + hows[2:]]
    expected = [sampling.sample(*case) for case in cases]
    without("cv2")
    for case, one in zip(cases, expected, strict=True):
        other = sampling.sample(*case)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        unit = {"uint8": 1, "uint16": 257, "float32": 1 / 255}[one.dtype.name]
        assert difference(one, other) < 2.5 * unit


def test_a_library_that_is_missing_is_named(without):
    without("cv2", "simplejpeg", "PIL.Image", "PIL")
    hint = f"`cv2` (opencv-python-headless) is not installed. Install it with: {install_command('image')}"
    with pytest.raises(ImportError, match=re.escape(hint)):
        Resize(10).map(PHOTO)
    with pytest.raises(ImportError, match=re.escape(install_command("image"))):
        Decode().map(FILES["png"])


def test_threads_of_opencv_are_one_in_workers_and_as_they_were_elsewhere():
    script = """if True:
        import cv2, numpy as np
        from headrace import MapDataset, MultiprocessingOptions
        from headrace.images import Resize
        cv2.setNumThreads(2)
        ds = MapDataset.source([np.zeros((9, 9, 3), np.uint8)] * 4).map(Resize(5)).map(lambda image: cv2.getNumThreads())
        print(list(ds), list(ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1))))
    """
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.stdout == "[2, 2, 2, 2] [1, 1, 1, 1]\n", run.stderr


def test_importing_loads_no_library():
    script = (
        "import sys, headrace.images; print([m for m in ('cv2', 'simplejpeg', 'PIL', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert run.stdout == "[]\n"


def test_every_operation_says_what_it_is():
    for kind in ImageOperation.__subclasses__():
        assert kind.__doc__
