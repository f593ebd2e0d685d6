"""The library tiktoken of OpenAI."""

import base64
import os
import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import DataError, PipelineError, optional
from headrace.text.encoder import Encoder
from headrace.text.origin import TokenizerOrigin
from headrace.threads import map_in_threads

THREADS = min(8, os.cpu_count() or 1)  # as many as the library itself uses
TEXTS_PER_THREAD = 4  # for fewer, starting a thread does not pay


class TiktokenEncoder(Encoder):
    """A `tiktoken.Encoding`."""

    def _open(self, origin: TokenizerOrigin) -> None:
        tiktoken = optional("tiktoken", extra="text")
        if origin.pattern is not None:
            self._encoding = tiktoken.Encoding(
                origin.name,
                pat_str=origin.pattern,
                mergeable_ranks=_ranks(origin),
                special_tokens=dict(origin.special_tokens),
            )
        else:
            self._encoding = pickle.loads(origin.read()) if origin.digest else tiktoken.get_encoding(origin.name)
        self._one = self._encoding.encode_ordinary  # 1.5 times as fast as `encode` without special tokens
        if self.settings.allowed_special:
            allowed: Any = self.settings.allowed_special
            known = self._encoding.special_tokens_set
            if allowed != "all" and not allowed <= known:
                raise PipelineError(
                    f"{origin} has no special token {min(allowed - known)!r}, which allowed_special names; it has "
                    f"{', '.join(sorted(known)) or 'none'}."
                )
            self._one = partial(self._encoding.encode, allowed_special=allowed, disallowed_special=())

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        threads = min(self.num_threads or THREADS, len(texts) // TEXTS_PER_THREAD)
        if threads < 2:
            return self._encode_part(texts)
        size = -(-len(texts) // threads)
        parts = [texts[i : i + size] for i in range(0, len(texts), size)]
        found = map_in_threads(self._encode_part, parts, threads, "headrace-text")
        return [row for rows in found for row in rows]

    def _encode_part(self, texts: list[str]) -> list[np.ndarray]:
        return [self.array(self._one(text)) for text in texts]

    def decode(self, tokens: list[int]) -> str:
        return self._encoding.decode(tokens)

    def _ids(self) -> Iterable[int]:
        return (self._encoding.max_token_value,)

    def _id_of(self, token: str) -> int | None:
        try:
            return self._encoding.encode_single_token(token)
        except KeyError:
            return None

    def _own_id(self, role: str) -> int | None:
        has_one = role == "eos" and "<|endoftext|>" in self._encoding.special_tokens_set
        return self._encoding.eot_token if has_one else None


def _ranks(origin: TokenizerOrigin) -> dict[bytes, int]:
    """The ranks in a file, which has a line for each token: the token in base 64, and its rank."""
    ranks = {}
    for number, line in enumerate(origin.read().splitlines(), 1):
        if line.strip():
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError as e:
                raise DataError(
                    f"Line {number} of {origin.path} is not a base64 token and its rank: {line[:60]!r}. Repair "
                    "the line, or download the file again."
                ) from e
    return ranks
