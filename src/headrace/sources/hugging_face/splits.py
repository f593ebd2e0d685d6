"""Splits of Hugging Face's datasets."""

from collections.abc import Collection, Mapping
from typing import Any

from headrace._utils.splits import parts_of
from headrace.errors import PipelineError, optional


def chosen(splits: Mapping[str, Any], split: Any, what: str) -> Any:
    """The dataset that a split means, given those by name; as in `datasets`, a slice may reach past the ends.

    `what` has the splits; errors begin with it.
    """
    pieces = []
    for part in parts_of(_text(split, splits, what), splits, what):
        whole = splits[part.name]
        pieces.append(whole if part.is_whole else whole.select(range(*part.bounds(len(whole), clips=True))))
    return pieces[0] if len(pieces) == 1 else optional("datasets", extra="hf").concatenate_datasets(pieces)


def chosen_stream(splits: Mapping[str, Any], split: Any, what: str) -> Any:
    """The stream that a split means; without a length, it cannot be sliced."""
    text = _text(split, splits, what)
    parts = parts_of(text, splits, what)
    if len(parts) == 1 and parts[0].is_whole:
        return splits[parts[0].name]
    raise PipelineError(
        f"{text!r} is a part or a sum of streams, whose lengths are not known. Choose one, as in "
        f"`split={parts[0].name!r}`, and cut it with `take` and `skip`."
    )


def _text(split: Any, names: Collection[str], what: str) -> str:
    """A split as text; it may be a `datasets.Split` or a `datasets.ReadInstruction`."""
    if split is None:
        names = list(names)
        raise PipelineError(
            f"{what} has the splits {names}: choose one, as in `split={names[0] if names else '…'!r}`; got None."
        )
    return str(split)
