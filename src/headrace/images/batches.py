"""Operations on batches: each image is mixed with the one before it in the batch, and so is its label.

They have the names and the meaning that torchvision.transforms.v2 has for them.
"""

import abc
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace import transforms
from headrace.errors import PipelineError
from headrace.images.operation import KEY, image_in
from headrace.options import check_count


class _Mix(transforms.RandomMap):
    """An operation on batches: dicts, or tuples and lists of images and labels."""

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None, key: str = KEY, label_key: str = "label"):
        if not alpha > 0:
            raise PipelineError(f"alpha must be positive; got {alpha!r}.")
        self.alpha = float(alpha)
        self.num_classes = None if num_classes is None else check_count("num_classes", num_classes, least=1)
        self.key = key
        self.label_key = label_key

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        images = np.asarray(image_in(element, self.key))
        name = type(self).__name__
        if images.ndim != 4:
            raise PipelineError(f"{name} takes batches of images, so put it after `batch`; got shape {images.shape}.")
        labels = self._labels(element)
        if len(images) != len(labels):
            raise PipelineError(f"{name} takes as many labels as images; got shapes {images.shape} and {labels.shape}.")
        mixed, share = self._mixed(images, float(rng.beta(self.alpha, self.alpha)), rng)
        weights = share * labels + (1 - share) * np.roll(labels, 1, axis=0)
        if isinstance(element, Mapping):
            return {**element, self.key: mixed, self.label_key: weights}
        return type(element)([mixed, weights, *element[2:]])

    @abc.abstractmethod
    def _mixed(self, images: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.float32]:
        """Returns the images, and which part of each is its own."""

    def _labels(self, element: Any) -> np.ndarray:
        """One weight for each class."""
        if isinstance(element, Mapping):
            if self.label_key not in element:
                raise PipelineError(
                    f"The batch has no labels under {self.label_key!r}; it has {sorted(map(str, element))}. Set "
                    "`label_key` to the name of the labels."
                )
            labels = np.asarray(element[self.label_key])
        elif isinstance(element, tuple | list) and len(element) > 1:
            labels = np.asarray(element[1])
        else:
            raise PipelineError(
                f"{type(self).__name__} takes batches with labels, as dicts or tuples; got {type(element).__name__}."
            )
        if labels.ndim == 2:
            return labels.astype(np.float32)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or self.num_classes is None:
            raise PipelineError(
                "Labels must be integers with `num_classes` set, or one weight for each class; got shape "
                f"{labels.shape}, dtype {labels.dtype} and num_classes={self.num_classes}."
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise PipelineError(
                f"Labels are from {labels.min()} to {labels.max()}; with num_classes={self.num_classes}, they "
                f"must be from 0 to {self.num_classes - 1}."
            )
        return np.eye(self.num_classes, dtype=np.float32)[labels]

    def __repr__(self) -> str:
        options = {
            "alpha": (1.0, self.alpha),
            "num_classes": (None, self.num_classes),
            "key": (KEY, self.key),
            "label_key": ("label", self.label_key),
        }
        shown = [f"{name}={value!r}" for name, (default, value) in options.items() if value != default]
        return f"{type(self).__name__}({', '.join(shown)})"


class MixUp(_Mix):
    """Blends each image of a batch, and its label, with the one before it.

    Labels become float32, one weight for each class.

    >>> ds = MapDataset.source({"image": np.zeros((4, 8, 8, 3), np.uint8), "label": np.arange(4)})
    >>> batch = ds.batch(4).random_map(MixUp(num_classes=10), seed=1)[0]
    >>> batch["image"].shape, batch["label"].shape
    ((4, 8, 8, 3), (4, 10))

    Args:
        alpha: The share of each image's own is drawn from Beta(alpha, alpha), once for a batch.
        num_classes: How many classes there are, if labels are integers.
        key: The images' name, in batches that are dicts; in tuples and lists they come first, and labels second.
        label_key: The labels' name.
    """

    def _mixed(self, images: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.float32]:
        others = np.roll(images, 1, axis=0)
        own = np.float32(share)
        other = np.float32(1 - share)
        mixed = np.empty(images.shape, images.dtype)
        for image, before, out in zip(images, others, mixed, strict=True):
            blend = image * own + before * other
            out[...] = np.rint(blend) if images.dtype.kind in "iu" else blend
        return mixed, own


class CutMix(_Mix):
    """Puts a random box of each image of a batch into the next one, and mixes labels by area.

    Labels become float32, one weight for each class.

    >>> ds = MapDataset.source({"image": np.zeros((4, 8, 8, 3), np.uint8), "label": np.arange(4)})
    >>> batch = ds.batch(4).random_map(CutMix(num_classes=10), seed=1)[0]
    >>> batch["image"].shape, batch["label"].shape
    ((4, 8, 8, 3), (4, 10))

    Args:
        alpha: The share of each image's own is drawn from Beta(alpha, alpha), once for a batch; more at edges.
        num_classes: How many classes there are, if labels are integers.
        key: The images' name, in batches that are dicts; in tuples and lists they come first, and labels second.
        label_key: The labels' name.
    """

    def _mixed(self, images: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.float32]:
        height, width = images.shape[1:3]
        x = int(rng.integers(width))
        y = int(rng.integers(height))
        half = math.sqrt(1 - share) / 2
        tall = int(half * height)
        wide = int(half * width)
        top = max(0, y - tall)
        bottom = min(height, y + tall)
        left = max(0, x - wide)
        right = min(width, x + wide)
        mixed = images.copy()
        mixed[1:, top:bottom, left:right] = images[:-1, top:bottom, left:right]
        mixed[:1, top:bottom, left:right] = images[-1:, top:bottom, left:right]
        return mixed, np.float32(1 - (bottom - top) * (right - left) / (height * width))
