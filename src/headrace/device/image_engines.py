"""What decodes a batch of images: the CPU, or the JPEG engines of a GPU, for PyTorch or for JAX."""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from headrace.errors import MissingDependency, available, optional
from headrace.images.geometry import Crop
from headrace.images.picture import Picture


class Decoder(Protocol):
    """Decodes batches on one device."""

    def __call__(self, name: str, contents: list[np.ndarray], crops: list[Crop], rest: dict[str, Any]) -> Any:
        """A batch on the device: the images under their name, and the rest of its leaves."""
        ...

    def hand_over(self, batch: Any) -> Any:
        """What the consumer gets, called in its thread."""
        ...

    def close(self) -> None:
        """Gives up memory."""
        ...


def decoder_for(device: Any) -> Decoder:
    """The decoder for a device of PyTorch or JAX."""
    if type(device).__module__.startswith("jax"):
        gpu = device.platform in ("gpu", "cuda")
        return JaxGpu(device) if gpu else JaxCpu(device)
    from headrace.device.torch import CudaDevice, OtherDevice, torch

    found = torch.device(device)
    return TorchGpu(CudaDevice(found)) if found.type == "cuda" else OnCpu(OtherDevice(found))


def on_cpu(content: np.ndarray, crop: Crop | None, number: int) -> np.ndarray:
    """A crop of one image, or all of it, decoded here."""
    try:
        picture = Picture(content)
        if crop is not None:
            picture.crop(crop)
        return picture.pixels()
    except Exception as e:
        e.add_note(f"image {number} of the batch")
        raise


def batch_on_cpu(contents: list[np.ndarray], crops: list[Crop]) -> np.ndarray:
    """Crops of all images, decoded here."""
    return np.stack([on_cpu(*each) for each in zip(contents, crops, range(len(crops)), strict=True)])


class OnCpu:
    """Decodes on the CPU and moves the result to a device of PyTorch."""

    def __init__(self, device: Any):
        self._device = device
        self.hand_over, self.close = device.hand_over, device.close

    def __call__(self, name: str, contents: list[np.ndarray], crops: list[Crop], rest: dict[str, Any]) -> Any:
        return self._device.move({name: batch_on_cpu(contents, crops), **rest})


class JaxCpu:
    """Decodes on the CPU and moves the result to a device of JAX."""

    def __init__(self, device: Any):
        self._device = device

    def __call__(self, name: str, contents: list[np.ndarray], crops: list[Crop], rest: dict[str, Any]) -> Any:
        return optional("jax", extra="jax").device_put({name: batch_on_cpu(contents, crops), **rest}, self._device)

    def hand_over(self, batch: Any) -> Any:
        return batch

    def close(self) -> None:
        pass


# ------------------------------------------------------------------------------------------------- GPUs


class TorchGpu:
    """Decodes with the GPU's JPEG engines, and crops and resizes all images of a batch in one kernel."""

    def __init__(self, device: Any):
        self._device = device
        self._engine = _engine(device.device.index)
        self.hand_over, self.close = device.hand_over, device.close

    def __call__(self, name: str, contents: list[np.ndarray], crops: list[Crop], rest: dict[str, Any]) -> Any:
        from headrace.device.resize_kernel import resized

        with self._device.beside() as stream:
            decoded = self._engine(contents, stream)
            for i, image in enumerate(decoded):
                if image is None:
                    decoded[i] = self._device.begin(on_cpu(contents[i], None, i))
            return {name: resized(decoded, crops, self._device.device), **self._device.begin(rest)}


class JaxGpu:
    """The same for JAX: PyTorch decodes, on the same GPU, and JAX gets a copy."""

    def __init__(self, device: Any):
        from headrace.device.torch import CudaDevice, torch

        self._jax, self._jax_device = optional("jax", extra="jax"), device
        self._torch = TorchGpu(CudaDevice(torch.device("cuda", device.local_hardware_id)))
        self.close = self._torch.close

    def __call__(self, name: str, contents: list[np.ndarray], crops: list[Crop], rest: dict[str, Any]) -> Any:
        images = self._torch(name, contents, crops, {})[name]
        # A copy of JAX's own, since PyTorch would not wait for what JAX does with its memory.
        array = self._jax.numpy.array(self._jax.dlpack.from_dlpack(images), copy=True)
        array.block_until_ready()
        return {name: array, **self._jax.device_put(rest, self._jax_device)}

    def hand_over(self, batch: Any) -> Any:
        return batch


class Engine(Protocol):
    """Decodes images on a GPU: arrays of height, width and channel there, or None for those that it cannot read."""

    def __call__(self, contents: Sequence[np.ndarray], stream: Any) -> list[Any]: ...


def _engine(device: int) -> Engine:
    codec = available("nvidia.nvimgcodec")
    return functools.partial(_torchvision, device) if codec is None else NvImageCodec(codec, device)


class NvImageCodec:
    """NVIDIA's library for all engines of its GPUs."""

    def __init__(self, codec: Any, device: int):
        self._decoder = codec.Decoder(device_id=device)
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def __call__(self, contents: Sequence[np.ndarray], stream: Any) -> list[Any]:
        return self._decoder.decode(list(contents), params=self._params, cuda_stream=stream.cuda_stream)


def _torchvision(device: int, contents: Sequence[np.ndarray], stream: Any) -> list[Any]:
    """What torchvision decodes on a GPU: JPEGs of three channels."""
    io = available("torchvision.io")
    if io is None:
        raise MissingDependency("To decode images on a GPU, install nvidia-nvimgcodec-cu13 (or -cu12), or torchvision.")
    from headrace.device.torch import torch

    jpegs = [i for i, content in enumerate(contents) if content[:2].tobytes() == b"\xff\xd8"]
    tensors = [torch.from_numpy(np.array(contents[i])) for i in jpegs]
    found: list[Any] = [None] * len(contents)
    if not jpegs:
        return found
    try:
        decoded = io.decode_jpeg(tensors, mode=io.ImageReadMode.RGB, device=torch.device("cuda", device))
    except RuntimeError:  # one of them is damaged, or of a kind that it does not read
        return found
    for i, image in zip(jpegs, decoded, strict=True):
        found[i] = image.permute(1, 2, 0)
    return found
