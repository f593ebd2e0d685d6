"""Images from a folder: random crops, colours and MixUp for training, center crops for testing."""

import tempfile
from pathlib import Path

import cv2
import numpy as np

from headrace import MapDataset, MultiprocessingOptions
from headrace.data import digits
from headrace.images import (
    CenterCrop,
    ColorJitter,
    Compose,
    MixUp,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from headrace.sources import ImageFolderDataSource

# A folder with one subfolder per class, as in ImageNet. Here, the images are the digits, as JPEGs of 320 × 240.
folder, data = Path(tempfile.mkdtemp()), digits()
for i in range(300):
    path = folder / str(data["label"][i]) / f"{i}.jpg"
    path.parent.mkdir(exist_ok=True)
    pixels = cv2.resize(np.uint8(data["image"][i] * 15), (320, 240), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(path), np.stack([pixels, 255 - pixels, pixels], axis=-1))

# With decode=False, elements hold the bytes of the files, and the operations decode only the part that they need.
files = MapDataset.source(ImageFolderDataSource(folder, decode=False))
print(f"{len(files)} files; the first has {len(files[0]['image'])} bytes and the label {files[0]['label']}")

augment = Compose([RandomResizedCrop(96, scale=(0.3, 1)), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1)])
train = files.seed(42).shuffle().repeat(2).random_map(augment).batch(64, drop_remainder=True)
train = train.random_map(MixUp(alpha=0.2, num_classes=10))
stream = train.to_iter_dataset()
batches = list(stream)
print(f"training: {len(batches)} batches of {batches[0]['image'].shape}, labels of {batches[0]['label'].shape}")

same = [
    np.array_equal(one["image"], other["image"])
    for one, other in zip(batches, stream.mp_prefetch(MultiprocessingOptions(num_workers=2)), strict=True)
]
print(f"the same from 2 workers: {all(same)}")

middle = Compose([Resize(110), CenterCrop(96), Normalize([0.5] * 3, [0.25] * 3)])
test = files.map(middle).batch(128)
print(f"testing: batches of {[batch['image'].shape[0] for batch in test]}, {test[0]['image'].dtype}")

# The numbers that define a crop, if you decode with another library.
print(f"a crop: {tuple(augment.draw(240, 320, np.random.default_rng(0)))}")
