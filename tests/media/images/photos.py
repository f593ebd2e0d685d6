"""Images that are like photographs: smooth areas, edges, and detail of every size."""

import io

import numpy as np


def photo(height, width, seed=0, *, grain=3.0):
    """Noise of all octaves, weaker the finer it is, with ellipses before it and grain on it."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32) + rng.uniform(60, 190, 3)
    cells, strength = 4, 60.0
    while cells < max(height, width):
        small = max(2, cells * height // max(height, width)), max(2, cells * width // max(height, width))
        layer = 0.8 * rng.standard_normal((*small, 1)) + 0.35 * rng.standard_normal((*small, 3))
        planes = [
            Image.fromarray(plane.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC)
            for plane in np.moveaxis(layer, -1, 0)
        ]
        image += strength * np.stack([np.asarray(plane) for plane in planes], axis=-1)
        cells, strength = 2 * cells, 0.62 * strength
    y, x = np.mgrid[:height, :width].astype(np.float32)
    for _ in range(10):
        middle, radius = rng.uniform(0, 1, 2) * (height, width), rng.uniform(0.05, 0.25, 2) * (height, width)
        inside = ((y - middle[0]) / radius[0]) ** 2 + ((x - middle[1]) / radius[1]) ** 2 < 1
        image += inside[..., None] * rng.uniform(-60, 60, 3).astype(np.float32)
    return np.clip(image + grain * rng.standard_normal(image.shape), 0, 255).astype(np.uint8)


def encoded(image, kind="JPEG", mode=None, **options):
    """The bytes of a file with this image."""
    from PIL import Image

    picture = Image.fromarray(image)
    stream = io.BytesIO()
    (picture.convert(mode) if mode else picture).save(
        stream, kind, **({"quality": 90} if kind == "JPEG" else {}) | options
    )
    return stream.getvalue()


def difference(one, other):
    """The mean difference of two images, of 255."""
    assert one.shape == other.shape
    return float(np.abs(one.astype(float) - other.astype(float)).mean())
