"""Which elements of a dataset a slice of a split means."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.op import Op
from headrace.ops.order import GroupShuffle, IndexOp, Repeat, Shuffle, Slice, WindowShuffle, epoch_length
from headrace.storage.splits import SplitTerm, parse


@dataclass(frozen=True, eq=False, repr=False)
class SplitOp(IndexOp):
    """Elements `starts[i]` to `stops[i]` for each i in turn, from each epoch of the parent."""

    name = "split"
    order_params = ("starts", "stops")
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(np.subtract(self.stops, self.starts), dtype=np.int64)

    @cached_property
    def _shifts(self) -> np.ndarray:
        return np.array(self.stops, np.int64) - self._ends

    def length(self) -> int:
        return int(self._ends[-1])

    def indices(self, idx: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(idx, self.length())
        parts = np.searchsorted(self._ends, within, side="right")
        return within + self._shifts[parts] + epochs * epoch_length(self.parent)


def split_of(op: Op, text: str) -> Op:
    """The part of a dataset that a slice or a sum of slices means; errors explain what is wrong with it."""
    parts = parse(text)
    for part in parts:
        if part.name:
            raise _named_split_error(part, text)
    _check_epochs(op, text)
    found = [part.bounds(op.length()) for part in parts]
    if len(found) == 1:
        ((start, stop),) = found
        return Slice(op, start, 1, stop - start)  # consecutive indices stay a range
    starts, stops = zip(*found, strict=True)
    return SplitOp(op, starts, stops)


def _named_split_error(part: SplitTerm, text: str) -> PipelineError:
    sliced = part.text.removeprefix(part.name) or "[:80%]"
    return PipelineError(
        f"A dataset has no named splits, but {part.text!r} names the split {part.name!r}. Write "
        f"`ds.split({sliced!r})`, or choose the split where you open the data: `headrace.open(path, "
        f"split={text!r})`."
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
                f"`split` after {each.label()} would select other elements in each epoch, so you would train "
                "on elements that were for validation. Call `shuffle` after it: "
                f"`ds.split({text!r}).shuffle(seed)`. For a random part that stays the same, call `repeat(1, "
                "reseed_each_epoch=False)` before `split`."
            )


def _before(op: Op) -> Iterator[Op]:
    """The operations up to this one, without those whose first epoch alone counts."""
    to_see = [op]
    while to_see:
        op = to_see.pop()
        yield op
        if not (isinstance(op, Repeat) and not op.reseed_each_epoch):
            to_see += op.parents
