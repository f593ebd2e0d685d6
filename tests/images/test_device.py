"""Images that a device decodes, with the crops that the CPU draws: equal on the CPU, near on a GPU."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace import MapDataset  # noqa: E402
from headrace.device.images import DrawCrop, decode, stack_encoded  # noqa: E402
from headrace.errors import DataError, PipelineError  # noqa: E402
from headrace.images import CenterCrop, Compose, RandomHorizontalFlip, RandomResizedCrop, Resize  # noqa: E402
from headrace.testing import assert_resumable  # noqa: E402
from tests.images.photos import encoded, photo  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CROPS = {
    "random": Compose([RandomResizedCrop(64), RandomHorizontalFlip()]),
    "center": Compose([Resize(80), CenterCrop(64)]),
    "larger": Compose([CenterCrop(40), Resize((64, 96))]),
}


def files(count=12, kinds=("JPEG",)):
    rng = np.random.default_rng(5)
    sizes = [(int(a), int(b)) for a, b in rng.integers(90, 300, (count, 2))]
    return [{"image": encoded(photo(*size, i), kinds[i % len(kinds)]), "label": i} for i, size in enumerate(sizes)]


def plain(found, crops):
    return MapDataset.source(found).shuffle(seed=2).random_map(crops, seed=3).batch(4).to_iter_dataset()


def drawn(found, crops):
    ds = MapDataset.source(found).shuffle(seed=2).random_map(DrawCrop(crops), seed=3)
    return ds.batch(4, batch_fn=stack_encoded).to_iter_dataset()


@pytest.mark.parametrize("device", ["cpu", jax.devices("cpu")[0]], ids=["torch", "jax"])
@pytest.mark.parametrize("crops", CROPS)
@pytest.mark.parametrize("workers", [0, 2])
def test_on_the_cpu_it_is_what_the_crops_make(device, crops, workers):
    found = files()
    expected = list(plain(found, CROPS[crops]))
    ds = drawn(found, CROPS[crops])
    with iter(decode(ds.mp_prefetch(workers) if workers else ds, device)) as iterator:
        made = list(iterator)
    assert len(made) == 3
    for one, other in zip(made, expected, strict=True):
        assert one.keys() == other.keys()
        assert isinstance(one["image"], torch.Tensor if device == "cpu" else jax.Array)
        assert np.array_equal(np.asarray(one["image"]), other["image"])
        assert np.array_equal(np.asarray(one["label"]), other["label"])


def test_states_are_those_of_the_batches():
    ds = decode(drawn(files(), CROPS["random"]), "cpu")
    assert_resumable(ds.map(lambda batch: {key: leaf.numpy() for key, leaf in batch.items()}))


def test_errors_say_what_to_do():
    found = files(4)
    with pytest.raises(PipelineError, match="`Compose` of crops; got RandomResizedCrop"):
        DrawCrop(RandomResizedCrop(4))
    with pytest.raises(PipelineError, match="dicts with an encoded image under 'image'"):
        list(MapDataset.source([b"x"]).random_map(DrawCrop(CROPS["random"]), seed=1))
    with pytest.raises(DataError, match="no JPEG, PNG or WebP"):
        list(MapDataset.source([{"image": b"x"}]).random_map(DrawCrop(CROPS["random"]), seed=1))
    with pytest.raises(PipelineError, match="what `DrawCrop` makes"):
        list(MapDataset.source(found).batch(4, batch_fn=stack_encoded))
    with pytest.raises(PipelineError, match="takes batches of encoded images"):
        list(decode(plain(found, CROPS["random"]), "cpu"))
    with pytest.raises(PipelineError, match="to_iter_dataset"):
        decode(MapDataset.range(3), "cpu")
    with pytest.raises(PipelineError, match="different sizes"):
        list(decode(drawn(found, Compose([RandomHorizontalFlip()])), "cpu"))


def test_a_damaged_file_is_named_by_its_place_in_the_batch():
    found = files(4)
    found[0]["image"] = found[0]["image"][: len(found[0]["image"]) // 2]
    with pytest.raises(DataError) as error:
        list(decode(drawn(found, CROPS["random"]), "cpu"))
    assert any("of the batch" in note for note in error.value.__notes__)


# ---- a GPU


@needs_gpu
@pytest.mark.parametrize("kinds", [("JPEG",), ("JPEG", "PNG", "WEBP")], ids=["jpeg", "mixed"])
@pytest.mark.parametrize("crops", CROPS)
@pytest.mark.parametrize("library", ["nvimgcodec", "torchvision"])
def test_a_gpu_makes_nearly_the_same(crops, kinds, library, monkeypatch):
    if library == "torchvision":
        monkeypatch.setattr("importlib.import_module", _without("nvidia.nvimgcodec"))
    else:
        pytest.importorskip("nvidia.nvimgcodec")
    found = files(kinds=kinds)
    expected = list(plain(found, CROPS[crops]))
    with iter(decode(drawn(found, CROPS[crops]).mp_prefetch(2), "cuda")) as iterator:
        for one, other in zip(iterator, expected, strict=True):
            assert one["image"].is_cuda
            difference = np.abs(one["image"].cpu().numpy().astype(int) - other["image"])
            assert difference.mean() < 2
            assert one["label"].tolist() == other["label"].tolist()


@needs_gpu
def test_jax_gets_what_torch_gets():
    found = files()
    with iter(decode(drawn(found, CROPS["random"]), "cuda")) as one:
        expected = [batch["image"].cpu().numpy() for batch in one]
    (gpu, *_) = jax.devices("gpu")
    with iter(decode(drawn(found, CROPS["random"]), gpu)) as other:
        made = list(other)
    assert all(batch["image"].devices() == {gpu} == batch["label"].devices() for batch in made)
    assert all(np.array_equal(batch["image"], image) for batch, image in zip(made, expected, strict=True))


def _without(missing):
    import importlib

    found = importlib.import_module

    def import_module(name, *rest):
        if name == missing:
            raise ImportError(name)
        return found(name, *rest)

    return import_module
