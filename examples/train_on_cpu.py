"""Trains a network with JAX on the CPU from three kinds of sources, with one loop and the same weights as a result."""

import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headrace import MapDataset
from headrace.data import digits

jax.config.update("jax_platforms", "cpu")  # must come before the first array is created

Params = list[tuple[jax.Array, jax.Array]]


def initial(sizes: list[int], key: jax.Array) -> Params:
    layers = zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (m, n)) * np.sqrt(2 / m), jnp.zeros(n)) for k, m, n in layers]


def predict(params: Params, images: jax.Array) -> jax.Array:
    *hidden, (weights, bias) = params
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ weights + bias


@jax.jit
def update(params: Params, batch: dict[str, Any]) -> Params:
    def loss(params: Params) -> jax.Array:
        logs = jax.nn.log_softmax(predict(params, batch["image"]))
        return -jnp.take_along_axis(logs, batch["label"][:, None], axis=1).mean()

    return jax.tree.map(lambda p, g: p - 0.2 * g, params, jax.grad(loss)(params))


# A source needs `__len__` and `__getitem__`: arrays, a PyTorch, Hugging Face or TFDS dataset, or a class like this one.
class Records:
    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: array[index] for name, array in self.arrays.items()}


def flatten(batch: dict[str, Any]) -> dict[str, Any]:
    return {"image": batch["image"].reshape(len(batch["label"]), 64).astype(np.float32) / 16, "label": batch["label"]}


def train(name: str, source: Any, num_epochs: int = 15) -> list[np.ndarray]:
    examples = MapDataset.source(source)
    order = np.random.default_rng(0).permutation(len(examples))
    batches = examples[order[:1408]].seed(42).shuffle().batch(64).map(flatten)
    (test,) = examples[order[1408:]].batch(389).map(flatten)
    params = initial([64, 128, 10], jax.random.key(0))
    update(params, batches[0])  # compiles, so that the time below does not include it
    begin = time.perf_counter()
    for batch in batches.repeat(num_epochs):
        params = update(params, batch)
    took_s = time.perf_counter() - begin
    accuracy = np.mean(predict(params, test["image"]).argmax(axis=1) == test["label"])
    print(f"{name}: test accuracy {accuracy:.2%} after {num_epochs} epochs in {took_s:.2f} s")
    return [np.asarray(weights) for weights, _ in params]


arrays = digits()
with tempfile.TemporaryDirectory() as folder:
    for name, array in arrays.items():
        np.save(Path(folder, name), array)
    mapped = {name: np.load(Path(folder, f"{name}.npy"), mmap_mode="r") for name in arrays}  # loaded only when accessed
    first, *others = train("arrays", arrays), train("records", Records(arrays)), train("memory map", mapped)
same = all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))
print(f"on {jax.default_backend()}, the same weights from all three: {same}")
