"""Images: JPEGs, decoded, cropped at random, resized to 224 × 224, flipped and batched. Two cores on each side.

There are no photographs in this repository, so these are made: noise of all octaves, edges and grain, with as many
bytes as photographs have, since most of a decoder's time goes by bytes.
"""

import io
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.images import Compose, RandomHorizontalFlip, RandomResizedCrop

CORES = 2
BATCH = 64
LARGE_BATCH = 16
SIZE = 224
SMALL = (375, 500)
LARGE = (1500, 2000)
ROUNDS = 5


def photograph(height: int, width: int, seed: int, grain: float) -> bytes:
    """A JPEG that is like a photograph, of quality 90."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32) + rng.uniform(60, 190, 3).astype(np.float32)
    cells, strength = 4, 60.0
    while cells < max(height, width):
        small = max(2, cells * height // max(height, width)), max(2, cells * width // max(height, width))
        layer = 0.8 * rng.standard_normal((*small, 1)) + 0.35 * rng.standard_normal((*small, 3))
        image += strength * cv2.resize(layer.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
        cells, strength = 2 * cells, 0.62 * strength
    for _ in range(10):
        edge = np.zeros((height, width), np.float32)
        middle = int(rng.integers(width)), int(rng.integers(height))
        axes = int(rng.integers(width // 20, width // 4)), int(rng.integers(height // 20, height // 4))
        cv2.ellipse(edge, middle, axes, float(rng.uniform(0, 180)), 0, 360, 1, -1)
        image += edge[..., None] * rng.uniform(-60, 60, 3).astype(np.float32)
    image += grain * rng.standard_normal(image.shape).astype(np.float32)
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    return simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420")


def ours(files: list[bytes], num_workers: int, batch: int = BATCH) -> Iterable[Any]:
    compose = Compose([RandomResizedCrop(SIZE), RandomHorizontalFlip()])
    ds = hr.MapDataset.source(files).seed(1).shuffle().repeat().random_map(compose).batch(batch)
    stream = ds.to_iter_dataset(hr.ReadOptions(num_threads=0))
    if not num_workers:
        return stream
    return stream.mp_prefetch(hr.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2))


def tf_data(files: list[bytes], batch: int = BATCH, ratio: int = 1) -> Iterable[Any]:
    """The same crops as torchvision's; TensorFlow's own are smaller on average, so there is less to decode.

    With `ratio`, JPEGs are decoded at a fraction of their size, the same for all crops. Of large photographs, at 2 one
    crop in a hundred has fewer pixels than its result, and at 4 every third.
    """
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")

    def crop(shape: Any) -> Any:
        """The first of ten boxes that fits, or all of the image."""
        size = tf.cast((shape[:2] + ratio - 1) // ratio, tf.float32)
        area = tf.random.uniform((10, 1), 0.08, 1.0) * size[0] * size[1]
        aspect = tf.exp(tf.random.uniform((10, 1), np.log(3 / 4), np.log(4 / 3)))
        boxes = tf.round(tf.sqrt(tf.concat([area / aspect, area * aspect], axis=1)))
        fits = tf.reduce_all(boxes <= size, axis=1)
        box = tf.where(tf.reduce_any(fits), boxes[tf.argmax(fits)], size)
        begin = tf.floor(tf.random.uniform((2,)) * (size - box + 1))
        return tf.cast(tf.concat([begin, box], axis=0), tf.int32)

    def load(content: Any) -> Any:
        box = crop(tf.io.extract_jpeg_shape(content))
        image = tf.image.decode_and_crop_jpeg(content, box, channels=3, ratio=ratio)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (SIZE, SIZE)))
        return tf.cast(image, tf.uint8)

    options = tf.data.Options()
    options.threading.private_threadpool_size = CORES
    ds = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    return ds.map(load, num_parallel_calls=CORES).batch(batch).prefetch(2).with_options(options)


class PillowImages:
    """What torchvision's `ImageFolder` does with a file, and then its transforms."""

    def __init__(self, files: list[bytes]):
        v2 = torchvision().transforms.v2
        self._files = files
        self._transform = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        with Image.open(io.BytesIO(self._files[i % len(self._files)])) as image:
            return self._transform(image.convert("RGB"))


def pytorch(files: list[bytes], batch: int = BATCH) -> Iterable[Any]:
    import torch

    return torch.utils.data.DataLoader(PillowImages(files), batch, num_workers=CORES, prefetch_factor=2)


def torchvision() -> Any:
    """torchvision; its wheel for GPUs, beside a torch for CPUs, lacks operators that nobody needs here."""
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision.transforms.v2
        except RuntimeError:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _kept.append(library)
            import torchvision.transforms.v2
    return torchvision


_kept: list[Any] = []


def per_image(make: Callable[[], Iterable[Any]], count: int, batch: int = BATCH) -> Callable[[], float]:
    return lambda: seconds_per_element(make, count, batch, warm_up=8)


def small_photographs() -> list[Row]:
    files = [photograph(*SMALL, i, 20) for i in range(64)]
    kilobytes = sum(map(len, files)) / len(files) / 1000
    mine, tensorflow, torch, inline = side_by_side(
        per_image(lambda: ours(files, CORES), 80),
        per_image(lambda: tf_data(files), 60),
        per_image(lambda: pytorch(files), 40),
        per_image(lambda: ours(files, 0), 20),
        rounds=ROUNDS,
    )
    work = f"500 × 375 JPEGs of {kilobytes:.0f} kB, random crops to 224, flipped, batches of 64"
    return [
        faster_than(work, "tf.data with decode_and_crop_jpeg", 1, mine, tensorflow),
        faster_than("the same", "PyTorch DataLoader with torchvision and Pillow", 1.2, mine, torch),
        faster_than("the same", "ours inline", 1.8, mine, inline),
    ]


def large_photographs() -> list[Row]:
    files = [photograph(*LARGE, i, 8) for i in range(16)]
    kilobytes = sum(map(len, files)) / len(files) / 1000
    mine, half, quarter, torch = side_by_side(
        per_image(lambda: ours(files, CORES, LARGE_BATCH), 60, LARGE_BATCH),
        per_image(lambda: tf_data(files, LARGE_BATCH, ratio=2), 60, LARGE_BATCH),
        per_image(lambda: tf_data(files, LARGE_BATCH, ratio=4), 60, LARGE_BATCH),
        per_image(lambda: pytorch(files, LARGE_BATCH), 30, LARGE_BATCH),
        rounds=ROUNDS,
    )
    work = f"2,000 × 1,500 JPEGs of {kilobytes:.0f} kB, the same, batches of {LARGE_BATCH}"
    return [
        faster_than(work, "PyTorch DataLoader with torchvision and Pillow", 2, mine, torch),
        faster_than("the same", "tf.data with ratio=2", 1, mine, half),
        faster_than("the same", "tf.data with ratio=4", 1, mine, quarter),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [small_photographs, large_photographs]
