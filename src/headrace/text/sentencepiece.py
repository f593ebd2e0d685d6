"""The library sentencepiece of Google."""

from collections.abc import Iterable

import numpy as np

from headrace.errors import optional
from headrace.text.encoder import Encoder
from headrace.text.origin import TokenizerOrigin


class SentencePieceEncoder(Encoder):
    """A `sentencepiece.SentencePieceProcessor`."""

    def _open(self, origin: TokenizerOrigin) -> None:
        library = optional("sentencepiece", extra="text")
        self._processor = library.SentencePieceProcessor(model_proto=origin.read())

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        rows = self._processor.encode(texts, out_type=int, num_threads=self.num_threads or -1)
        return list(map(self.array, rows))

    def decode(self, tokens: list[int]) -> str:
        return self._processor.decode(tokens)

    def _ids(self) -> Iterable[int]:
        return (self._processor.vocab_size() - 1,)

    def _id_of(self, token: str) -> int | None:
        found = self._processor.piece_to_id(token)  # that of the unknown token, if there is none
        return found if self._processor.id_to_piece(found) == token else None

    def _own_id(self, role: str) -> int | None:
        found = self._processor.bos_id() if role == "bos" else self._processor.eos_id()
        return None if found < 0 else found
