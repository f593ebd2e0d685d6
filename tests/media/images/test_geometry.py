"""Crops as numbers: what is drawn, and what becomes of one after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.images import Compose, Crop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, geometry
from headrace.images.geometry import centered, dct_scale, resized, whole

sizes = st.integers(1, 60)


def cut(image, crop):
    """A crop that does not resize, by slices."""
    top, left, height, width = crop[:4]
    box = image[top : top + height, left : left + width]
    return box[:, ::-1] if crop.flip else box


@st.composite
def boxes(draw, height, width):
    tall, wide = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - tall)), draw(st.integers(0, width - wide))
    return Crop(top, left, tall, wide, draw(st.booleans()), tall, wide)


@given(st.data())
def test_crops_of_crops_are_crops(data):
    height, width = data.draw(sizes), data.draw(sizes)
    image = np.arange(height * width).reshape(height, width)
    first = data.draw(boxes(height, width))
    second = data.draw(boxes(first.out_height, first.out_width))
    joined = first.then(second)
    assert joined is not None
    assert np.array_equal(cut(image, joined), cut(cut(image, first), second))


@given(st.data())
def test_a_crop_of_what_was_resized_is_a_part_of_the_box(data):
    first = Crop(3, 5, 40, 30, data.draw(st.booleans()), 20, 60)
    second = data.draw(boxes(20, 60))
    joined = first.then(second)
    assert joined is not None
    assert joined[5:] == second[5:]
    assert joined.height == pytest.approx(2 * second.height)
    assert joined.width == pytest.approx(second.width / 2)
    assert joined.top == pytest.approx(3 + 2 * second.top)
    left = 60 - second.left - second.width if first.flip else second.left
    assert joined.left == pytest.approx(5 + left / 2)
    assert joined.flip == (first.flip != second.flip)


def test_what_is_no_single_crop():
    assert resized(40, 30, (20, 20)).then(resized(20, 20, (10, 10))) is None
    assert resized(40, 30, (20, 20)).then(centered(20, 20, (24, 24))) is None  # beyond the edge
    assert resized(40, 30, (20, 20)).then(whole(20, 20, flip=True)) == Crop(0, 0, 40, 30, True, 20, 20)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**32))
def test_resized_crops_lie_in_the_image(height, width, seed):
    crop = RandomResizedCrop((7, 9)).draw(height, width, np.random.default_rng(seed))
    assert crop.lies_in(height, width)
    assert min(crop[2:4]) >= 1
    assert crop[5:] == (7, 9)
    assert all(isinstance(number, int) for number in crop[:4])


def test_what_is_drawn_depends_on_the_size_and_the_generator_alone():
    compose = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])
    drawn = [compose.draw(375, 500, np.random.default_rng(7)) for _ in range(2)]
    assert drawn[0] == drawn[1] == Crop(36, 83, 313, 393, True, 224, 224)
    others = {compose.draw(375, 500, np.random.default_rng(i)) for i in range(50)}
    assert len(others) == 50
    assert {crop.flip for crop in others} == {False, True}


def test_crops_of_images_that_are_long_and_thin():
    assert geometry.random_resized_crop(10, 1000, (8, 8), (1, 1), (3 / 4, 4 / 3), np.random.default_rng(0)) == Crop(
        0, 493, 10, 13, False, 8, 8
    )
    assert geometry.random_resized_crop(1000, 10, (8, 8), (1, 1), (3 / 4, 4 / 3), np.random.default_rng(0)) == Crop(
        493, 0, 13, 10, False, 8, 8
    )


def test_sizes_of_one_number():
    assert resized(375, 500, (256,))[5:] == (256, 341)
    assert resized(500, 375, (256,))[5:] == (341, 256)
    assert resized(375, 500, (256,), 300)[5:] == (225, 300)
    assert resized(375, 500, None, 100)[5:] == (75, 100)
    with pytest.raises(DataError, match="1000 × 3 pixels would be resized to 100 × 0"):
        resized(1000, 3, None, 100)


def test_a_crop_that_does_not_fit():
    with pytest.raises(DataError, match=r"32 × 32 pixels does not fit into an image of 31 × 50.*pad_if_needed"):
        RandomCrop(32).draw(31, 50, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("box", "eighths"),
    [((223, 900), 8), ((224, 224), 8), ((447, 900), 8), ((448, 448), 4), ((896, 900), 2), ((1792, 1800), 1)],
)
def test_the_scale_at_which_a_crop_is_still_covered(box, eighths):
    assert dct_scale(Crop(3, 5, *box, False, 224, 224)) == eighths


def test_compose_draws_one_crop():
    crop = Compose([Resize(256), RandomCrop(224)]).draw(375, 500, np.random.default_rng(0))
    assert crop[5:] == (224, 224)
    assert crop.height == pytest.approx(224 * 375 / 256)
