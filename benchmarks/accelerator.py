"""Feeds a GPU: `python -m benchmarks.accelerator [NAME ...]` on a machine with one; each row is a process of its own.

A step is timed on data that lies on the GPU already, and on data that a loader brings; the ratio of the two is the
figure, and 1.00 is the limit.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

BATCH = 128, 224, 224, 3  # of float32: 77 MB
NUM_WORKERS = 4
STEP_S = 0.030
WARM_UP, ROUNDS, STEPS = 20, 3, 50
TOUCHED = 200  # batches until every worker has written to every slot, whose pages it sees for the first time then


def batches(workers: int = NUM_WORKERS) -> Any:
    """Batches of 77 MB that workers copy together from images in memory."""
    from headrace import MapDataset

    images = np.random.default_rng(0).random((512, *BATCH[1:]), np.float32)
    ds = MapDataset.source({"image": images}).repeat().shuffle(seed=1).batch(BATCH[0]).to_iter_dataset()
    return ds.mp_prefetch(workers) if workers else ds


def gigabytes_per_second(iterable: Iterable[Any], ready: Callable[[Any], Any], count: int = 100) -> float:
    iterator = iter(iterable)
    for _ in range(TOUCHED):
        ready(next(iterator))
    begin = time.perf_counter()
    for _ in range(count):
        ready(next(iterator))
    took = time.perf_counter() - begin
    iterator.close()  # type: ignore[attr-defined]
    return count * 4 * np.prod(BATCH) / took / 1e9


def from_slots(put: Callable[[Any], Any]) -> Iterator[Any]:
    """Moves batches that workers have made already."""
    from headrace.device.locked_memory import locked_memory

    memory = locked_memory(0)
    assert memory is not None
    with iter(batches()) as iterator:
        held = [memory(next(iterator)) for _ in range(NUM_WORKERS)]
        while True:
            yield from map(put, held)


def seconds_per_step(
    step: Callable[[Any], Any], feed: Iterator[Any], finish: Callable[[], None], steps: int = STEPS
) -> float:
    """The median of several rounds."""
    for _ in range(WARM_UP):
        step(next(feed))
    finish()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(steps):
            step(next(feed))
        finish()
        times.append((time.perf_counter() - begin) / steps)
    return statistics.median(times)


def show(work: str, **figures: str) -> None:
    print(f"| {work} | " + " | ".join(f"{name}: {value}" for name, value in figures.items()) + " |", flush=True)


def fed(seconds: float, resident: float) -> str:
    return f"{seconds / resident:.3f} ({1e3 * seconds:.1f} ms)"


# ------------------------------------------------------------------------------------------------- JAX


def jax_transfers() -> None:
    """How fast batches reach the GPU if nothing is computed there."""
    import jax

    from headrace.device import device_put

    gpu = jax.devices()[0]
    plain = np.ones(BATCH, np.float32)

    def put(batch: Any) -> Any:
        return jax.device_put(batch, gpu)

    def again() -> Iterator[Any]:
        while True:
            yield put(plain)

    show(
        "77 MB batches to JAX",
        workers_alone=f"{gigabytes_per_second(batches(), lambda batch: batch):.1f} GB/s",
        slots=f"{gigabytes_per_second(from_slots(put), jax.block_until_ready):.1f} GB/s",
        workers=f"{gigabytes_per_second(device_put(batches(), gpu), jax.block_until_ready):.1f} GB/s",
        no_workers=f"{gigabytes_per_second(device_put(batches(0), gpu), jax.block_until_ready):.1f} GB/s",
        jax_alone=f"{gigabytes_per_second(again(), jax.block_until_ready):.1f} GB/s",
    )


def jax_step() -> None:
    """A step of 30 ms on batches of 77 MB."""
    import jax
    import jax.numpy as jnp

    from headrace.device import device_put

    gpu = jax.devices()[0]
    weights = jax.device_put(np.random.default_rng(0).standard_normal((8192, 8192)).astype(jnp.bfloat16), gpu)

    def work(total: Any, batch: Any, count: int) -> Any:
        x = weights + (batch["image"].mean() + total).astype(jnp.bfloat16)
        x = jax.lax.fori_loop(0, count, lambda _, y: jnp.tanh(y @ weights), x)
        return x.mean().astype(jnp.float32)

    def stepper(count: int) -> tuple[Callable[[Any], None], Callable[[], None]]:
        compiled, last = jax.jit(lambda total, batch: work(total, batch, count)), [jnp.float32(0)]

        def step(batch: Any) -> None:
            last[0] = compiled(last[0], batch)

        return step, lambda: last[0].block_until_ready() and None

    def resident(count: int) -> float:
        batch = jax.device_put({"image": np.ones(BATCH, np.float32)}, gpu)
        step, finish = stepper(count)
        return seconds_per_step(step, iter(lambda: batch, None), finish)

    count = max(1, round(10 * STEP_S / resident(10)))
    at_rest = resident(count)
    results = {"resident": f"{1e3 * at_rest:.1f} ms"}
    for name, ds in {
        "device_put, 4 workers": device_put(batches(), gpu),
        "device_put, no workers": device_put(batches(0), gpu),
        "NumPy given to jit, 4 workers": batches(),
    }.items():
        step, finish = stepper(count)
        with iter(ds) as feed:
            results[name] = fed(seconds_per_step(step, feed, finish), at_rest)
    show("JAX step on batches of 77 MB", **results)


# --------------------------------------------------------------------------------------------- PyTorch


def torch_transfers() -> None:
    """How fast batches reach the GPU if nothing is computed there."""
    import torch

    from headrace.device.torch import CudaDevice, prefetch_to_device

    pinned, plain = torch.ones(BATCH).pin_memory(), torch.ones(BATCH)

    def again(tensor: Any) -> Iterator[Any]:
        while True:
            yield tensor.to("cuda", non_blocking=True)

    def ready(_: Any) -> None:
        torch.cuda.synchronize()

    show(
        "77 MB batches to PyTorch",
        slots=f"{gigabytes_per_second(from_slots(CudaDevice(torch.device('cuda')).move), ready):.1f} GB/s",
        workers=f"{gigabytes_per_second(prefetch_to_device(batches(), 'cuda'), ready):.1f} GB/s",
        no_workers=f"{gigabytes_per_second(prefetch_to_device(batches(0), 'cuda'), ready):.1f} GB/s",
        torch_pinned=f"{gigabytes_per_second(again(pinned), ready):.1f} GB/s",
        torch_plain=f"{gigabytes_per_second(again(plain), ready):.1f} GB/s",
    )


def torch_step() -> None:
    """A step of 30 ms on batches of 77 MB."""
    import torch

    from headrace.device.torch import TorchDataset, prefetch_to_device

    weights = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def stepper(count: int) -> Callable[[Any], None]:
        def step(batch: Any) -> None:
            x = weights + batch["image"].mean().to(torch.bfloat16)
            for _ in range(count):
                x = torch.tanh(x @ weights)

        return step

    def resident(count: int) -> float:
        batch = {"image": torch.ones(BATCH, device="cuda")}
        return seconds_per_step(stepper(count), iter(lambda: batch, None), torch.cuda.synchronize)

    count = max(1, round(10 * STEP_S / resident(10)))
    at_rest = resident(count)
    results = {"resident": f"{1e3 * at_rest:.1f} ms"}
    for name, ds in {
        "prefetch_to_device, 4 workers": prefetch_to_device(batches(), "cuda"),
        "prefetch_to_device, no workers": prefetch_to_device(batches(0), "cuda"),
        ".cuda() in the loop, 4 workers": TorchDataset(batches()),
    }.items():
        feed = iter(ds)
        moved = ({"image": batch["image"].cuda()} for batch in feed)
        results[name] = fed(seconds_per_step(stepper(count), moved, torch.cuda.synchronize), at_rest)
        feed.close()  # type: ignore[attr-defined]
    show("PyTorch step on batches of 77 MB", **results)


def gpt2() -> None:
    """GPT-2 of 124 million parameters on packed tokens, from JSON lines by byte-pair encoding."""
    import json
    import tempfile

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import headrace as hr
    from benchmarks.text import _documents, _trained
    from headrace.device.torch import prefetch_to_device
    from headrace.text import Tokenize

    documents = _documents()
    tokenizer = _trained(documents)
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).cuda()
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: Any) -> None:
        tokens = batch["tokens"]
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "documents.jsonl")
        with open(path, "w") as file:
            file.writelines(json.dumps({"text": document}) + "\n" for document in documents)

        def packed(workers: int) -> Any:
            ds = hr.MapDataset.source(hr.sources.JsonLinesDataSource(path)).repeat().shuffle(seed=1).to_iter_dataset()
            ds = ds.map(Tokenize(tokenizer, eos="<eos>"))
            ds = ds.mp_prefetch(workers) if workers else ds.prefetch(2000)
            ds = ds.pack({"tokens": 1024}, strategy="best_fit", long_sequences="split", drop_other_features=True)
            return prefetch_to_device(ds.batch(64, drop_remainder=True).map(_as_int64), "cuda")

        batch = {"tokens": torch.randint(8000, (64, 1024), device="cuda")}
        at_rest = seconds_per_step(step, iter(lambda: batch, None), torch.cuda.synchronize, 20)
        results = {"resident": f"{1e3 * at_rest:.1f} ms, {64 * 1024 / at_rest:,.0f} tokens/s"}
        for workers in (0, 2, 8):
            with iter(packed(workers)) as feed:
                took = seconds_per_step(step, feed, torch.cuda.synchronize, 20)
                results[f"{workers} workers"] = fed(took, at_rest)
    show("GPT-2 124M, 64 × 1,024 tokens, from JSON lines by BPE, packed", **results)


def _as_int64(batch: Any) -> Any:
    return {"tokens": batch["tokens"].astype(np.int64)}


def resnet50() -> None:
    """ResNet-50 on batches of 512 from JPEGs of 500 × 375 pixels, random crops resized to 224 × 224."""
    import torch
    import torchvision

    import headrace as hr
    from benchmarks.images import PillowImages, photograph
    from headrace.device.torch import prefetch_to_device
    from headrace.images import Compose, RandomHorizontalFlip, RandomResizedCrop

    size, cores = 512, os.cpu_count() or 1
    files = [photograph(375, 500, seed, 20.0) for seed in range(256)]  # of 99 kB
    print(f"JPEGs of {sum(map(len, files)) // len(files):,} bytes", file=sys.stderr)
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    labels = torch.randint(1000, (size,), device="cuda")

    def step(images: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images.permute(0, 3, 1, 2).to(torch.bfloat16) / 128 - 1)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(feed: Iterator[Any]) -> float:
        return seconds_per_step(step, feed, torch.cuda.synchronize, 40)  # more than loaders have made ahead

    crops = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])
    ds = hr.MapDataset.source([{"image": file} for file in files]).repeat().seed(1).shuffle()
    batches = ds.random_map(crops).batch(size).to_iter_dataset()
    one = torch.randint(255, (size, 224, 224, 3), dtype=torch.uint8, device="cuda")
    at_rest = timed(iter(lambda: one, None))
    results = {"resident": f"{1e3 * at_rest:.1f} ms, {size / at_rest:,.0f} images/s"}
    with iter(prefetch_to_device(batches.mp_prefetch(cores - 1), "cuda")) as feed:
        results[f"{cores - 1} workers"] = fed(timed(batch["image"] for batch in feed), at_rest)
    loader = torch.utils.data.DataLoader(PillowImages(files), size, num_workers=cores - 1, pin_memory=True)
    feed = iter(loader)
    results[f"PyTorch, {cores - 1} workers, pinned"] = fed(
        timed(batch.cuda(non_blocking=True).permute(0, 2, 3, 1) for batch in feed), at_rest
    )
    show("ResNet-50 bf16, 512 JPEGs of 500 × 375 pixels a step, random crops to 224", **results)


ROWS = jax_transfers, torch_transfers, jax_step, torch_step, gpt2, resnet50


def main(chosen: list[str]) -> None:
    if chosen[:1] == ["--row"]:
        next(row for row in ROWS if row.__name__ == chosen[1])()
        return
    for row in ROWS:
        if not chosen or row.__name__ in chosen:
            environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            subprocess.run([sys.executable, "-m", "benchmarks.accelerator", "--row", row.__name__], env=environment)


if __name__ == "__main__":
    main(sys.argv[1:])
