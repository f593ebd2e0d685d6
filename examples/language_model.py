"""Trains a small GPT on Python's documentation, stops halfway, and resumes at that batch in a new process.

    python examples/language_model.py

Two corpora that come with Python, the language reference and the docstrings of the standard library, are written as
Parquet and as JSON lines, and a tokenizer is trained on them. `make_documents` and `make_batches` are the pipeline
from files to packed batches. The first process trains with two worker processes, saves the model, optimizer and batch
iterator with Orbax, and ends; the second restores them and continues with one worker. Both hash every batch. At the
end, the hash is compared with that of an uninterrupted stream, without workers.
"""

import argparse
import ast
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tokenizers
from flax import nnx

import headrace
from headrace import IterDataset, MapDataset, MultiprocessingOptions, WeightSchedule
from headrace.packing import padding_report
from headrace.sources.writers import write_json_lines, write_parquet
from headrace.text import Tokenize

SEED = 42
VOCABULARY = 2048
END = "<|end|>"  # the token after each document
ROW_LENGTH, BATCH_SIZE = 128, 8
LAYERS, HEADS, WIDTH = 2, 4, 128

Arrays = dict[str, np.ndarray]

# --------------------------------------------------------------------------------------------- the data


def docstrings() -> Iterator[str]:
    """Yields the docstrings in the modules of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def write_corpora(folder: Path) -> None:
    """Writes the corpora, and a tokenizer trained on them."""
    reference, library = list(topics.values()), list(docstrings())
    write_parquet([{"text": text} for text in reference], folder / "reference.parquet")
    write_json_lines([{"text": text} for text in library], folder / "library.jsonl")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(reference + library, VOCABULARY, special_tokens=[END], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))


def make_documents(folder: Path, num_steps: int) -> IterDataset:
    """An endless stream of tokenized documents from both corpora; the share of the reference grows over the run."""
    corpora = {
        path.stem: MapDataset.source(path)
        .shuffle(SEED)
        .repeat()
        .to_iter_dataset()
        .filter(lambda document: len(document["text"]) >= 80)
        .map(Tokenize(folder / "tokenizer.json", eos=END))
        for path in (folder / "library.jsonl", folder / "reference.parquet")
    }
    shares = {step: {"library": 1, "reference": 0.1 * step / num_steps} for step in range(num_steps)}
    schedule = WeightSchedule(shares, elements_per_step=6)  # about as many documents as a batch holds
    return IterDataset.mix(corpora, schedule).shuffle(buffer_size=200, seed=SEED)


def make_batches(folder: Path, num_steps: int, num_workers: int) -> IterDataset:
    """Documents packed into rows and batches; they are the same with any number of workers."""
    return (
        make_documents(folder, num_steps)
        .pack({"tokens": ROW_LENGTH}, strategy="best_fit", long_sequences="split", num_packing_bins=32, seed=SEED)
        .batch(BATCH_SIZE)
        .take(num_steps)
        .mp_prefetch(MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=4))
    )


def extend(digest: str, batch: Arrays) -> str:
    """Adds a batch to the digest of all batches before it."""
    content = hashlib.sha256(digest.encode())
    for name in sorted(batch):
        content.update(np.ascontiguousarray(batch[name]).data)
    return content.hexdigest()


# ------------------------------------------------------------------------------------------- the network


class Block(nnx.Module):
    """A transformer layer: causal attention, then a feed-forward network for each token."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.widen, self.narrow = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.widen(self.norm2(x))))


class Gpt(nnx.Module):
    """A transformer for packed rows, with about 680,000 parameters: documents in a row do not attend to each other."""

    def __init__(self, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(ROW_LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, batch: Arrays) -> jax.Array:
        """For each token, the logits of the next one."""
        x = self.tokens(jnp.asarray(batch["tokens"])) + self.positions(jnp.asarray(batch["tokens_positions"]))
        mask = attention_mask(jnp.asarray(batch["tokens_segment_ids"]))
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))


def attention_mask(segment_ids: jax.Array) -> jax.Array:
    """The attention mask: each token attends to itself and to earlier tokens of its segment, in all heads."""
    same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
    return jnp.tril(same_segment)[:, None]


def loss_of(model: Gpt, batch: Arrays) -> jax.Array:
    """The mean next-token loss, without padding (segment 0) and the last token of each segment."""
    ids = jnp.asarray(batch["tokens_segment_ids"])
    counts = (ids[:, :-1] == ids[:, 1:]) & (ids[:, 1:] > 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch)[:, :-1], batch["tokens"][:, 1:])
    return losses.mean(where=counts)


@nnx.jit
def learn(model: Gpt, optimizer: nnx.Optimizer, batch: Arrays) -> jax.Array:
    """One step of training; returns the loss."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


# ------------------------------------------------------------------------------------------- the training


@dataclass
class Progress:
    """The progress of the run; it is saved in each checkpoint."""

    num_steps: int = 0
    digest: str = ""
    timed_tokens: int = 0  # without the first batch of each process, which includes compilation
    timed_s: float = 0.0
    waited_s: float = 0.0  # the part of timed_s spent in next(batches)


class Training:
    """Everything that a checkpoint holds: the model, its optimizer, the batch iterator and the progress."""

    def __init__(self, folder: Path, num_steps: int, num_workers: int):
        self.num_steps = num_steps
        learning_rate = optax.warmup_cosine_decay_schedule(0, 6e-3, num_steps // 10, num_steps)
        self.model = Gpt(nnx.Rngs(SEED))
        self.optimizer = nnx.Optimizer(self.model, optax.adamw(learning_rate, b2=0.99), wrt=nnx.Param)
        self.batches = iter(make_batches(folder, num_steps, num_workers))
        self.progress = Progress()

    def run(self, until: int) -> None:
        """Trains until the run has made `until` steps."""
        first, losses = self.progress.num_steps, []
        for step in range(first, until):
            asked = time.perf_counter()
            batch = next(self.batches)
            waited_s = time.perf_counter() - asked
            losses.append(float(learn(self.model, self.optimizer, batch)))  # float() waits for the device
            self.progress.digest = extend(self.progress.digest, batch)
            self.progress.num_steps += 1
            if step > first:
                self.progress.timed_tokens += int(np.count_nonzero(batch["tokens_segment_ids"]))
                self.progress.timed_s += time.perf_counter() - asked
                self.progress.waited_s += waited_s
            if step % -(-self.num_steps // 10) == 0 or step + 1 == self.num_steps:
                print(f"  step {step + 1:4} of {self.num_steps}, loss {np.mean(losses):.4f}", flush=True)
                losses.clear()

    def save(self, manager: ocp.CheckpointManager) -> None:
        """Writes a checkpoint."""
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(nnx.state((self.model, self.optimizer))),
            batches=headrace.checkpoint.CheckpointSave(self.batches),
            progress=ocp.args.JsonSave(asdict(self.progress)),
        )
        manager.save(self.progress.num_steps, args=items)

    def restore(self, manager: ocp.CheckpointManager) -> None:
        """Restores the last checkpoint."""
        items = ocp.args.Composite(
            model=ocp.args.StandardRestore(nnx.state((self.model, self.optimizer))),
            batches=headrace.checkpoint.CheckpointRestore(self.batches),
            progress=ocp.args.JsonRestore(),
        )
        restored = manager.restore(manager.latest_step(), args=items)
        nnx.update((self.model, self.optimizer), restored["model"])
        self.progress = Progress(**restored["progress"])


# ----------------------------------------------------------------------------------------- the processes


def run_phase(phase: str, folder: Path, num_steps: int) -> None:
    """The first process trains to the middle and saves; the second restores and trains to the end."""
    num_workers = {"first": 2, "second": 1}[phase]
    training = Training(folder, num_steps, num_workers)
    with training.batches, ocp.CheckpointManager(folder / "checkpoints") as manager:
        if phase == "second":
            training.restore(manager)
        where = f"{num_workers} worker(s), {jax.default_backend()}"
        print(f"process {os.getpid()} starts at step {training.progress.num_steps + 1} ({where})", flush=True)
        training.run(until=num_steps // 2 if phase == "first" else num_steps)
        if phase == "first":
            training.save(manager)
    print(f"process {os.getpid()} stops after {training.progress.num_steps} steps of {num_steps}", flush=True)
    if phase == "second":
        report(training.progress, make_batches(folder, num_steps, num_workers=0))


def report(result: Progress, uninterrupted: IterDataset) -> None:
    """Prints the results, and fails if the batches differ from those of an uninterrupted stream."""
    digest, num_batches = "", 0
    for batch in uninterrupted:
        digest, num_batches = extend(digest, batch), num_batches + 1
    print(f"the two processes:        {result.num_steps} batches, digest {result.digest[:16]}")
    print(f"an uninterrupted stream:  {num_batches} batches, digest {digest[:16]}")
    if result.digest != digest:
        raise SystemExit("The batches DIFFER from those of an uninterrupted stream.")
    print("The stream resumed exactly where it stopped.")
    print(f"tokens per second:        {result.timed_tokens / result.timed_s:,.0f}")
    print(f"waiting for the batches:  {result.waited_s / result.timed_s:.1%} of the time")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a language model, stops halfway, and resumes.")
    parser.add_argument("--steps", type=int, default=200, help="how many batches to train with (200)")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        run_phase(options.phase, options.folder, options.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_corpora(Path(folder))
        documents = make_documents(Path(folder), options.steps)
        print(padding_report(documents, {"tokens": ROW_LENGTH}, num_sequences=2000, num_packing_bins=32))
        for phase in ("first", "second"):
            command = [sys.executable, __file__, f"--steps={options.steps}", f"--phase={phase}", f"--folder={folder}"]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
