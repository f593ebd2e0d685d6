"""The library `tokenizers` of Hugging Face."""

import os
from collections.abc import Iterable

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.text.encoder import Encoder
from headrace.text.origin import TokenizerOrigin


class HuggingFaceEncoder(Encoder):
    """A `tokenizers.Tokenizer`, with its padding and truncation turned off."""

    def _open(self, origin: TokenizerOrigin) -> None:
        self._set_threads()
        self._tokenizer = optional("tokenizers", extra="text").Tokenizer.from_str(origin.read().decode())
        self._tokenizer.no_padding()  # or tokens would depend on the other texts of a block
        self._tokenizer.no_truncation()
        self._check_model()
        self._check_special_tokens()

    def _check_model(self) -> None:
        for name in ("dropout", "alpha"):
            value = getattr(self._tokenizer.model, name, None)
            if value:
                raise PipelineError(
                    f"The model of {self.origin} is random ({name}={value}), so the same text could produce "
                    f"different tokens. Set `tokenizer.model.{name} = None`."
                )

    def _set_threads(self) -> None:
        """Sets the threads of the library, which has one number for the whole process, fixed at first use."""
        threads = self.num_threads
        if threads is None:
            return
        if self.settings.threads is None:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            return
        os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads == 1 else "true"
        os.environ["RAYON_NUM_THREADS"] = str(threads)

    def _check_special_tokens(self) -> None:
        settings = self.settings
        added = self._num_added()
        if added and (settings.bos is not None or settings.eos is not None):
            raise PipelineError(
                f"{self.origin} already adds {added} special tokens to every text, and `bos` or `eos` would add "
                "more. Remove those, or pass add_special_tokens=False."
            )

    def _num_added(self) -> int:
        return self._tokenizer.num_special_tokens_to_add(False) if self.settings.add_special_tokens else 0

    def _room(self, max_length: int | None) -> int | None:
        room = super()._room(max_length)
        if room is not None and self._num_added():
            if room <= self._num_added():
                raise PipelineError(
                    f"max_length={max_length} leaves no room for text besides the {self._num_added()} special tokens "
                    f"that {self.origin} adds."
                )
            self._tokenizer.enable_truncation(room)  # it keeps the last special token
        return room

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        add = self.settings.add_special_tokens
        return [self.array(each.ids) for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=add)]

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def _ids(self) -> Iterable[int]:
        return self._tokenizer.get_vocab(with_added_tokens=True).values()

    def _id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)
