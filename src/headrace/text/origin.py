"""Where a tokenizer comes from: what worker processes receive in its place, and what identifies it.

If the user passes a path, workers receive the path, and the file must be the same for all of them; if the user passes
an object, workers receive the contents of its file.
"""

import contextlib
import hashlib
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataError, PipelineError, optional
from headrace.errors.addresses import bare_address
from headrace.storage import files

HUGGING_FACE = "tokenizers"
TIKTOKEN = "tiktoken"
SENTENCEPIECE = "sentencepiece"
DIGEST_LENGTH = 12
_RANKS = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")


@dataclass(frozen=True)
class TokenizerOrigin:
    """A tokenizer that may not be open yet: its file, the contents of its file, or its name.

    Attributes:
        library: The library that opens it.
        name: The name of the file, or of an encoding.
        digest: The beginning of the SHA-256 of the contents; empty if there is only a name.
        pattern: The pattern that splits texts, if the file has only ranks.
        special_tokens: The special tokens, if the file has only ranks.
        path: The file.
        contents: What would be in the file, if there is none.
    """

    library: str
    name: str
    digest: str = ""
    pattern: str | None = None
    special_tokens: tuple[tuple[str, int], ...] = ()
    path: str | None = field(default=None, compare=False, repr=False)
    contents: bytes | None = field(default=None, compare=False, repr=False)

    def read(self) -> bytes:
        """The contents of the file; raises if they do not match the digest."""
        if self.path is None:
            return self.contents or b""
        contents = _read(self.path)
        if _digest(contents) != self.digest:
            raise DataError(
                f"The tokenizer file {self.path} has changed since the pipeline was created: the SHA-256 of its "
                f"contents started with {self.digest}, and now starts with {_digest(contents)}. Restore the old "
                "file, or recreate the pipeline."
            )
        return contents

    def __str__(self) -> str:
        return " ".join(filter(None, (self.library, self.name, self.digest)))


def origin_of(tokenizer: Any, pattern: str | None, special_tokens: Mapping[str, int] | None) -> TokenizerOrigin:
    """The origin of a tokenizer that users gave as an object, a path, or a name."""
    if isinstance(tokenizer, str | os.PathLike):
        origin = _of_path(os.fsdecode(tokenizer), pattern, special_tokens)
    else:
        origin = _of_object(getattr(tokenizer, "backend_tokenizer", tokenizer))  # of `transformers`, the one inside
    if origin.pattern is None and (pattern is not None or special_tokens is not None):
        raise PipelineError(
            f"`pattern` and `special_tokens` belong to a file of tiktoken ranks, but {origin} has its own. Remove them."
        )
    optional(origin.library, extra="text")
    return origin


# --------------------------------------------------------------------------------------------------- paths


def _of_path(path: str, pattern: str | None, special_tokens: Mapping[str, int] | None) -> TokenizerOrigin:
    if not files.is_remote(path):
        if not os.path.exists(path):
            return _of_name(path)
        path = os.path.abspath(path)
    contents = _read(path)
    library = _library_of_file(path, contents)
    name = os.path.basename(bare_address(path))
    digest = _digest(contents)
    if library != TIKTOKEN:
        return TokenizerOrigin(library, name, digest, path=path)
    if pattern is None:
        raise PipelineError(
            f"{path} has the ranks of a tiktoken encoding, but not how to split texts: also pass `pattern`, the "
            "regular expression of its words, and `special_tokens`, a dict of their ids, if it has any."
        )
    return TokenizerOrigin(library, name, digest, pattern, tuple(sorted((special_tokens or {}).items())), path=path)


def _of_name(name: str) -> TokenizerOrigin:
    """A tiktoken encoding by its name."""
    known: list[str] = []
    if re.fullmatch(r"[\w-]+", name):
        known = optional("tiktoken", extra="text").list_encoding_names()
        if name in known:
            return TokenizerOrigin(TIKTOKEN, name)
    names = f", and tiktoken knows no encoding of that name: it knows {', '.join(sorted(known))}" if known else ""
    raise FileNotFoundError(f"There is no tokenizer file {name!r}{names}. Pass the path of a tokenizer file.")


def _library_of_file(path: str, contents: bytes) -> str:
    """The library of a tokenizer's file, by its contents: files of different libraries are called tokenizer.model."""
    if contents[:64].lstrip().startswith(b"{"):
        return HUGGING_FACE
    if contents.startswith(b"\n"):  # the first field of a model in Protocol Buffers: its pieces
        return SENTENCEPIECE
    if _RANKS.match(contents):
        return TIKTOKEN
    raise DataError(
        f"{path} is not a tokenizer file: it starts with {contents[:20]!r}. Pass a tokenizer.json of "
        "`tokenizers`, a .model of sentencepiece, or a .tiktoken file of ranks."
    )


def _read(path: str) -> bytes:
    with contextlib.closing(files.open_stream(path)) as file:
        return file.read()


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:DIGEST_LENGTH]


# ------------------------------------------------------------------------------------------------- objects


def _of_object(tokenizer: Any) -> TokenizerOrigin:
    packages = {kind.__module__.partition(".")[0] for kind in type(tokenizer).__mro__}
    library = next((name for name in _CONTENTS if name in packages), None)
    if library is None:
        raise PipelineError(
            "Tokenize takes a tokenizer of `tokenizers`, tiktoken or sentencepiece, the path to its file, or the name "
            f"of a tiktoken encoding; got {type(tokenizer).__name__}: {tokenizer!r:.80}."
        )
    for name in _NOT_IN_THE_FILE:
        if getattr(tokenizer, name, False):
            raise PipelineError(
                f"This {type(tokenizer).__name__} has {name.lstrip('_')}={getattr(tokenizer, name)!r}, which is "
                "not in its file and so would be lost. Pass a tokenizer without it; Tokenize has its own `bos` "
                "and `eos`."
            )
    try:
        contents = _CONTENTS[library](tokenizer)
    except Exception as e:
        raise PipelineError(
            f"This {type(tokenizer).__name__} cannot be written to a file, which other processes need "
            f"({type(e).__name__}: {e}). If parts of it are written in Python, call it in a `map` instead."
        ) from e
    return TokenizerOrigin(library, getattr(tokenizer, "name", ""), _digest(contents), contents=contents)


_NOT_IN_THE_FILE = ("encode_special_tokens", "_add_bos", "_add_eos", "_reverse", "_emit_unk_piece", "_enable_sampling")
_CONTENTS = {
    HUGGING_FACE: lambda tokenizer: tokenizer.to_str().encode(),
    TIKTOKEN: pickle.dumps,  # one that tiktoken knows by its name, as that
    SENTENCEPIECE: lambda processor: processor.serialized_model_proto(),
}
