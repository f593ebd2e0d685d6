"""Open tokenizers: they turn each text into an array of tokens.

A text's tokens depend on the text alone: not on other texts in the same call, and not on threads.
"""

import abc
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.engine.workers.messages import is_worker_process
from headrace.errors import DataError, PipelineError
from headrace.text.origin import TokenizerOrigin

Token = int | str | Literal[True] | None
"""A token by its id or its name; `True` is the tokenizer's own BOS or EOS."""


INT32 = np.dtype(np.int32)
_CODES = {np.dtype(code): code for code in "iIHq"}


@dataclass(frozen=True)
class Settings:
    """How to turn texts into tokens; see `Tokenize`."""

    dtype: np.dtype = INT32
    bos: Token = None
    eos: Token = None
    max_length: int | None = None
    add_special_tokens: bool = True
    allowed_special: frozenset[str] | Literal["all"] = frozenset()
    threads: int | None = None


class Encoder(abc.ABC):
    """A tokenizer that is open in this process. Each library has a subclass."""

    def __init__(self, origin: TokenizerOrigin, settings: Settings):
        self.origin = origin
        self.settings = settings
        self._open(origin)
        self._check_dtype()
        self.bos, self.eos = self._affix("bos"), self._affix("eos")
        self.room = self._room(settings.max_length)

    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        """The tokens of each text."""
        try:
            return self._encode(texts)
        except Exception:
            _check_text(texts)
            raise

    def array(self, ids: list[int]) -> np.ndarray:
        """The tokens of a text as an array of at most `max_length`, with `bos` and `eos`; it changes the list."""
        if self.room is not None:
            del ids[self.room :]
        if self.bos:
            ids = self.bos + ids
        ids += self.eos
        dtype = self.settings.dtype
        count = len(ids)
        code = _CODES.get(dtype)
        if code is None:
            return np.fromiter(ids, dtype, count)
        found = np.empty(count, dtype)
        struct.pack_into(f"{count}{code}", found.data, 0, *ids)  # takes two thirds of the time
        return found

    @property
    def num_threads(self) -> int | None:
        """The most threads; `None` leaves it to the library."""
        return 1 if self.settings.threads is None and is_worker_process() else self.settings.threads

    # ---- for each library

    @abc.abstractmethod
    def _open(self, origin: TokenizerOrigin) -> None:
        """Opens the tokenizer."""

    @abc.abstractmethod
    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        """The tokens of each text, made by `array`."""

    @abc.abstractmethod
    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, with special tokens by their names."""

    @abc.abstractmethod
    def _ids(self) -> Iterable[int]:
        """The ids of all tokens, or only the largest."""

    @abc.abstractmethod
    def _id_of(self, token: str) -> int | None:
        """The id of a token by its name, if there is one."""

    def _own_id(self, role: str) -> int | None:
        """The id of the tokenizer's own token for the beginning (`bos`) or end (`eos`) of a text, if it has one."""
        return None

    # ---- checks

    def _check_dtype(self) -> None:
        dtype = self.settings.dtype
        if np.iinfo(dtype).max < np.iinfo(np.int32).max and np.iinfo(dtype).max < (largest := max(self._ids())):
            raise PipelineError(
                f"The tokens of {self.origin} go up to {largest}, which dtype={dtype} cannot hold. Use int32."
            )

    def _affix(self, role: str) -> list[int]:
        token: Token = getattr(self.settings, role)
        found: Any = token
        if token is True:
            found = self._own_id(role)
        elif isinstance(token, str):
            found = self._id_of(token)
        if found is None and token is not None:
            what = f"no token {token!r}" if isinstance(token, str) else f"no {role.upper()} token"
            raise PipelineError(f"{self.origin} has {what}. Set `{role}` to the name or the id of one of its tokens.")
        if found is not None and found > np.iinfo(self.settings.dtype).max:
            raise PipelineError(f"`{role}` is the token {found}, too large for dtype={self.settings.dtype}. Use int32.")
        if isinstance(token, int) and token is not True and not 0 <= token <= max(self._ids()):
            raise PipelineError(
                f"`{role}` is the token {token}, but the tokens of {self.origin} end at {max(self._ids())}. "
                "Set it to one of them."
            )
        return [] if found is None else [found]

    def _room(self, max_length: int | None) -> int | None:
        """The most tokens between `bos` and `eos`."""
        if max_length is None:
            return None
        room = max_length - len(self.bos) - len(self.eos)
        if room < 1:
            raise PipelineError(f"max_length={max_length} leaves no room for text besides `bos` and `eos`.")
        return room


def _check_text(texts: list[str]) -> None:
    """Raises if a text contains something that is not a character."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise DataError(
                f"A text contains half of a surrogate pair, which is not a character: U+{ord(text[e.start]):04X} "
                f"after {text[max(0, e.start - 20) : e.start]!r}. Replace it in a `map` first: "
                "`text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')`."
            ) from e
