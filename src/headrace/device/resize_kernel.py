"""One kernel that crops, resizes and flips all images of a batch on a GPU, whatever their sizes.

Bilinear with antialiasing, as torchvision does it: where a box shrinks by a factor f, each new pixel is a mean of old
ones with weights that fall to 0 at a distance of f. Beyond the edges of an image there are zeros.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from headrace.images.geometry import Crop

BLOCK = 256


@triton.jit
def _kernel(out, sources, layouts, boxes, out_height, out_width, block: tl.constexpr):
    image = tl.program_id(0)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    exists = pixel < out_height * out_width
    source = tl.load(sources + image).to(tl.pointer_type(tl.uint8))
    height = tl.load(layouts + 5 * image)
    width = tl.load(layouts + 5 * image + 1)
    by_row = tl.load(layouts + 5 * image + 2)
    by_column = tl.load(layouts + 5 * image + 3)
    by_channel = tl.load(layouts + 5 * image + 4)
    top = tl.load(boxes + 5 * image)
    left = tl.load(boxes + 5 * image + 1)
    box_height = tl.load(boxes + 5 * image + 2)
    box_width = tl.load(boxes + 5 * image + 3)
    flip = tl.load(boxes + 5 * image + 4)

    y = pixel // out_width
    x = pixel % out_width
    x = tl.where(flip > 0, out_width - 1 - x, x)
    scale_y = box_height / out_height
    scale_x = box_width / out_width
    reach_y = tl.maximum(scale_y, 1.0)
    reach_x = tl.maximum(scale_x, 1.0)
    center_y = top + (y + 0.5) * scale_y
    center_x = left + (x + 0.5) * scale_x
    first_y = tl.floor(center_y - reach_y).to(tl.int32)
    first_x = tl.floor(center_x - reach_x).to(tl.int32)
    begin_y = tl.floor(top).to(tl.int32)
    begin_x = tl.floor(left).to(tl.int32)
    end_y = tl.ceil(top + box_height).to(tl.int32)
    end_x = tl.ceil(left + box_width).to(tl.int32)

    total = tl.zeros([block], tl.float32)
    red = tl.zeros([block], tl.float32)
    green = tl.zeros([block], tl.float32)
    blue = tl.zeros([block], tl.float32)
    for i in range(tl.ceil(2 * reach_y).to(tl.int32) + 1):
        row = first_y + i
        weight_y = tl.maximum(1.0 - tl.abs(row + 0.5 - center_y) / reach_y, 0.0)
        weight_y = tl.where((row >= begin_y) & (row < end_y), weight_y, 0.0)
        for j in range(tl.ceil(2 * reach_x).to(tl.int32) + 1):
            column = first_x + j
            weight = weight_y * tl.maximum(1.0 - tl.abs(column + 0.5 - center_x) / reach_x, 0.0)
            weight = tl.where((column >= begin_x) & (column < end_x), weight, 0.0)
            inside = exists & (weight > 0) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = source + row.to(tl.int64) * by_row + column * by_column
            red += weight * tl.load(at, inside, 0).to(tl.float32)
            green += weight * tl.load(at + by_channel, inside, 0).to(tl.float32)
            blue += weight * tl.load(at + 2 * by_channel, inside, 0).to(tl.float32)
            total += weight
    total = tl.maximum(total, 1e-6)
    to = out + (image.to(tl.int64) * out_height * out_width + pixel) * 3
    tl.store(to, tl.floor(red / total + 0.5).to(tl.uint8), exists)
    tl.store(to + 1, tl.floor(green / total + 0.5).to(tl.uint8), exists)
    tl.store(to + 2, tl.floor(blue / total + 0.5).to(tl.uint8), exists)


def resized(images: list[Any], crops: list[Crop], device: Any) -> Any:
    """Images on the GPU, with any strides, as one tensor of batch, height, width and channel."""
    sources, layouts = zip(*map(_layout, images), strict=True)
    height, width = crops[0][5:]
    out = torch.empty((len(crops), height, width, 3), dtype=torch.uint8, device=device)
    boxes = [[*crop[:4], float(crop.flip)] for crop in crops]
    on_device = [
        torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)
        for values, dtype in ((sources, torch.int64), (layouts, torch.int32), (boxes, torch.float32))
    ]
    grid = len(crops), triton.cdiv(height * width, BLOCK)
    _kernel[grid](  # type: ignore[reportIndexIssue]
        out, *on_device, height, width, block=BLOCK
    )
    return out


def _layout(image: Any) -> tuple[int, tuple[int, ...]]:
    """Where an image is on the GPU, its height and width, and its strides."""
    found = image.__cuda_array_interface__
    height, width, channels = found["shape"]
    strides = found.get("strides") or (width * channels, channels, 1)
    return found["data"][0], (height, width, *strides)
