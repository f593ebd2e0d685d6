"""Tokens as text, where a transform says how: one with `token_feature` and `decode_tokens`, as `Tokenize` has."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors.one_line import one_line
from headrace.insight.show.element_view import ElementView, escaped, long_text
from headrace.ops.op import Op, parents_first

MOST_TOKENS = 1024
MOST_ROWS = 4
USUAL_NAMES = frozenset(("tokens", "input_ids", "inputs", "targets", "labels", "input_tokens", "target_tokens"))
SEGMENTS = "_segment_ids"


@dataclass(frozen=True)
class Decoder:
    """How to turn the tokens of a feature into text; `None` means that they are the element."""

    feature: str | None
    decode: Callable[[list[int]], str]

    def text_of(self, tokens: np.ndarray, segments: np.ndarray | None) -> list[str]:
        """The text of one row; of packed ones, the text of each segment, without padding."""
        tokens = tokens[:MOST_TOKENS]
        if segments is None or segments.shape[:1] < tokens.shape:
            return [self.decode(tokens.tolist())]
        segments = segments[: len(tokens)]
        numbers = [int(number) for number in np.unique(segments) if number]
        return [self.decode(tokens[segments == number].tolist()) for number in numbers]


def decoders_of(dataset: Any) -> list[Decoder]:
    """The decoders of a dataset or loader; the last transform comes first."""
    found = [_decoder(transform) for transform in reversed(list(_transforms(dataset)))]
    return [decoder for decoder in found if decoder is not None]


def _transforms(dataset: Any) -> Iterable[Any]:
    op = dataset if isinstance(dataset, Op) else getattr(getattr(dataset, "dataset", dataset), "_op", None)
    if isinstance(op, Op):
        yield from (getattr(each, "transform", None) for each in parents_first(op, lambda _: True))
    yield from getattr(dataset, "operations", ())  # of a loader, whose pipeline has them in its own transforms


def _decoder(transform: Any) -> Decoder | None:
    decode: Any = getattr(transform, "decode_tokens", None)
    return None if decode is None else Decoder(getattr(transform, "token_feature", None), decode)


def decoder_for(name: str | None, fields: Mapping[Any, Any], decoders: list[Decoder]) -> Decoder | None:
    """The decoder of a feature; where none has its name, names that tokens usually have will do."""
    by_name = next((each for each in decoders if each.feature == name), None)
    if by_name is None and decoders and name in USUAL_NAMES and not any(d.feature in fields for d in decoders):
        return decoders[0]
    return by_name


def token_view(tokens: np.ndarray, segments: np.ndarray | None, decoder: Decoder, note: str) -> ElementView | None:
    """Tokens as text; None if they are none, or cannot be decoded."""
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2) or not tokens.size:
        return None
    rows = tokens.reshape(-1, tokens.shape[-1])[:MOST_ROWS]
    marks = [None] * len(rows) if segments is None else segments.reshape(-1, tokens.shape[-1])
    try:
        texts = [decoder.text_of(row, mark) for row, mark in zip(rows, marks, strict=False)]
    except Exception:  # there are ids that the tokenizer does not have
        return None
    numbers = one_line(" ".join(map(str, rows[0][:64].tolist())), 120)

    def html() -> str:
        shown = "".join(f"<div>{''.join(map(long_text, row))}</div>" for row in texts)
        return f'{shown}<div style="opacity: 0.6; text-align: left">{escaped(numbers)}</div>'

    return ElementView(note, " | ".join(one_line(repr(text), 400) for row in texts for text in row), html)
