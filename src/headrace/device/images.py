"""Images that a GPU decodes: the CPU draws their crops, and the GPU's JPEG engines and one kernel a batch do the rest.

    crops = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])
    ds = ds.random_map(DrawCrop(crops)).batch(512, batch_fn=stack_encoded).to_iter_dataset()
    for batch in decode(ds, "cuda"):
        batch["image"]  # uint8[512, 224, 224, 3]

Crops are those that `ds.random_map(crops)` makes, and so are states. The pixels are not the same bit for bit: a GPU
interpolates in other steps. On a CPU they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headrace import transforms
from headrace._ops.base import Unary
from headrace._plan.streams import Context, Position, Stream, stream_of
from headrace._utils import trees
from headrace._utils.image_headers import read_header
from headrace.dataset import IterDataset
from headrace.device.image_engines import Decoder, decoder_for
from headrace.device.moving import check_dataset, moved_ahead
from headrace.errors import DataError, PipelineError
from headrace.images import Compose, Crop
from headrace.options import check_counts

ENDS, CROPS = "_ends", "_crops"


class DrawCrop(transforms.RandomMap):
    """Leaves an image encoded, and draws the crop that is to be made of it.

    >>> import cv2
    >>> from headrace.images import CenterCrop
    >>> png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    >>> ds = MapDataset.source([{"image": png}]).random_map(DrawCrop(Compose([CenterCrop(4)])), seed=1)
    >>> sorted(ds[0])
    ['image', 'image_crops']

    Differs from Grain: only Headrace has it.

    Args:
        operations: Crops, sizes and flips that make one crop; see `Compose`. Elements are dicts.
    """

    def __init__(self, operations: Compose):
        if not isinstance(operations, Compose):
            raise PipelineError(f"DrawCrop takes a `Compose` of crops; got {type(operations).__name__}.")
        self.operations = operations

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        key = self.operations.key
        if not isinstance(element, Mapping) or key not in element:
            raise PipelineError(f"DrawCrop takes dicts with an encoded image under {key!r}; got {element!r:.60}.")
        content = np.frombuffer(element[key], np.uint8)
        header = read_header(content.tobytes())
        if header is None:
            raise DataError("This is no JPEG, PNG or WebP, or its header is damaged.")
        crop = self.operations.draw(header.height, header.width, rng)
        return {**element, key: content, key + CROPS: np.array(crop, np.float64)}

    def __repr__(self) -> str:
        return f"DrawCrop({self.operations!r})"


def stack_encoded(elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of what `DrawCrop` makes, for `batch(..., batch_fn=stack_encoded)`: the bytes of all images in a row.

    >>> import cv2
    >>> from headrace.images import CenterCrop
    >>> png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    >>> ds = MapDataset.source([{"image": png}] * 2).random_map(DrawCrop(Compose([CenterCrop(4)])), seed=1)
    >>> sorted(ds.batch(2, batch_fn=stack_encoded)[0])
    ['image', 'image_crops', 'image_ends']

    Differs from Grain: only Headrace has it.
    """
    (name,) = [name for name in elements[0] if f"{name}{CROPS}" in elements[0]] or [None]
    if name is None:
        raise PipelineError(f"`stack_encoded` takes what `DrawCrop` makes; got the keys {sorted(elements[0])}.")
    contents = [element[name] for element in elements]
    batch = trees.stack([{k: v for k, v in element.items() if k != name} for element in elements])
    return {**batch, name: np.concatenate(contents), name + ENDS: np.cumsum([len(each) for each in contents])}


def decode(ds: IterDataset, device: Any, *, buffer_size: int = 2) -> IterDataset:
    """Decodes batches on a device while the consumer computes with earlier ones; order and states are those of `ds`.

    Images become uint8 tensors of batch, height, width and channel, on the device. Other leaves become tensors there
    too, or arrays of JAX.

    A GPU needs PyTorch and, better than torchvision, which does without, `nvidia-nvimgcodec-cu13`. What its engines
    do not read, the CPU decodes.

    >>> import cv2
    >>> from headrace.images import CenterCrop
    >>> png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    >>> ds = MapDataset.source([{"image": png}] * 2).random_map(DrawCrop(Compose([CenterCrop(4)])), seed=1)
    >>> batches = decode(ds.batch(2, batch_fn=stack_encoded).to_iter_dataset(), "cpu")
    >>> next(iter(batches))["image"].shape
    torch.Size([2, 4, 4, 3])

    Differs from Grain: only Headrace has it.

    Args:
        ds: Batches of `stack_encoded`.
        device: A `torch.device` or its name ("cuda", "cuda:1", "cpu"), or a `jax.Device`.
        buffer_size: How many batches to decode ahead; with 0, each is decoded when you ask for it.
    """
    check_dataset(ds, "decode")
    return ds._then(DecodeImages(ds._op, device, buffer_size))


@dataclass(frozen=True, eq=False, repr=False)
class DecodeImages(Unary):
    """The same batches, decoded on a device."""

    name = "decode"
    stays_here = True
    device: Any
    buffer_size: int = 2

    def __post_init__(self):
        check_counts(self, "buffer_size", least=0)

    def __reduce__(self) -> Any:
        raise PipelineError("`decode` cannot run in a worker process. Put `mp_prefetch` before it.")


@stream_of.register
def _(op: DecodeImages, position: Position, context: Context) -> Stream:
    decoder = decoder_for(op.device)
    return moved_ahead(op, position, context, decoder, partial(_decoded, decoder))


def _decoded(decoder: Decoder, batch: Any) -> Any:
    keys = batch if isinstance(batch, Mapping) else ()
    name = next((key.removesuffix(CROPS) for key in keys if key.endswith(CROPS)), None)
    if name is None:
        raise PipelineError(
            "`decode` takes batches of encoded images: `ds.random_map(DrawCrop(...)).batch(n, batch_fn=stack_encoded)`."
        )
    ends = batch[name + ENDS].tolist()
    contents = [batch[name][start:end] for start, end in zip([0, *ends], ends, strict=False)]
    crops = [_as_crop(*row) for row in batch[name + CROPS].tolist()]
    sizes = {crop[5:] for crop in crops}
    if len(sizes) != 1:
        raise PipelineError(f"Crops of a batch have different sizes: {sorted(sizes)[:3]}. Resize them to one.")
    rest = {key: leaf for key, leaf in batch.items() if key not in (name, name + ENDS, name + CROPS)}
    return decoder(name, contents, crops, rest)


def _as_crop(top: float, left: float, height: float, width: float, flip: float, *size: float) -> Crop:
    return Crop(top, left, height, width, flip > 0, int(size[0]), int(size[1]))
