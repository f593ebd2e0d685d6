"""The language model trains, stops, and resumes exactly in another process; packed documents do not see each other."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from tests.support.proc import LIMIT_S

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "language_model.py"
NEEDED = ("jax", "optax", "flax", "orbax", "tokenizers", "pyarrow")
MISSING = [module for module in NEEDED if find_spec(module) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"the language model needs {', '.join(MISSING)}"),
    pytest.mark.xdist_group("language model"),  # JAX compiles each operation once in a process
]


@pytest.fixture(scope="module")
def example():
    """The example as a module."""
    spec = spec_from_file_location("language_model", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(example):
    return example.Gpt(example.nnx.Rngs(0))


def packed_row(example):
    """A batch of one row: documents of five and of four tokens, and padding."""
    segment_ids = np.zeros((1, example.ROW_LENGTH), np.int32)
    segment_ids[0, :5], segment_ids[0, 5:9] = 1, 2
    positions = np.zeros_like(segment_ids)
    positions[0, :9] = [0, 1, 2, 3, 4, 0, 1, 2, 3]
    tokens = np.arange(1, example.ROW_LENGTH + 1, dtype=np.int32)[None] * (segment_ids > 0)
    return {"tokens": tokens, "tokens_segment_ids": segment_ids, "tokens_positions": positions}


def changed(batch, at):
    """The batch with another token at one place."""
    tokens = batch["tokens"].copy()
    tokens[0, at] += 100
    return batch | {"tokens": tokens}


@pytest.mark.parametrize(("at", "end"), [(0, 5), (2, 5), (4, 5), (5, 9), (8, 9)])
def test_a_token_is_seen_by_itself_and_by_those_after_it_in_its_document(example, model, at, end):
    batch = packed_row(example)
    difference = np.abs(np.asarray(model(changed(batch, at)) - model(batch))).max(axis=-1)[0]
    (moved,) = np.nonzero(difference)
    assert moved.tolist() == list(range(at, end))


def test_a_document_alone_gives_the_logits_that_it_gives_beside_others(example, model):
    batch = packed_row(example)
    alone = {name: array[:, 5:9] for name, array in batch.items()}
    np.testing.assert_allclose(model(alone), model(batch)[:, 5:9], atol=1e-5)


def test_the_loss_is_that_of_the_next_tokens_of_each_document(example, model):
    batch = packed_row(example)
    logits = np.asarray(model(batch), np.float64)[0]
    log_likelihoods = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    guessed = [0, 1, 2, 3, 5, 6, 7]  # not the ends of the documents, at 4 and 8
    expected = -np.mean([log_likelihoods[i, batch["tokens"][0, i + 1]] for i in guessed])
    assert float(example.loss_of(model, batch)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_language_model_resumes_exactly_in_a_new_process_and_learns(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps=40"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    out = done.stdout
    assert done.returncode == 0, out + done.stderr
    begun = re.findall(r"process (\d+) starts at step (\d+) \((\d) worker", out)
    assert [begin[1:] for begin in begun] == [("1", "2"), ("21", "1")]
    assert begun[0][0] != begun[1][0]
    assert re.findall(r"stops after (\d+) steps of 40", out) == ["20", "40"]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
    assert len(losses) == 11
    assert losses[-1] < np.log(2048) < losses[0], "the model guesses no better than one that knows nothing"
    digests = re.findall(r"40 batches, digest ([0-9a-f]{16})", out)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert "The stream resumed exactly where it stopped." in out
    padding = {strategy: fact(rf"{strategy} +[\d,]+ +([\d.]+)%", out) for strategy in ("first_fit", "best_fit")}
    assert 0 < padding["best_fit"] <= padding["first_fit"] < 10
    assert fact(r"tokens per second: +([\d,]+)", out) > 0
    assert 0 <= fact(r"waiting for the batches: +([\d.]+)% of the time", out) <= 100
    assert not list(tmp_path.iterdir()), "the corpora and checkpoints were not removed"


def fact(pattern, text):
    """The number that the example printed."""
    (found,) = re.findall(pattern, text)
    return float(found.replace(",", ""))
