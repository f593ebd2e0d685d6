"""What operations do with elements, and with one another."""

import copy
import pickle
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, MapDataset, MultiprocessingOptions, transforms
from headrace.errors import DataError, PipelineError, SpecError
from headrace.images import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    Decode,
    MixUp,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from headrace.images.operation import ImageOperation
from headrace.samplers import IndexSampler
from headrace.sources import ImageFolderDataSource
from headrace.sources.image_folder import ImageFile
from headrace.testing import assert_block_law, assert_equal
from headrace.trees import ShapeDtypeStruct
from tests.media.images.photos import difference, encoded, photo

pytest.importorskip("PIL.Image")
pytest.importorskip("cv2")

PHOTO = photo(120, 160, 1)
JPEG = encoded(PHOTO)


def rng(seed=0):
    return np.random.default_rng(seed)


def one_by_one(operations, element, generator):
    for each in operations:
        element = each.map(element) if isinstance(each, transforms.Map) else each.random_map(element, generator)
    return element


OPERATIONS = {
    "Decode": Decode(),
    "Resize": Resize((50, 70)),
    "Resize shorter": Resize(64),
    "CenterCrop": CenterCrop(40),
    "CenterCrop beyond": CenterCrop((200, 30)),
    "RandomCrop": RandomCrop((30, 40), pad_if_needed=True),
    "RandomCrop padded": RandomCrop((20, 20), padding=4, pad_if_needed=True, padding_mode="edge"),
    "RandomResizedCrop": RandomResizedCrop(32),
    "RandomHorizontalFlip": RandomHorizontalFlip(),
    "ColorJitter": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "RandAugment": RandAugment(),
}


@settings(max_examples=150)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=5), st.integers(0, 2**32))
def test_compose_does_what_operations_do_one_by_one(names, seed):
    operations = [OPERATIONS[name] for name in names]
    composed = Compose(operations).random_map(PHOTO, rng(seed))
    alone = one_by_one(operations, PHOTO, rng(seed))
    assert composed.shape == alone.shape
    assert composed.dtype == alone.dtype == np.uint8
    colours = {"ColorJitter", "RandAugment"} & set(names)  # which may make much of small differences
    assert difference(composed, alone) < (6 if colours else 1.5)


@settings(max_examples=80)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4), st.integers(0, 2**32))
def test_encoded_or_not_the_same_is_drawn(names, seed):
    compose = Compose([OPERATIONS[name] for name in names], exact=True)
    assert_equal(compose.random_map(JPEG, rng(seed)), compose.random_map(Decode().map(JPEG), rng(seed)))


@given(
    st.integers(1, 500), st.integers(1, 500), st.integers(1, 90), st.integers(1, 90), st.booleans(), st.integers(0, 99)
)
def test_nothing_from_outside_the_image_comes_in(height, width, size, inner, as_jpeg, seed):
    white = np.full((height, width, 3), 255, np.uint8)
    white = encoded(white) if as_jpeg else white
    crop = CenterCrop(min(size, inner)) if seed % 2 else RandomCrop(min(size, inner))
    for compose in (
        [Resize(size), crop],
        [Resize(size), RandomHorizontalFlip(), crop],
        [RandomResizedCrop(size), crop],
    ):
        assert Compose(compose).random_map(white, rng(seed)).min() == 255


@pytest.mark.parametrize("seed", range(8))
def test_a_scaled_jpeg_is_nearly_the_same(seed):
    content = encoded(photo(600, 800, seed))
    for compose in (
        [RandomResizedCrop(64)],
        [RandomResizedCrop(64), RandomHorizontalFlip(1)],
        [Resize(100), CenterCrop(90)],
    ):
        quick, exact = (Compose(compose, exact=exact).random_map(content, rng(seed)) for exact in (False, True))
        assert difference(quick, exact) < 2


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_image_is_changed_and_nothing_else(name):
    operation = OPERATIONS[name]
    apply = operation.map if isinstance(operation, transforms.Map) else lambda e: operation.random_map(e, rng())
    image = apply(JPEG)
    assert image.ndim == 3
    assert image.flags.c_contiguous
    Pair = namedtuple("Pair", ["picture", "label"])
    label = object()
    before = PHOTO.copy()
    assert_equal(apply({"image": JPEG, "id": 3})["image"], image)
    assert apply({"image": JPEG, "id": 3})["id"] == 3
    assert apply((JPEG, label))[1] is label
    assert_equal(apply((JPEG, label))[0], image)
    assert_equal(apply([JPEG, label])[0], image)
    assert type(apply([JPEG, label])) is list
    made = apply(Pair(JPEG, label))
    assert type(made) is Pair
    assert made.label is label
    for form in (bytearray(JPEG), memoryview(JPEG), np.frombuffer(JPEG, np.uint8)):
        assert_equal(apply(form), image)
    apply(PHOTO)
    assert_equal(PHOTO, before)  # the caller's array stays as it is


def test_another_key():
    assert Resize(20, key="jpeg").map({"jpeg": JPEG})["jpeg"].shape == (20, 26, 3)
    assert Compose([Resize(20), CenterCrop(20)], key="jpeg").random_map({"jpeg": JPEG}, rng())["jpeg"].shape == (
        20,
        20,
        3,
    )
    with pytest.raises(
        PipelineError, match=r"no image under 'image'; it has \['jpeg', 'label'\]. Set `key` to its name"
    ):
        Resize(20).map({"jpeg": JPEG, "label": 1})


def test_grey_and_two_axes_and_alpha():
    grey = PHOTO[..., :1]
    for operation in OPERATIONS.values():
        apply = (
            operation.map if isinstance(operation, transforms.Map) else lambda e, o=operation: o.random_map(e, rng(3))
        )
        one, flat = apply(grey), apply(grey[..., 0])
        assert one.shape[2:] == (1,)
        assert_equal(one[..., 0], flat)
    four = np.concatenate([PHOTO, grey], axis=2)
    assert Compose([Resize(50), CenterCrop(40)]).random_map(four, rng()).shape == (40, 40, 4)
    six = np.concatenate([PHOTO, PHOTO], axis=2)
    assert Resize(50).map(six).shape == (50, 66, 6)


def test_images_in_any_order_of_memory():
    flipped, turned = PHOTO[:, ::-1], PHOTO.swapaxes(0, 1)
    assert_equal(Resize((30, 40)).map(flipped), Resize((30, 40)).map(flipped.copy()))
    assert_equal(Resize((30, 40)).map(turned), Resize((30, 40)).map(turned.copy()))
    assert_equal(Resize((30, 40)).map(PHOTO[..., ::-1]), Resize((30, 40)).map(PHOTO[..., ::-1].copy()))


def test_sixteen_bits_and_floats():
    deep = PHOTO.astype(np.uint16) * 257
    small = Resize(40).map(deep)
    assert small.dtype == np.uint16
    assert difference(small / 257, Resize(40).map(PHOTO)) < 1
    floats = Resize(40).map(PHOTO.astype(np.float32) / 255)
    assert floats.dtype == np.float32
    assert difference(floats * 255, Resize(40).map(PHOTO)) < 1
    with pytest.raises(PipelineError, match="dtype int64; only uint8, uint16, float32 can be resized"):
        Resize(40).map(PHOTO.astype(np.int64))
    assert CenterCrop(40).map(PHOTO.astype(np.int64)).dtype == np.int64
    with pytest.raises(PipelineError, match="ColorJitter takes images of the dtype uint8; got uint16"):
        ColorJitter(0.5).random_map(deep, rng())
    normal = Normalize([0.5], [0.5]).map(deep)
    np.testing.assert_allclose(normal, Normalize([0.5], [0.5]).map(PHOTO), atol=1e-5)


# ------------------------------------------------------------------------------------------------- pipelines


def pipeline():
    files = [encoded(photo(90 + i, 120, i)) for i in range(12)]
    compose = Compose([RandomResizedCrop(48), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment()])
    source = MapDataset.source([{"image": content, "label": i} for i, content in enumerate(files)])
    return source.seed(5).shuffle().random_map(compose)


def test_workers_change_nothing():
    ds = pipeline()
    assert_block_law(ds)
    batches = ds.batch(4).random_map(MixUp(num_classes=12)).to_iter_dataset()
    expected = list(batches)
    for num_workers in (1, 2):
        found = list(batches.mp_prefetch(MultiprocessingOptions(num_workers=num_workers)))
        for one, other in zip(expected, found, strict=True):
            assert_equal(one, other)


def test_a_data_loader_takes_them():
    loader = DataLoader(
        data_source=[{"image": JPEG}] * 8,
        sampler=IndexSampler(8, num_epochs=1, seed=1),
        operations=[Decode(), RandomResizedCrop(32), Compose([RandomHorizontalFlip()]), transforms.Batch(4)],
    )
    assert [batch["image"].shape for batch in loader] == [(4, 32, 32, 3)] * 2


def test_apply_knows_which_are_random():
    ds = (
        MapDataset.source([JPEG] * 3)
        .seed(1)
        .apply([Decode(), RandomResizedCrop(24), Compose([RandomHorizontalFlip()])])
    )
    assert [image.shape for image in ds] == [(24, 24, 3)] * 3


@pytest.mark.parametrize(
    "operation", [*OPERATIONS.values(), Compose([Resize(9)]), MixUp(num_classes=3), Normalize([0], [1])]
)
def test_they_can_be_pickled_and_shown(operation):
    again = pickle.loads(pickle.dumps(operation))
    assert repr(again) == repr(operation) == repr(copy.deepcopy(operation))
    assert eval(repr(operation)).__class__ is type(operation)


def test_compose_takes_functions_and_other_transforms():
    class Count(transforms.RandomMap):
        def random_map(self, element, rng):
            return {**element, "drawn": int(rng.integers(100))}

    compose = Compose(
        [Resize(40), lambda e: {**e, "mean": e["image"].mean()}, Count(), CenterCrop(30), transforms.Map(lambda e: e)]
    )
    made = compose.random_map({"image": JPEG}, rng())
    assert made["image"].shape == (30, 30, 3)
    assert made["mean"] == Resize(40).map(JPEG).mean()
    assert 0 <= made["drawn"] < 100
    with pytest.raises(
        PipelineError, match="Compose takes operations on images, Map, RandomMap and functions; got int"
    ):
        Compose([3])
    assert_equal(Compose([Resize(40)]).map(JPEG), Resize(40).map(JPEG))
    with pytest.raises(PipelineError, match=r"RandomHorizontalFlip\(\) is random: use `random_map`"):
        Compose([Resize(40), RandomHorizontalFlip()]).map(JPEG)
    with pytest.raises(PipelineError, match="operations that start with a crop"):
        Compose([ColorJitter(0.1)]).draw(3, 3, rng())
    with pytest.raises(PipelineError, match="one crop together.*both Resize"):
        Compose([Resize(10), Resize(5)]).draw(30, 30, rng())


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("image", [JPEG, PHOTO, PHOTO[..., :1]])
def test_specs_fit_the_elements(name, image):
    """Also those of several operations."""
    spec = {"image": ShapeDtypeStruct(np.shape(image), getattr(image, "dtype", np.dtype(object))), "id": None}
    for compose in (Compose([OPERATIONS[name]]), Compose([Decode(), OPERATIONS[name], RandomHorizontalFlip()])):
        made, found = compose.random_map({"image": image, "id": 3}, rng())["image"], compose.output_spec(spec)["image"]
        assert found.dtype == made.dtype
        assert all(known in (None, length) for known, length in zip(found.shape, made.shape, strict=True))
    assert found == Compose([Decode(), RandomHorizontalFlip()]).output_spec(OPERATIONS[name].output_spec(spec))["image"]
    if "RandomResized" in name:
        assert found.shape[:2] == (32, 32)
    normal = Compose([OPERATIONS[name], Normalize([0], [1])]).output_spec(spec)["image"]
    assert (normal.dtype, normal.shape) == (np.float32, found.shape)


def test_the_spec_of_a_pipeline(tmp_path):
    (tmp_path / "a.jpg").write_bytes(JPEG)
    ds = MapDataset.source(ImageFolderDataSource(tmp_path, decode=False)).map(Decode(1)).seed(1)
    assert ds.element_spec["image"] == ShapeDtypeStruct((None, None, 1), np.dtype(np.uint8))
    ds = ds.random_map(RandomResizedCrop(24)).batch(1)
    assert ds.element_spec["image"] == ShapeDtypeStruct((1, 24, 24, 1), np.dtype(np.uint8)) == spec_of(ds[0]["image"])
    with pytest.raises(SpecError, match="may return anything"):
        Compose([len]).output_spec(ShapeDtypeStruct((3, 3, 3), np.dtype(np.uint8)))


def spec_of(array):
    return ShapeDtypeStruct(array.shape, array.dtype)


def test_bytes_of_a_file_know_its_path_wherever_they_go():
    file = ImageFile(JPEG, "a.jpg")
    for again in (pickle.loads(pickle.dumps(file)), copy.deepcopy(file)):
        assert (again, again.path) == (JPEG, "a.jpg")


def test_several_crops_are_one_reading():
    """A crop is not computed before its result is needed."""

    class Spy(ImageOperation):
        key = "image"

        def apply(self, picture, rng):
            self.pending = picture._array is None

    spy = Spy()
    Compose([RandomResizedCrop(32), RandomHorizontalFlip(), CenterCrop(20), spy]).random_map(JPEG, rng())
    assert spy.pending


# ----------------------------------------------------------------------------------------------------- mixes


def test_mixes_of_batches():
    batch = {"image": np.stack([photo(20, 24, i) for i in range(3)]), "label": np.array([2, 0, 1]), "id": np.arange(3)}
    for mix in (MixUp(num_classes=4), CutMix(num_classes=4)):
        made = mix.random_map(batch, rng(1))
        assert made["image"].dtype == np.uint8
        assert made["image"].shape == batch["image"].shape
        assert made["label"].shape == (3, 4)
        assert made["label"].dtype == np.float32
        np.testing.assert_allclose(made["label"].sum(axis=1), 1, rtol=1e-6)
        assert_equal(made["id"], batch["id"])
        again = mix.random_map((batch["image"], np.eye(4)[batch["label"]]), rng(1))
        assert_equal(again[0], made["image"])
        np.testing.assert_allclose(again[1], made["label"])


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("takes batches of images, so put it after `batch`", {"image": PHOTO, "label": 3}),
        ("as many labels as images", (np.stack([PHOTO] * 2), np.arange(3))),
        ("no labels under 'label'; it has", {"image": PHOTO[None]}),
        ("takes batches with labels", PHOTO[None]),
        ("Labels are from 0 to 3; with num_classes=3", (np.stack([PHOTO] * 2), np.array([0, 3]))),
        ("integers with `num_classes` set", (np.stack([PHOTO] * 2), np.array([0.5, 3]))),
    ],
)
def test_what_mixes_do_not_take(text, element):
    with pytest.raises(PipelineError, match=text):
        CutMix(num_classes=3).random_map(element, rng())


# ------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("needs `size`, or `max_size`", lambda: Resize(None)),
        ("size must have 1 or 2 numbers", lambda: Resize((1, 2, 3))),
        ("size must be a positive int; got 0", lambda: CenterCrop(0)),
        ("size must be a positive int; got '96'", lambda: CenterCrop("96")),
        ("max_size=5 needs `size` to be one number", lambda: Resize((3, 3), max_size=5)),
        ("max_size=5 must be more than size=7", lambda: Resize(7, max_size=5)),
        ('interpolation must be "bilinear" or "nearest"', lambda: Resize(7, "lanczos")),
        ("scale must be two positive numbers in ascending order", lambda: RandomResizedCrop(7, scale=(1, 0.5))),
        ("p must be a probability", lambda: RandomHorizontalFlip(1.5)),
        ("padding_mode must be one of constant, edge", lambda: RandomCrop(7, padding_mode="wrap")),
        ("padding must have 1 or 2 or 4 numbers", lambda: RandomCrop(7, (1, 2, 3))),
        ("brightness must be a positive number", lambda: ColorJitter(brightness=-1)),
        ("hue must be a positive number, or two from -0.5 to 0.5", lambda: ColorJitter(hue=0.6)),
        ("one number for each channel", lambda: Normalize([1, 2], [1])),
        ("std must not contain 0", lambda: Normalize([1], [0])),
        ("channels must be 1", lambda: Decode(2)),
        ("dtype must be uint8 or uint16", lambda: Decode(dtype=np.float32)),
        ("magnitude=31 must be less than", lambda: RandAugment(magnitude=31)),
        ("alpha must be positive", lambda: MixUp(alpha=0)),
        ("numbers for 3 channels, but the image has 1", lambda: Normalize([0] * 3, [1] * 3).map(PHOTO[..., :1])),
        ("got str: 'a.jpg'. Set `key`", lambda: Resize(5).map("a.jpg")),
        (r"got an array of shape \(2, 120, 160, 3\)", lambda: Resize(5).map(np.stack([PHOTO] * 2))),
        ("an empty tuple", lambda: Resize(5).map(())),
    ],
)
def test_wrong_arguments_say_what_is_right(text, make):
    with pytest.raises(PipelineError, match=text):
        make()


def test_images_without_pixels():
    with pytest.raises(DataError, match=r"has no pixels: its shape is \(0, 5, 3\)"):
        Resize(5).map(np.zeros((0, 5, 3), np.uint8))
