"""What the documents leave to the reader or the notebook: small models, transforms, training steps, the shell.

TensorFlow and JAX are imported where they are used: worker processes import this module for its transforms alone.
"""

import subprocess
from typing import Any

import numpy as np

SIDE = 24


def model(images: np.ndarray) -> np.ndarray:
    """A linear classifier into ten classes, with fixed weights."""
    flat = images.reshape(len(images), -1)
    return flat @ np.random.default_rng(0).normal(scale=0.01, size=(flat.shape[1], 10))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross entropy between logits and one-hot labels."""
    log_sums = np.log(np.exp(logits).sum(axis=1))
    return float((log_sums - (logits * labels).sum(axis=1)).mean())


def normalize(example: dict[str, Any]) -> tuple[Any, Any]:
    """An image of a tf.data pipeline in [0, 1], and its label."""
    import tensorflow as tf

    return tf.cast(example["image"], tf.float32) / 255.0, example["label"]


def your_preprocessing(record: dict[str, Any]) -> dict[str, np.int64]:
    """The number of words of a record's text, beside its id."""
    return {"id": np.int64(record["id"]), "num_words": np.int64(len(record["text"].split()))}


def augment_fn(element: dict[str, Any]) -> dict[str, Any]:
    """The middle of the image, so that images of all sizes have one."""
    height, width = element["image"].shape[:2]
    top, left = (height - SIDE) // 2, (width - SIDE) // 2
    return element | {"image": element["image"][top : top + SIDE, left : left + SIDE]}


def initial_state(_: Any) -> tuple[Any, Any]:
    """The weights and biases of a linear classifier of 32×32 images."""
    import jax.numpy as jnp

    return jnp.zeros((32 * 32 * 3, 10)), jnp.zeros(10)


def train_step(state: tuple[Any, Any], batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """One compiled step of gradient descent."""
    import jax

    return jax.jit(_descend)(state, batch)


def _descend(state: tuple[Any, Any], batch: dict[str, Any]) -> tuple[Any, Any]:
    import jax

    weights, biases = jax.grad(_loss)(state, batch)
    return state[0] - 0.01 * weights, state[1] - 0.01 * biases


def _loss(state: tuple[Any, Any], batch: dict[str, Any]) -> Any:
    import jax

    logits = batch["image"].reshape(len(batch["image"]), -1) @ state[0] + state[1]
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(batch["label"], 10)).sum(axis=1).mean()


def shell(command: str) -> None:
    """Runs a line that a notebook gives to the shell, and prints what it prints."""
    print(subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout, end="")
