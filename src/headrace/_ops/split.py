"""Which elements of a dataset a slice of a split means."""

from collections.abc import Iterator

from headrace._ops.base import Op
from headrace._ops.order import GroupShuffle, Repeat, Shuffle, WindowShuffle
from headrace._utils.splits import Part, parse
from headrace.errors import PipelineError


def slices_of(op: Op, text: str) -> list[tuple[int, int]]:
    """The elements of each term of a sum of slices, by the first and the one after the last."""
    parts = parse(text)
    for part in parts:
        if part.name:
            raise _named(part, text)
    _check_epochs(op, text)
    found = [part.bounds(op.length()) for part in parts]
    return [each for each in found if each[0] < each[1]] or found[:1]


def _named(part: Part, text: str) -> PipelineError:
    sliced = part.text.removeprefix(part.name) or "[:80%]"
    return PipelineError(
        f"A dataset has no splits with names, but {part.text!r} has the name {part.name!r}. Write "
        f"`ds.split({sliced!r})`, or choose the split where you open the data: `headrace.open(path, split={text!r})`."
    )


def _check_epochs(op: Op, text: str) -> None:
    """Raises unless an index means the same element in every epoch, and the dataset has each element once."""
    for each in _before(op):
        if isinstance(each, Repeat) and each.num_epochs != 1:
            raise PipelineError(
                f"`split` takes a part of one epoch, but {each.label()} comes before it. Call `repeat` after it: "
                f"`ds.split({text!r}).repeat()`."
            )
        if isinstance(each, Shuffle | WindowShuffle | GroupShuffle):
            raise PipelineError(
                f"`split` after {each.label()} would have other elements in each epoch, so elements for validation "
                f"would be trained on later. Call `shuffle` after it: `ds.split({text!r}).shuffle(seed)`. For a "
                "random part that stays the same, call `repeat(1, reseed_each_epoch=False)` before `split`."
            )


def _before(op: Op) -> Iterator[Op]:
    """The operations up to this one, without those whose first epoch alone counts."""
    to_see = [op]
    while to_see:
        op = to_see.pop()
        yield op
        if not (isinstance(op, Repeat) and not op.reseed_each_epoch):
            to_see += op.parents
