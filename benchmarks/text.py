"""From JSON lines to packed batches, against the tokenizer alone."""

import json
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.measure import Row, faster_than, side_by_side

LINES = 40  # of a source file make a document
AT_ONCE = 1000  # documents of one call of the tokenizer
EPOCHS = 3


def _documents() -> list[str]:
    """The standard library, cut into documents of about 1.5 kB."""
    found = []
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted([*library.glob("*.py"), *library.glob("[a-s]*/*.py")]):
        lines = path.read_text(errors="ignore").splitlines()
        found += ["\n".join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
    return [document for document in found if len(document) > 100][:10_000]


def _trained(documents: list[str]) -> Any:
    """A byte-level BPE tokenizer of 8,000 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents[::4], trainer)
    return tokenizer


def json_lines_to_packed_batches() -> list[Row]:
    from headrace.text import Tokenize

    documents = _documents()
    tokenizer = _trained(documents)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": document, "n": i}) + "\n" for i, document in enumerate(documents)))
        source = hr.sources.JsonLinesDataSource(path)

        def ours() -> float:
            ds = (
                hr.MapDataset.source(source)
                .shuffle(seed=1)
                .repeat(EPOCHS)
                .to_iter_dataset()
                .filter(lambda document: len(document["text"]) > 10)
                .map(Tokenize(tokenizer, eos="<eos>"))
                .prefetch(2 * AT_ONCE)
                .pack({"tokens": 2048}, strategy="best_fit", long_sequences="split", drop_other_features=True)
                .batch(8)
            )
            begin = time.perf_counter()
            for _ in ds:
                pass
            return (time.perf_counter() - begin) / len(same)

        # In the same order, since neighbours have words in common, which a tokenizer remembers.
        same = [each["text"] for each in hr.MapDataset.source(source).shuffle(seed=1).repeat(EPOCHS)]

        def alone(take: Callable[[Any], Any]) -> float:
            begin = time.perf_counter()
            for i in range(0, len(same), AT_ONCE):
                take(tokenizer.encode_batch_fast(same[i : i + AT_ONCE]))
            return (time.perf_counter() - begin) / len(same)

        mine, call, ids = side_by_side(
            ours, lambda: alone(len), lambda: alone(lambda found: [each.ids for each in found])
        )
    work = f"{len(documents):,} JSON lines of 1.5 kB, shuffled, to tokens by BPE, packed, in batches"
    return [
        faster_than(work, "the tokenizer's batch call alone, and its ids", 0.9, mine, ids),
        faster_than("the same", "the call alone, no ids taken", 0.9, mine, call),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [json_lines_to_packed_batches]
