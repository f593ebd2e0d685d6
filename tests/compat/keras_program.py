"""What Keras does with datasets of Headrace in the place of Grain's; prints what came out as JSON.

KERAS_BACKEND=jax python -m tests.compat.keras_program FOLDER
"""

import json
import sys
from pathlib import Path

import headrace

headrace.as_grain()

import grain  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras.src.trainers.data_adapters import get_data_adapter  # noqa: E402
from keras.src.utils import backend_utils  # noqa: E402

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


class Source:
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


def datasets() -> dict:
    ds = grain.MapDataset.source(Source())
    sampler = grain.samplers.IndexSampler(len(X), num_epochs=1)
    batch = grain.transforms.Batch(8)
    found = {
        "map": ds.batch(8),
        "iter": ds.to_iter_dataset().batch(8),
        "threads": ds.to_iter_dataset(grain.ReadOptions(num_threads=2)).batch(8),
        "processes": ds.to_iter_dataset().batch(8).mp_prefetch(grain.MultiprocessingOptions(num_workers=1)),
        "loader": grain.DataLoader(data_source=Source(), sampler=sampler, operations=[batch]),
    }
    if keras.backend.backend() != "tensorflow":  # Keras's operation for it cannot be pickled
        found["loader in processes"] = grain.DataLoader(
            data_source=Source(), sampler=sampler, operations=[batch], worker_count=1
        )
    return found


def fit() -> dict:
    """Losses and predictions of one model that is trained on each of the datasets, and on the arrays."""
    losses = {}
    for name, ds in {**datasets(), "arrays": None}.items():
        if "processes" in name and keras.backend.backend() != "torch":
            continue  # each worker imports Keras, which takes long; on torch, they need not
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "binary_crossentropy")
        given = (X, Y) if ds is None else (ds,)
        history = model.fit(*given, epochs=1, verbose=0, shuffle=False, **({"batch_size": 8} if ds is None else {}))
        predicted = model.predict(X if ds is None else ds, verbose=0)
        losses[name] = [*history.history["loss"], model.evaluate(*given, verbose=0), float(predicted.sum())]
    return losses


def in_pipeline() -> dict:
    """Whether layers see that they are called in a pipeline, wherever that is computed."""

    def probe(_):
        return backend_utils.in_grain_data_pipeline()

    ds = grain.MapDataset.range(4).map(probe)
    sampler = grain.samplers.IndexSampler(4, num_epochs=1)
    options = grain.MultiprocessingOptions(num_workers=1)
    loader = grain.DataLoader(data_source=range(4), sampler=sampler, operations=[probe])
    return {
        "outside": [probe(0)],
        "index": [ds[1]],
        "iter": list(ds),
        "threads": list(ds.to_iter_dataset(grain.ReadOptions(num_threads=2))),
        "ahead": list(grain.experimental.ThreadPrefetchIterDataset(ds.to_iter_dataset(), prefetch_buffer_size=2)),
        "processes": list(ds.to_iter_dataset().mp_prefetch(options)),
        "loader": list(loader),
        "arrays": ds.to_arrays().tolist(),
    }


def layers_in_a_pipeline() -> list:
    layer = keras.layers.Rescaling(2.0, offset=1.0)
    flip = keras.layers.RandomFlip("horizontal", seed=3)
    ds = grain.MapDataset.source(X[:4].reshape(4, 2, 2, 1)).map(layer).map(lambda x: flip(x[None])[0])
    got = np.stack([keras.ops.convert_to_numpy(x) for x in ds])
    return np.sort(got.reshape(-1)).tolist(), np.sort((X[:4] * 2 + 1).reshape(-1)).tolist()


def files(folder: Path) -> dict:
    """Keras's own datasets of files and arrays, as Grain's."""
    from PIL import Image

    for kind, shade in (("a", 10), ("b", 200)):
        (folder / "images" / kind).mkdir(parents=True)
        (folder / "texts" / kind).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((6, 6, 3), shade + i, np.uint8)).save(folder / "images" / kind / f"{i}.png")
            (folder / "texts" / kind / f"{i}.txt").write_text(f"{kind}{i}")
    images = keras.utils.image_dataset_from_directory(
        folder / "images", image_size=(4, 4), batch_size=4, shuffle=False, format="grain", verbose=False
    )
    texts = keras.utils.text_dataset_from_directory(
        folder / "texts", batch_size=4, shuffle=False, format="grain", verbose=False
    )
    series = keras.utils.timeseries_dataset_from_array(
        np.arange(10), np.arange(10) * 2, sequence_length=3, batch_size=4, format="grain"
    )
    numpy = keras.ops.convert_to_numpy
    return {
        "images": [(numpy(x).mean((1, 2, 3)).tolist(), numpy(y).tolist()) for x, y in images],
        "texts": [
            [t.decode() if isinstance(t, bytes) else str(t) for t in (x.numpy() if hasattr(x, "numpy") else x)]
            for x, _ in texts
        ],
        "series": [(numpy(x).tolist(), numpy(y).tolist()) for x, y in series],
    }


def main() -> None:
    found = {
        "adapters": {name: type(get_data_adapter(ds)).__name__ for name, ds in datasets().items()},
        "fit": fit(),
        "in_pipeline": in_pipeline(),
        "layers": layers_in_a_pipeline(),
        "files": files(Path(sys.argv[1])),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
