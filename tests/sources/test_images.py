"""Folders of images, against what Pillow writes and reads."""

import io
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import image_decoding
from headrace.sources.image_folder import ImageFolderDataSource, decode_image
from headrace.storage import files
from headrace.testing import assert_equal

pillow = pytest.importorskip("PIL.Image")
cv2 = pytest.importorskip("cv2")

RNG = np.random.default_rng(0)


def pixels(height=6, width=8, channels=3, seed=0):
    """Blocks of colours, which JPEG keeps roughly as they are."""
    blocks = np.random.default_rng(seed).integers(256, size=(-(-height // 8), -(-width // 8), channels), dtype=np.uint8)
    image = np.kron(blocks, np.ones((8, 8, 1), np.uint8))[:height, :width]
    return image[..., 0] if channels == 1 else image


def encoded(image, kind, mode=None, **options):
    stream = io.BytesIO()
    picture = pillow.fromarray(image)
    (picture.convert(mode) if mode else picture).save(stream, kind, **options)
    return stream.getvalue()


def write(path, image=None, kind="PNG", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels(seed=len(str(path.name))) if image is None else image
    path.write_bytes(encoded(image, kind, **options))
    return image


@pytest.fixture
def classes(tmp_path):
    """Three classes of different sizes, with files of other kinds beside them."""
    root = tmp_path / "train"
    images = {}
    for folder, count in {"dog": 5, "cat": 7, "ünï 字": 2, "a[1]*": 1}.items():
        for i in range(count):
            images[folder, f"{i}.png"] = write(root / folder / f"{i}.png", pixels(5 + i, 9, seed=i))
    images["dog", "sub/x.BMP"] = write(root / "dog" / "sub" / "x.BMP", pixels(3, 3), "BMP")
    (root / "dog" / "notes.txt").write_text("not an image")
    (root / "dog" / "._0.png").write_text("left by another system")
    write(root / ".hidden" / "0.png")
    return root, images


def test_classes_are_folders_and_their_labels_the_order_of_their_names(classes):
    root, written = classes
    source = ImageFolderDataSource(root)
    assert source.class_names == ["a[1]*", "cat", "dog", "ünï 字"]
    assert len(source) == len(written) == 16
    for i, path in enumerate(source.paths):
        folder, _, name = os.path.relpath(path, root).partition("/")
        assert_equal(source[i], {"image": written[folder, name], "label": source.class_names.index(folder)})
    assert_equal(source[-1], source[15])
    for outside in (16, -17):
        with pytest.raises(IndexError, match="out of range for 16 images"):
            source[outside]


def test_the_order_is_that_of_folders_then_files_as_torchvision_has_it(classes):
    root, _ = classes
    for name in ("cat/a/z.png", "cat/a-b/y.png", "cat-b/1.png", "cat/a.jpg/0.png", "cat/A.png"):
        write(root / name)
    source = ImageFolderDataSource(root)
    expected = [
        os.path.join(folder, name)
        for top in source.class_names
        for folder, _, names in sorted(os.walk(root / top))
        for name in sorted(names)
        if name.lower().endswith((".png", ".bmp")) and not name.startswith(".")
    ]
    assert source.class_names == sorted(source.class_names)
    assert source.paths == expected


def test_the_order_does_not_depend_on_when_files_were_made(tmp_path):
    names = [f"{i}.png" for i in range(30)]
    for root, order in (("one", names), ("two", RNG.permutation(names).tolist())):
        for name in order:
            write(tmp_path / root / name, pixels(2, 2))
    one, two = (ImageFolderDataSource(tmp_path / root) for root in ("one", "two"))
    assert (
        [os.path.basename(path) for path in one.paths]
        == [os.path.basename(path) for path in two.paths]
        == sorted(names)
    )


def test_a_flat_folder_has_no_labels(tmp_path):
    for name in ("b.png", "a.png", os.fsdecode(b"not-\xff-unicode.png")):
        write(tmp_path / name)
    source = ImageFolderDataSource(tmp_path)
    assert source.class_names == []
    assert [os.path.basename(path) for path in source.paths][:2] == ["a.png", "b.png"]
    assert list(source[0]) == ["image"]
    assert len(source.__getitems__([2, 0, 2])) == 3


def test_images_both_in_the_folder_and_in_folders_are_asked_about(classes):
    root, _ = classes
    write(root / "loose.png")
    with pytest.raises(PipelineError, match=r"has 1 images directly in it, such as 'loose.png', and 16 in folders"):
        ImageFolderDataSource(root)
    assert len(ImageFolderDataSource(root, flat=True)) == 17
    assert len(ImageFolderDataSource(root, flat=False)) == 16


def test_a_class_without_images_keeps_its_number(classes):
    root, _ = classes
    (root / "bird").mkdir()
    assert ImageFolderDataSource(root).class_names == ["a[1]*", "bird", "cat", "dog", "ünï 字"]


def test_links_that_lead_back_are_walked_once(classes):
    root, _ = classes
    os.symlink(root, root / "dog" / "back")
    assert len(ImageFolderDataSource(root)) == 16
    os.symlink(root / "dog", root / "hound")
    assert len(ImageFolderDataSource(root)) == 22


def test_folders_without_images_are_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(PipelineError, match=r"no image under .*\.jpg, \.jpeg, \.png, \.webp, \.bmp"):
        ImageFolderDataSource(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        ImageFolderDataSource(tmp_path / "nowhere")
    write(tmp_path / "a.png")
    with pytest.raises(PipelineError, match="pass `flat=True`"):
        ImageFolderDataSource(tmp_path, flat=False)
    with pytest.raises(PipelineError, match="`channels` must be 1"):
        ImageFolderDataSource(tmp_path, channels=2)


def test_the_spec_fits_the_elements(classes):
    spec = MapDataset.source(ImageFolderDataSource(classes[0], channels=1)).to_iter_dataset().element_spec
    element = ImageFolderDataSource(classes[0], channels=1)[0]
    assert spec["image"].shape == (None, None, element["image"].shape[2]) == (None, None, 1)
    assert spec["image"].dtype == element["image"].dtype
    assert spec["label"].shape == ()


def test_it_travels_without_images_and_is_told_by_its_repr(classes):
    source = ImageFolderDataSource(classes[0])
    other = pickle.loads(pickle.dumps(source))
    assert repr(other) == repr(source)
    assert len(repr(source)) < 150
    assert_equal(other[3], source[3])
    (classes[0] / "cat" / "0.png").rename(classes[0] / "cat" / "00.png")
    assert ImageFolderDataSource(classes[0]).name_in_states() != source.name_in_states()


# ----------------------------------------------------------------------------------------------- decoding

DECODERS = {
    "OpenCV": lambda *args: image_decoding._with_opencv(cv2, *args),
    "Pillow": lambda *args: image_decoding._with_pillow(pillow, *args),
}


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(["PNG", "BMP", "WEBP"]), st.integers(0, 9))
def test_lossless_images_are_what_was_written(decoder, height, width, kind, seed):
    image = np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)
    content = encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert_equal(DECODERS[decoder](content, 3, False), image)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "CMYK"])
def test_both_decoders_see_the_same_colours_whatever_the_file_has(kind, mode):
    image = pixels(40, 56)
    try:
        content = encoded(image, kind, mode)
    except OSError:
        pytest.skip(f"{kind} has no {mode}")
    ours, other = (decode(content, 3, False) for decode in DECODERS.values())
    assert ours.shape == (40, 56, 3)
    tolerance = 1 if mode == "CMYK" else 0
    np.testing.assert_allclose(ours.astype(int), other.astype(int), atol=tolerance)
    ours, other = (decode(content, None, False) for decode in DECODERS.values())
    assert ours.shape == other.shape
    np.testing.assert_allclose(ours.astype(int), other.astype(int), atol=tolerance)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [30, 90])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_have_the_same_pixels_whatever_decodes_them(subsampling, quality, progressive, channels):
    image = RNG.integers(256, size=(33, 47, 3), dtype=np.uint8)
    content = encoded(image, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
    ours, other = (decode(content, channels, False) for decode in DECODERS.values())
    assert_equal(ours, other)
    assert_equal(decode_image(content, where="here", channels=channels), ours)  # by simplejpeg, where it is installed


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("channels", [3, 4])
def test_grey_of_colours_does_not_depend_on_the_decoder(kind, channels):
    image = RNG.integers(256, size=(300, 300, channels), dtype=np.uint8)
    ours, other = (decode(encoded(image, kind), 1, False) for decode in DECODERS.values())
    assert ours.shape == (300, 300, 1)
    assert_equal(ours, other)


def test_grey_is_one_channel_and_a_jpegs_own():
    content = encoded(pixels(40, 56), "JPEG")
    ours, other = (decode(content, 1, False) for decode in DECODERS.values())
    assert ours.shape == (40, 56, 1)
    assert_equal(ours, other)
    grey = pixels(40, 56, channels=1)
    for decode in DECODERS.values():
        assert_equal(decode(encoded(grey, "PNG"), 1, False)[..., 0], grey)
        assert_equal(decode(encoded(grey, "PNG"), None, False)[..., 0], grey)


def test_alpha_is_kept_where_it_is_asked_for():
    image = RNG.integers(256, size=(5, 7, 4), dtype=np.uint8)
    opaque = np.concatenate([image[..., :3], np.full((5, 7, 1), 255, np.uint8)], axis=2)
    for decode in DECODERS.values():
        assert_equal(decode(encoded(image, "PNG"), 4, False), image)
        assert_equal(decode(encoded(image, "PNG"), None, False), image)
        assert_equal(decode(encoded(image[..., :3].copy(), "PNG"), 4, False), opaque)


def test_sixteen_bits_are_kept_where_they_are_asked_for():
    image = RNG.integers(65536, size=(5, 7), dtype=np.uint16)
    content = cv2.imencode(".png", image)[1].tobytes()
    for decode in DECODERS.values():
        assert_equal(decode(content, 1, True)[..., 0], image)
        assert_equal(decode(content, 1, False)[..., 0], (image >> 8).astype(np.uint8))
        assert decode(content, 3, False).shape == (5, 7, 3)
    colours = RNG.integers(65536, size=(5, 7, 3), dtype=np.uint16)
    deep = decode_image(cv2.imencode(".png", colours)[1].tobytes(), where="here", dtype=np.uint16)
    assert_equal(deep, colours[..., ::-1].copy())


def test_the_orientation_in_a_file_is_left_alone():
    exif = pillow.Exif()
    exif[0x112] = 6
    content = encoded(pixels(16, 32), "JPEG", exif=exif)
    for decode in DECODERS.values():
        assert decode(content, 3, False).shape == (16, 32, 3)


def test_a_large_image_is_read():
    image = RNG.integers(256, size=(2000, 2000, 3), dtype=np.uint8)
    content = encoded(image, "BMP")
    assert len(content) > 10_000_000
    assert_equal(decode_image(content, where="here"), image)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("left", [0, 10, 0.5, 0.9])
def test_a_file_that_ends_too_early_is_named(tmp_path, kind, left):
    suffix = {"JPEG": ".jpg"}.get(kind, f".{kind.lower()}")
    write(tmp_path / f"0{suffix}", kind=kind)
    content = encoded(RNG.integers(256, size=(90, 90, 3), dtype=np.uint8), kind)
    (tmp_path / f"1{suffix}").write_bytes(content[: left if isinstance(left, int) else int(left * len(content))])
    source = ImageFolderDataSource(tmp_path)
    source[0]
    with pytest.raises(DataError, match=rf"1{suffix} does not decode as an image: .*(start with|is empty)"):
        source[1]
    stream = iter(MapDataset.source(source).to_iter_dataset())
    next(stream)
    with pytest.raises(DataError, match="does not decode"):
        next(stream)


@pytest.mark.parametrize("channels", [1, 3, 4, None])
def test_a_jpeg_that_is_damaged_in_the_middle_gives_no_pixels(channels):
    simplejpeg = pytest.importorskip("simplejpeg")
    content, refused = encoded(pixels(160, 160), "JPEG"), 0
    rng = np.random.default_rng(0)
    for place in rng.integers(700, len(content) - 2, size=90):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        try:
            simplejpeg.decode_jpeg(bytes(damaged))
        except ValueError as e:
            if any(text in str(e) for text in image_decoding.HARMLESS):
                continue
            refused += 1
            with pytest.raises(DataError, match="here does not decode as an image"):
                decode_image(bytes(damaged), where="here", channels=channels)
    assert refused > 20


def test_a_jpeg_with_bytes_between_its_pixels_and_its_end_is_read():
    image = encoded(pixels(16, 16), "JPEG")
    padded = image[:-2] + bytes(20) + image[-2:]
    odd = image.replace(b"JFIF\0\1\1", b"JFIF\0\0\0")  # a revision that is none
    assert odd != image
    assert_equal(decode_image(padded, where="here"), decode_image(image, where="here"))
    assert_equal(decode_image(odd, where="here"), decode_image(image, where="here"))


def test_a_damaged_header_of_a_jpeg_is_an_error():
    with pytest.raises(DataError, match="does not decode as an image"):
        decode_image(b"\xff\xd8" + bytes(30), where="here")


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"x\.jpg does not decode as an image: .*22 bytes that start with 3c 68 74 6d"):
        ImageFolderDataSource(tmp_path)[0]


# ---------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("folder", "joined"),
    [
        ("/a/b", "/a/b/c/d.png"),
        ("s3://b/a/", "s3://b/a/c/d.png"),
        ("zip://a::s3://b/c.zip", "zip://a/c/d.png::s3://b/c.zip"),
        ("simplecache::s3://b/a", "simplecache::s3://b/a/c/d.png"),
    ],
)
def test_names_are_put_where_the_folder_is(folder, joined):
    assert files.path_below(folder, "c/d.png") == joined


@pytest.mark.parametrize("root", ["memory://headrace-images/train", "zip://train::file://{folder}/images.zip"])
def test_images_behind_addresses_are_read(tmp_path, monkeypatch, root):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    zipped = fsspec.filesystem("zip", fo=str(tmp_path / "images.zip"), mode="w")
    written = {}
    for name in ("dog/0.png", "cat/1.jpg.png", "cat/train/2.png", "cat/.3.png", "cat/notes.txt"):
        written[name] = pixels(4, 5, seed=len(name))
        content = encoded(written[name], "PNG")
        memory.pipe_file(f"/headrace-images/train/{name}", content)
        zipped.pipe_file(f"train/{name}", content)
    zipped.close()
    source = ImageFolderDataSource(root.format(folder=tmp_path))
    assert source.class_names == ["cat", "dog"]
    expected = [written["cat/1.jpg.png"], written["cat/train/2.png"], written["dog/0.png"]]
    for element, image, label in zip(source.__getitems__([0, 1, 2]), expected, [0, 0, 1], strict=True):
        assert_equal(element, {"image": image, "label": label})
    with pytest.raises(PipelineError, match="no image under"):
        ImageFolderDataSource("memory://headrace-images/none")


def test_the_spec_of_a_folder_has_dtypes(classes):
    spec = ImageFolderDataSource(classes[0]).element_spec
    assert isinstance(spec["image"].dtype, np.dtype)
    assert isinstance(spec["label"].dtype, np.dtype)
