"""Local data sets in the place of those that the documents download, under the names that the documents use.

They lie in the working folder, which is also the home folder: TensorFlow Datasets finds its prepared data sets in
~/tensorflow_datasets, torchvision the raw files of MNIST, and Hugging Face takes a folder of the name it is asked for.
MNIST is the first images of the real one; the other images and texts are made up, with the real features and splits.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.seeds.documents import MNIST

NUM_TRAIN = 1024
NUM_TEST = 256
NUM_PNEUMONIA = 300
NUM_IMAGENET = 24
NUM_FOLDER_IMAGES = 300
NUM_LINES = 100
NUM_ROWS = 12
NUM_TEXTS = 96

_RNG = np.random.default_rng(0)
_MNIST_FILES = {"train": ("train", NUM_TRAIN), "test": ("t10k", NUM_TEST)}


def prepare(document: str) -> None:
    """Writes into the working folder what a document reads."""
    for write in _WRITERS[document]:
        write()


def mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The first images and labels of a split of MNIST."""
    prefix, count = _MNIST_FILES[split]
    pixels = gzip.decompress((MNIST / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((MNIST / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = np.frombuffer(pixels, np.uint8).reshape(-1, 28, 28, 1)
    return images[:count], np.frombuffer(labels, np.uint8)[:count]


def _tfds(name: str, splits: dict[str, Any], *, file_format: str, data_dir: str | None = None) -> None:
    """Prepares a data set by the library's own builder of that name, with these examples instead of a download."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    def local_splits(_builder: Any, _downloads: Any) -> dict[str, Iterator[tuple[int, Any]]]:
        return {split: enumerate(examples) for split, examples in splits.items()}

    builder: Any = tfds.builder_cls(name)
    # Nothing is downloaded, so no checksums of downloads are looked up.
    changes = {"__module__": builder.__module__, "name": name, "url_infos": {}, "_split_generators": local_splits}
    with registered.skip_registration():
        local: Any = type(builder.__name__, (builder,), changes)
    tfds.disable_progress_bar()
    local(data_dir=data_dir, file_format=file_format).download_and_prepare()


def _tfds_mnist(file_format: str, data_dir: str | None = None) -> Callable[[], None]:
    def write() -> None:
        splits = {
            split: [{"image": image, "label": int(label)} for image, label in zip(*mnist(split), strict=True)]
            for split in ("train", "test")
        }
        _tfds("mnist", splits, file_format=file_format, data_dir=data_dir)

    return write


def _noise(count: int, shape: tuple[int, ...], num_classes: int) -> list[dict[str, Any]]:
    return [{"image": _RNG.integers(256, size=shape, dtype=np.uint8), "label": i % num_classes} for i in range(count)]


def _tfds_cifar10() -> None:
    splits = {
        split: [example | {"id": f"{split}_{i}"} for i, example in enumerate(_noise(64, (32, 32, 3), 10))]
        for split in ("train", "test")
    }
    _tfds("cifar10", splits, file_format="tfrecord")


def _tfds_pneumonia_mnist() -> None:
    sizes = {"train": NUM_PNEUMONIA, "val": 20, "test": 20}
    splits = {split: _noise(size, (28, 28, 1), 2) for split, size in sizes.items()}
    _tfds("pneumonia_mnist", splits, file_format="array_record")


def _tfds_imagenet_a() -> None:
    examples = [
        {"image": _photograph(), "label": 7 * i, "file_name": f"0.00{i}_{i}_0.99.jpg"} for i in range(NUM_IMAGENET)
    ]
    _tfds("imagenet_a", {"test": examples}, file_format="array_record")


def _photograph() -> np.ndarray:
    """An image of some size: two gradients and a plane of one value."""
    height, width = (int(side) for side in _RNG.integers(40, 90, size=2))
    rows, columns = np.mgrid[:height, :width]
    planes = (rows * 255 // height, columns * 255 // width, np.full_like(rows, _RNG.integers(256)))
    return np.stack(planes, axis=-1).astype(np.uint8)


def _raw_mnist() -> None:
    folder = Path("mnist_dataset/MNIST/raw")
    folder.mkdir(parents=True)
    for split, (prefix, count) in _MNIST_FILES.items():
        images, labels = mnist(split)
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = np.array([0x801, count], ">i4").tobytes()
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def _hf_mnist() -> None:
    from datasets import ClassLabel, Dataset, Features, Image

    Path("mnist").mkdir()
    for split in ("train", "test"):
        images, labels = mnist(split)
        rows = {"image": list(images[..., 0]), "label": labels}
        features = Features({"image": Image(), "label": ClassLabel(names=list("0123456789"))})
        Dataset.from_dict(rows, features).to_parquet(f"mnist/{split}.parquet")


def _texts(count: int) -> list[str]:
    """Texts of more than 512 words each."""
    words = np.array(["water", "wheel", "mill", "race", "sluice", "pond", "gate", "river", "weir", "turns", "feeds"])
    return [" ".join(words[_RNG.integers(len(words), size=600 + i)]) for i in range(count)]


def _hf_fineweb() -> None:
    from datasets import Dataset

    folder = Path("HuggingFaceFW/fineweb-edu")
    (folder / "sample/10BT").mkdir(parents=True)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: sample-10BT\n  data_files: sample/10BT/*.parquet\n---\n"
    )
    Dataset.from_dict({"text": _texts(NUM_TEXTS)}).to_parquet(str(folder / "sample/10BT/000_00000.parquet"))


def _gpt2_tokenizer() -> None:
    """A byte-level tokenizer of GPT-2's kind, trained on a few texts."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(_texts(4), vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained("gpt2")


def _json_lines() -> None:
    with open("data.jsonl", "w") as lines:
        for i, text in enumerate(_texts(NUM_LINES)):
            lines.write(json.dumps({"id": i, "text": " ".join(text.split()[:i])}) + "\n")


def _image_folder() -> None:
    from PIL import Image

    for i in range(NUM_FOLDER_IMAGES):
        folder = Path(f"imagenet/train/n{i % 3:08}")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_photograph()).save(folder / f"{i}.jpg")


def _parquet_files() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Path("parquet").mkdir()
    for file in range(3):
        table = pa.table({"file": [file] * NUM_ROWS, "row": list(range(NUM_ROWS))})
        pq.write_table(table, f"parquet/{file}.parquet")


_WRITERS: dict[str, list[Callable[[], None]]] = {
    "000": [_tfds_mnist("tfrecord"), _tfds_cifar10, _hf_fineweb, _gpt2_tokenizer, _json_lines, _image_folder],
    "001": [_tfds_imagenet_a],
    "002": [],
    "003": [_raw_mnist, _tfds_mnist("tfrecord", data_dir="mnist_dataset"), _hf_mnist],
    "004": [_tfds_mnist("array_record"), _tfds_pneumonia_mnist, _parquet_files],
}


if __name__ == "__main__":
    prepare(sys.argv[1])
