"""Each operation against its counterpart in torchvision.transforms.v2."""

import inspect
import io
import math

import numpy as np
import pytest

from headrace import images
from headrace.images import augment, geometry, pixels
from headrace.images.sampling import Sampling
from tests.media.images.oracle import apply, array, functional, tensor, torch, v2
from tests.media.images.photos import difference, encoded, photo

pytest.importorskip("cv2")
scipy_stats = pytest.importorskip("scipy.stats")

MEAN_BOUND = 2  # of 255, on photographs
RNG = np.random.default_rng(0)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "name",
    ["Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop", "RandomHorizontalFlip", "ColorJitter", "RandAugment"]
    + ["Normalize", "MixUp", "CutMix"],
)
def test_arguments_have_its_names_order_and_defaults(name):
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (images, v2))
    left_out = {"inplace", "labels_getter"}  # images are ours to change; labels have a `label_key`
    wanted = [each for each in theirs if each not in left_out]
    assert [each for each in ours if each in theirs] == wanted
    for each in wanted:
        expected = theirs[each].default
        assert ours[each].default == getattr(expected, "value", expected), each


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (224, 224), (90, 70)])
@pytest.mark.parametrize("arguments", [(256,), ((224, 224),), ((40, 300),), (100,), ((97,),)])
def test_resize(size, arguments):
    image = photo(*size)
    ours, theirs = images.Resize(*arguments).map(image), apply(v2.Resize(*arguments), image)
    assert difference(ours, theirs) < MEAN_BOUND


@pytest.mark.parametrize("options", [{"size": 200, "max_size": 210}, {"size": None, "max_size": 120}])
def test_resize_to_the_longer_edge(options):
    for size in ((375, 500), (500, 375)):
        image = photo(*size)
        assert difference(images.Resize(**options).map(image), apply(v2.Resize(**options), image)) < MEAN_BOUND


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.05, 1.2, 1.4, 1.7, 2, 2.3, 2.7, 3.5, 5, 8.3])
@pytest.mark.parametrize("grain", [0, 12])
def test_resize_by_any_factor(factor, grain):
    length = round(160 * factor)
    image = photo(length, length, 3, grain=grain)
    assert difference(images.Resize((160, 160)).map(image), apply(v2.Resize((160, 160)), image)) < 1.3


def test_resize_by_the_nearest_pixel_and_without_antialiasing():
    image = photo(300, 400)
    nearest = images.Resize((150, 100), "nearest").map(image)
    assert difference(nearest, apply(v2.Resize((150, 100), v2.InterpolationMode.NEAREST), image)) == 0
    plain = images.Resize((211, 150), antialias=False).map(image)
    assert difference(plain, apply(v2.Resize((211, 150), antialias=False), image)) < 0.6


@pytest.mark.parametrize("size", [100, (30, 61), 301, (400, 200), (200, 400), 500])
def test_center_crop(size):
    image = photo(301, 300)
    assert difference(images.CenterCrop(size).map(image), apply(v2.CenterCrop(size), image)) == 0


@pytest.mark.parametrize("padding", [None, 3, (1, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_what_a_random_crop_adds(padding, mode):
    image = photo(20, 30)
    sides = {"padding": padding} if padding is not None else {"pad_if_needed": True}
    size = (32, 31) if padding is None else (20, 30)
    expected = (
        functional.pad(tensor(image), [2, 24, 2, 24] if padding is None else padding, 7, mode) if padding else None
    )
    made = images.RandomCrop(size, fill=7, padding_mode=mode, **sides).random_map(image, rng())
    assert made.shape == (*size, 3)
    if expected is not None:
        whole = array(expected)
        places = [whole[y : y + 20, x : x + 30] for y in range(len(whole) - 19) for x in range(whole.shape[1] - 29)]
        assert any(np.array_equal(made, place) for place in places)
    else:
        theirs = v2.RandomCrop(size, fill=7, padding_mode=mode, **sides)
        assert apply(theirs, image).shape == made.shape


def boxes(transform, height, width, count):
    image = torch.zeros((3, height, width), dtype=torch.uint8)
    found = [transform.make_params([image]) for _ in range(count)]
    return np.array([[each["top"], each["left"], each["height"], each["width"]] for each in found])


@pytest.mark.parametrize("size", [(375, 500), (80, 400), (400, 80)])
@pytest.mark.parametrize("options", [{}, {"scale": (0.3, 0.5), "ratio": (0.5, 3.0)}])
def test_resized_crops_have_its_distribution(size, options):
    torch.manual_seed(1)
    count = 4000
    theirs = boxes(v2.RandomResizedCrop(64, **options), *size, count)
    operation, generator = images.RandomResizedCrop(64, **options), rng(2)
    ours = np.array([operation.draw(*size, generator)[:4] for _ in range(count)])
    for column in range(4):
        assert scipy_stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    for combine in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 3] / b[:, 2], lambda b: b[:, 0] + b[:, 2]):
        assert scipy_stats.ks_2samp(combine(ours), combine(theirs)).pvalue > 1e-3


def test_the_test_of_distributions_sees_small_differences():
    torch.manual_seed(1)
    theirs = boxes(v2.RandomResizedCrop(64), 375, 500, 4000)
    operation, generator = images.RandomResizedCrop(64, scale=(0.12, 1)), rng(2)
    ours = np.array([operation.draw(375, 500, generator)[:4] for _ in range(4000)])
    assert scipy_stats.ks_2samp(ours[:, 2], theirs[:, 2]).pvalue < 1e-3


def test_crops_and_flips_are_uniform():
    operation, generator = images.RandomCrop((30, 41)), rng(3)
    places = np.array([operation.draw(40, 50, generator)[:2] for _ in range(6000)])
    for column, choices in ((0, 11), (1, 10)):
        assert scipy_stats.chisquare(np.bincount(places[:, column], minlength=choices)).pvalue > 1e-3
    flips = sum(images.RandomHorizontalFlip(0.3).draw(4, 4, generator).flip for _ in range(4000))
    assert scipy_stats.binomtest(flips, 4000, 0.3).pvalue > 1e-3


@pytest.mark.parametrize("size", [(375, 500), (1100, 900)])
@pytest.mark.parametrize("exact", [False, True])
def test_resized_crops_of_encoded_photographs(size, exact):
    """The same crops by torchvision, of what Pillow decodes."""
    from PIL import Image

    content = encoded(photo(*size, 5))
    whole = np.asarray(Image.open(io.BytesIO(content)))
    compose = images.Compose([images.RandomResizedCrop(160), images.RandomHorizontalFlip()], exact=exact)
    found = []
    for seed in range(25):
        top, left, height, width, flip, *out = compose.draw(*size, rng(seed))
        theirs = functional.resized_crop(tensor(whole), top, left, height, width, out, antialias=True)
        theirs = array(functional.horizontal_flip(theirs) if flip else theirs)
        found.append(difference(compose.random_map(content, rng(seed)), theirs))
    assert max(found) < MEAN_BOUND
    assert np.mean(found) < 1.2


def test_a_size_then_the_middle():
    content = encoded(photo(375, 500, 6))
    from PIL import Image

    whole = np.asarray(Image.open(io.BytesIO(content)))
    theirs = apply(v2.Compose([v2.Resize(256), v2.CenterCrop(224)]), whole)
    ours = images.Compose([images.Resize(256), images.CenterCrop(224)]).random_map(content, rng())
    assert difference(ours, theirs) < 1.3


@pytest.mark.parametrize("factor", [0, 0.3, 0.8, 1.7])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "sharpness"])
def test_factors_of_colours(name, factor):
    image = photo(60, 80, 2)
    ours = image.copy()
    getattr(pixels, f"adjust_{name}")(ours, factor)
    theirs = apply(lambda x: getattr(functional, f"adjust_{name}")(x, factor), image)
    assert difference(ours, theirs) < 1
    assert np.abs(ours.astype(int) - theirs).max() <= 2


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.03, 0.4])
def test_hue(shift):
    image = photo(60, 80, 2)
    ours = image.copy()
    pixels.adjust_hue(ours, shift)
    assert difference(ours, apply(lambda x: functional.adjust_hue(x, shift), image)) < MEAN_BOUND


def test_color_jitter_draws_what_it_draws():
    """Means over many draws agree."""
    torch.manual_seed(0)
    image = photo(40, 50, 2)
    options = {"brightness": 0.4, "contrast": (0.5, 1.2), "saturation": 0.8, "hue": 0.2}
    ours, theirs = images.ColorJitter(**options), v2.ColorJitter(**options)
    mine = np.array([ours.random_map(image, rng(i)).mean() for i in range(400)])
    other = np.array([apply(theirs, image).mean() for _ in range(400)])
    assert scipy_stats.ks_2samp(mine, other).pvalue > 1e-3


def test_normalize():
    image = photo(40, 50)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    ours = images.Normalize(mean, std).map(image)
    theirs = array(v2.Normalize(mean, std)(tensor(image).float() / 255))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(images.Normalize(mean, std).map(image / np.float32(255)), theirs, atol=1e-5)


@pytest.mark.parametrize("name", augment.OPERATIONS)
@pytest.mark.parametrize("magnitude", [0, 9, 30])
@pytest.mark.parametrize("negative", [False, True])
def test_the_operations_of_rand_augment(name, magnitude, negative):
    image = photo(61, 80, 4)
    theirs = v2.RandAugment(magnitude=magnitude)
    choices, signed = theirs._AUGMENTATION_SPACE[name]
    values = choices(31, *image.shape[:2])
    strength = 0.0 if values is None else float(values[magnitude])
    strength = -strength if signed and negative else strength
    expected = array(
        theirs._apply_image_or_video_transform(tensor(image), name, strength, theirs.interpolation, theirs._fill)
    )
    ours = image.copy()
    operation = images.RandAugment(magnitude=magnitude)
    augment.apply_operation(ours, name, operation.strength(name), operation.sampling, negative=negative)
    assert difference(ours, expected) < 1


def test_rand_augment_has_all_of_its_operations():
    assert list(augment.OPERATIONS) == list(v2.RandAugment._AUGMENTATION_SPACE)


def test_mixes():
    """Those of the same share, and boxes."""
    batch = np.stack([photo(20, 30, i) for i in range(5)])
    labels = np.arange(5)

    class Share:
        def beta(self, *_):
            return 0.3

        def integers(self, n):
            return n // 3

    theirs = v2.MixUp(num_classes=7)
    ours = images.MixUp(num_classes=7).random_map((batch, labels), Share())
    float_batch = torch.from_numpy(batch).permute(0, 3, 1, 2).float()
    expected = theirs.transform(float_batch, {"lam": 0.3, "labels": None, "batch_size": 5})
    assert difference(ours[0], expected.permute(0, 2, 3, 1).numpy()) < 0.6
    np.testing.assert_allclose(ours[1], theirs._mixup_label(torch.from_numpy(labels), lam=0.3).numpy(), atol=1e-6)

    ours = images.CutMix(num_classes=7).random_map((batch, labels), Share())
    theirs = v2.CutMix(num_classes=7)
    half = math.sqrt(0.7) / 2
    x, y, wide, tall = 30 // 3, 20 // 3, int(half * 30), int(half * 20)
    box = max(0, x - wide), max(0, y - tall), min(30, x + wide), min(20, y + tall)
    expected = theirs.transform(float_batch, {"box": box, "labels": None, "batch_size": 5})
    assert difference(ours[0], expected.permute(0, 2, 3, 1).numpy()) == 0
    share = 1 - (box[2] - box[0]) * (box[3] - box[1]) / 600
    np.testing.assert_allclose(ours[1], theirs._mixup_label(torch.from_numpy(labels), lam=share).numpy(), atol=1e-6)


def test_shares_of_mixes_have_its_distribution():
    torch.manual_seed(0)
    batch = torch.zeros((2, 3, 40, 50))
    theirs = np.array([v2.CutMix(alpha=0.7, num_classes=2).make_params([batch])["lam_adjusted"] for _ in range(2000)])
    cut_mix, pair = images.CutMix(alpha=0.7, num_classes=2), (np.zeros((2, 40, 50, 3), np.uint8), np.arange(2))
    ours = np.array([cut_mix.random_map(pair, rng(i))[1][0, 0] for i in range(2000)])
    assert scipy_stats.ks_2samp(ours, theirs.astype(np.float32)).pvalue > 1e-3


def test_sizes_are_rounded_as_it_rounds_them():
    for height in range(1, 40):
        for width in (1, 7, 30, 33):
            image = torch.zeros((3, height, width), dtype=torch.uint8)
            if 5 * min(height, width):
                theirs = functional.resize(image, [5]).shape[1:]
                assert geometry.resized(height, width, (5,))[5:] == tuple(theirs)


def test_bilinear_augmentation():
    image = photo(61, 80, 4)
    ours = image.copy()
    pixels.warp(ours, pixels.rotation(61, 80, 17), Sampling("bilinear"), (1, 2, 3))
    theirs = apply(lambda x: functional.rotate(x, 17, v2.InterpolationMode.BILINEAR, fill=[1, 2, 3]), image)
    assert difference(ours, theirs) < 2
