"""Tokenizing as a transform: `ds.map(Tokenize(...))`."""

import contextlib
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from headrace import transforms
from headrace.errors import DataError, HeadraceError, PipelineError
from headrace.options import check_count
from headrace.text.encoder import Encoder, Settings, Token
from headrace.text.hugging_face_encoder import HuggingFaceEncoder
from headrace.text.origin import HUGGING_FACE, SENTENCEPIECE, TIKTOKEN, TokenizerOrigin, origin_of
from headrace.text.sentencepiece import SentencePieceEncoder
from headrace.text.tiktoken import TiktokenEncoder
from headrace.trees import ShapeDtypeStruct

_ENCODERS: dict[str, type[Encoder]] = {
    HUGGING_FACE: HuggingFaceEncoder,
    TIKTOKEN: TiktokenEncoder,
    SENTENCEPIECE: SentencePieceEncoder,
}


class Tokenize(transforms.Map):
    """Turns the text of each element into an array of tokens, many texts at a time.

    Texts are `str`, or `bytes` in UTF-8. The tokens do not depend on threads, on workers, or on how many texts are
    tokenized at a time: the tokenizer's own padding and truncation are turned off. With a `prefetch` after it,
    tokenizing runs in a thread while later operations compute.

    >>> import tokenizers
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<eos>": 0, "a": 1, "b": 2}))
    >>> words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> MapDataset.source([{"text": "b a b"}]).map(Tokenize(words, eos="<eos>"))[0]
    {'tokens': array([2, 1, 2, 0], dtype=int32)}

    Args:
        tokenizer: A tokenizer of `tokenizers`, tiktoken or sentencepiece, the path to its file (a tokenizer.json, a
            .model, or a .tiktoken file of ranks), or the name of a tiktoken encoding. Worker processes get the path, or
            the contents of the file if you give an object, and open it once.
        feature: The feature with the text; `None` if elements are texts.
        output: The feature for the tokens; with `None`, the tokens are the element.
        keep_text: Whether to keep the text in the element.
        dtype: The integer dtype of tokens; packing keeps it. PyTorch's losses take int64 alone as targets.
        bos: A token before each text: its id, its name, or `True` for the tokenizer's own, if it has one.
        eos: A token after each text, likewise.
        max_length: The most tokens of an element, including `bos` and `eos`; longer texts lose their end.
        add_special_tokens: Whether a tokenizer of `tokenizers` adds its special tokens.
        allowed_special: The special tokens that tiktoken finds in texts, or "all"; others are plain text to it.
        threads: The most threads of the library; by default as many as it likes, and one in worker processes.
            `tokenizers` has one number for the whole process, which its first use fixes.
        pattern: For a file of ranks, the regular expression that splits texts into words.
        special_tokens: For a file of ranks, the special tokens and their ids.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        feature: str | None = "text",
        output: str | None = "tokens",
        keep_text: bool = False,
        dtype: DTypeLike = np.int32,
        bos: Token = None,
        eos: Token = None,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        allowed_special: Collection[str] | Literal["all"] = (),
        threads: int | None = None,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
    ):
        self._origin = origin_of(tokenizer, pattern, special_tokens)
        self._feature = feature
        self._output = output
        self._keep_text = keep_text
        if keep_text and (feature is None or output is None or feature == output):
            raise PipelineError(
                "keep_text=True needs a feature for the text and another one for the tokens; got "
                f"feature={feature!r} and output={output!r}."
            )
        self._settings = Settings(
            dtype=_integers(dtype),
            bos=_token("bos", bos),
            eos=_token("eos", eos),
            max_length=None if max_length is None else check_count("max_length", max_length, least=1),
            add_special_tokens=add_special_tokens,
            allowed_special=_allowed(allowed_special, self._origin),
            threads=None if threads is None else check_count("threads", threads, least=1),
        )
        self._encoder: Encoder | None = None

    def map(self, element: Any) -> Any:
        return self.map_rows([element])[0]

    def map_rows(self, elements: list[Any]) -> list[Any]:
        """Tokenizes many elements in one call of the tokenizer."""
        texts = self._texts(elements)
        rows = self._open()(texts)
        if self._output is None:
            return rows
        if self._feature is None:
            return [{self._output: tokens} for tokens in rows]
        return [self._with(element, tokens) for element, tokens in zip(elements, rows, strict=True)]

    @property
    def token_feature(self) -> str | None:
        """The feature with the tokens; `None` if they are the element."""
        return self._output

    def decode_tokens(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of tokens, with special tokens by their names."""
        return self._open().decode([int(token) for token in tokens])

    def output_spec(self, input_spec: Any) -> Any:
        """The shapes and dtypes after tokenizing; the number of tokens varies."""
        tokens = ShapeDtypeStruct((None,), self._settings.dtype)
        if self._output is None:
            return tokens
        return {self._output: tokens} if self._feature is None else self._with(input_spec, tokens)

    def _open(self) -> Encoder:
        if self._encoder is None:
            self._encoder = open_encoder(self._origin, self._settings)
        return self._encoder

    def _with(self, element: Mapping[str, Any], tokens: Any) -> dict[str, Any]:
        kept: dict[Any, Any] = dict(element)
        if not self._keep_text:
            del kept[self._feature]
        kept[self._output] = tokens
        return kept

    def _texts(self, elements: list[Any]) -> list[str]:
        with contextlib.suppress(KeyError, TypeError, IndexError):  # `_text` tells which element fails
            texts = elements if self._feature is None else [element[self._feature] for element in elements]
            if set(map(type, texts)) == {str}:
                return texts
        return [self._text(element) for element in elements]

    def _text(self, element: Any) -> str:
        text = element
        if self._feature is not None:
            try:
                text = element[self._feature]
            except (KeyError, TypeError, IndexError):
                raise _no_feature(element, self._feature) from None
        if isinstance(text, str):
            return text
        if not isinstance(text, bytes):
            raise PipelineError(f"Tokenize takes texts, `str` or `bytes`; got {_shown(text)}{self._hint(text)}.")
        try:
            return text.decode()
        except UnicodeDecodeError as e:
            raise DataError(
                f"A text in bytes is not UTF-8: byte {e.start + 1} of {len(text)} is 0x{text[e.start]:02x}, after "
                f"{text[max(0, e.start - 20) : e.start]!r}. Decode it in a `map` first."
            ) from e

    def _hint(self, text: Any) -> str:
        if self._feature is not None:
            return f" as the feature {self._feature!r}"
        return "; set `feature` to the name of the text" if isinstance(text, Mapping) else ""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_encoder": None}

    def __repr__(self) -> str:
        shown = [str(self._origin)]
        names = {
            "feature": ("text", self._feature),
            "output": ("tokens", self._output),
            "keep_text": (False, self._keep_text),
        }
        names |= {name: (getattr(Settings, name), value) for name, value in vars(self._settings).items()}
        shown += [f"{name}={_plain(value)}" for name, (default, value) in names.items() if value != default]
        return f"Tokenize({', '.join(shown)})"


# -------------------------------------------------------------------------------------------- once a process

_opened: "weakref.WeakValueDictionary[Any, Encoder]" = weakref.WeakValueDictionary()
_opening = threading.Lock()


def open_encoder(origin: TokenizerOrigin, settings: Settings) -> Encoder:
    """An open tokenizer; this process opens it once for each setting."""
    key = origin, settings, settings.bos is True, settings.eos is True  # since True == 1
    with _opening:
        encoder = _opened.get(key)
        if encoder is None:
            try:
                encoder = _opened[key] = _ENCODERS[origin.library](origin, settings)
            except (HeadraceError, OSError):
                raise
            except Exception as e:
                raise DataError(f"{origin.library} cannot open {origin}: {type(e).__name__}: {e}.") from e
        return encoder


# ------------------------------------------------------------------------------------------------- arguments


def _allowed(special: Collection[str] | Literal["all"], origin: TokenizerOrigin) -> frozenset[str] | Literal["all"]:
    if special and origin.library != TIKTOKEN:
        raise PipelineError(f"allowed_special is for tiktoken only, not for {origin}. Remove it.")
    if special == "all":
        return "all"
    if isinstance(special, str):
        raise PipelineError(f'allowed_special must be "all" or a collection of tokens; got the string {special!r}.')
    return frozenset(special)


def _integers(dtype: DTypeLike) -> np.dtype:
    found = np.dtype(dtype)
    if found.kind not in "iu":
        raise PipelineError(f"Tokens are integers, and dtype={found} is not. Use int32.")
    return found


def _token(name: str, token: Any) -> Token:
    """A token by its id or name, or `True`, checked as far as possible before the tokenizer is open."""
    if token is None or token is True or isinstance(token, str):
        return token
    return check_count(name, token, least=0)


def _no_feature(element: Any, feature: str) -> PipelineError:
    if isinstance(element, Mapping):
        return PipelineError(
            f"The element has no feature {feature!r} to tokenize; it has {sorted(map(str, element))}. Set "
            "`feature` to the name of the text."
        )
    return PipelineError(
        f"The element is {_shown(element)}, not a dict with a feature {feature!r}. Pass feature=None if "
        "elements are texts."
    )


def _shown(value: Any) -> str:
    return f"{type(value).__name__}: {value!r:.60}"


def _plain(value: Any) -> str:
    if isinstance(value, np.dtype):
        return str(value)
    return repr(sorted(value) if isinstance(value, frozenset) else value)
