"""Splits, their slices and sums, as TensorFlow Datasets and Hugging Face write them: `train[:80%]+test[10:20]`.

Percents are rounded to the closest record. So parts that are cut at the same percents have every record once.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from headrace.errors import PipelineError
from headrace.errors.suggestions import closest

_TERM = re.compile(r"\s*([^\s\[\]+]*)(?:\[([^\[\]]*)\])?\s*")
_BOUND = r"(-?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+))(%|shard)?"
_SLICE = re.compile(rf"(?:{_BOUND})?:(?:{_BOUND})?")
_ONE_SHARD = re.compile(r"(-?\d+)shard")
_EXAMPLES = (
    "Write it as in `train`, `train[:80%]`, `train[10:20]`, `train[-5:]`, or a sum of these: `train[:50]+test[:10%]`."
)


class Bound(NamedTuple):
    """Where a slice begins or ends; from the end, if it is negative."""

    number: float  # an int, unless it is a percent
    unit: str  # "%", "shard", or "" for records


class SplitTerm(NamedTuple):
    """One term of a sum: `train[:80%]`, `train`, or `[:80%]`."""

    text: str
    name: str  # "" if it has none
    start: Bound | None = None
    stop: Bound | None = None

    @property
    def is_whole(self) -> bool:
        return self.start is None and self.stop is None

    def bounds(self, length: int, shards: Sequence[int] | None = None, *, clips: bool = False) -> tuple[int, int]:
        """The first record, and the one after the last, in a split of this length.

        Args:
            length: The number of records.
            shards: The number in each file, if there are any.
            clips: Whether a slice may reach past the ends, as in Hugging Face's library; it is an error otherwise.

        >>> parse("train[:33%]")[0].bounds(10), parse("train[-4:9]")[0].bounds(10)
        ((0, 3), (6, 9))
        """
        start = 0 if self.start is None else self._place(self.start, length, shards, clips)
        stop = length if self.stop is None else self._place(self.stop, length, shards, clips)
        return start, max(start, stop)

    def _place(self, bound: Bound, length: int, shards: Sequence[int] | None, clips: bool) -> int:
        number, unit = bound
        if unit == "shard":
            return self._end_of_shard(int(number), shards)
        place = round(number * length / 100) if unit == "%" else int(number)
        if number < 0 and not place and length:
            raise PipelineError(
                f"{self.text!r}: {-number:g}% of {length} records rounds to 0, and a slice from the end needs at "
                "least one. Use a number of records, as in `[-1:]`, or a percentage from the start."
            )
        if abs(place) > length and not clips:
            raise PipelineError(
                f"{self.text!r} reaches {place}, but there are only {length} records. Omit that end to take all."
            )
        return min(max(place + length if place < 0 else place, 0), length)

    def _end_of_shard(self, number: int, shards: Sequence[int] | None) -> int:
        if shards is None:
            raise PipelineError(
                f"{self.text!r}: only TFDS folders can be sliced by shards. Use percentages or records."
            )
        if abs(number) > len(shards):
            raise PipelineError(f"{self.text!r} reaches shard {number}, but there are {len(shards)}.")
        return sum(shards[:number])


def parse(text: Any) -> list[SplitTerm]:
    """The terms of a sum.

    >>> parse("train[:80%]+test")
    [SplitTerm(text='train[:80%]', name='train', start=None, stop=Bound(number=80.0, unit='%')), \
SplitTerm(text='test', name='test', start=None, stop=None)]
    """
    if not isinstance(text, str):
        raise PipelineError(f"{text!r} is not a split. {_EXAMPLES}")
    return [_parsed(term.strip(), text) for term in text.split("+")]


def _parsed(term: str, text: str) -> SplitTerm:
    def wrong(why: str) -> PipelineError:
        where = "" if term == text else f", in {text!r}"
        return PipelineError(f"{term!r}{where} is not a split{why}. {_EXAMPLES}")

    found = _TERM.fullmatch(term)
    if found is None or not term:
        raise wrong("")
    name, sliced = found.groups()
    if sliced is None:
        if re.fullmatch(_BOUND, name) and not name.isdecimal():
            raise wrong(f": write a slice in brackets, with a colon, as in `[:{name}]`")
        if ":" in name and _SLICE.fullmatch(name):
            raise wrong(f": write a slice in brackets, as in `[{name}]`")
        return SplitTerm(term, name)
    if one := _ONE_SHARD.fullmatch(sliced):
        number = int(one[1])
        stop = None if number == -1 else Bound(number + 1, "shard")
        return SplitTerm(term, name, Bound(number, "shard"), stop)
    both = _SLICE.fullmatch(sliced)
    if both is None:
        raise wrong(_what_is_wrong(sliced))
    start, unit, stop, other = both.groups()
    if start is not None and stop is not None and unit != other:
        raise wrong(": both ends of a slice must have the same unit")
    unit = unit or other or ""
    try:
        return SplitTerm(term, name, *(None if end is None else _bound(end, unit) for end in (start, stop)))
    except ValueError as e:
        raise wrong(f": {e}") from None


def _bound(number: str, unit: str) -> Bound:
    if unit != "%":
        if "." in number:
            raise ValueError("only percentages can have fractions")
        return Bound(int(number), unit)
    if abs(float(number)) > 100:
        raise ValueError("a percentage must be at most 100")
    return Bound(float(number), unit)


def _what_is_wrong(sliced: str) -> str:
    if sliced.count(":") > 1:
        return ": slices of splits cannot have a step"
    return "" if ":" in sliced else ": a slice needs a colon"


def parse_split(text: Any, names: Collection[str], what: str, hint: str = "") -> list[SplitTerm]:
    """The terms of a sum of splits that have these names; `all` is the sum of all, and the only one needs no name.

    In errors, `what` is said to have the splits, and the hint comes last.
    """
    if isinstance(text, str) and text in names:  # whatever characters it has
        return [SplitTerm(text, text)]
    parts = []
    for part in parse(text):
        if not part.name and len(names) == 1:
            parts.append(part._replace(name=next(iter(names))))
        elif part.name == "all" and "all" not in names:
            parts += _all(part, names)
        elif part.name in names:
            parts.append(part)
        else:
            raise PipelineError(_unknown(part, names, what) + hint)
    return parts


def _all(part: SplitTerm, names: Collection[str]) -> list[SplitTerm]:
    if not part.is_whole:
        sliced = part.text.removeprefix("all")
        raise PipelineError(
            f"{part.text!r} slices `all`, which can only be taken whole. Slice its splits and add them: "
            f"{'+'.join(name + sliced for name in names)!r}."
        )
    return [SplitTerm(name, name) for name in names]


def _unknown(part: SplitTerm, names: Collection[str], what: str) -> str:
    """What is wrong with a part of a split that does not exist, or that is not named."""
    known = list(filter(None, names))
    sliced = part.text.removeprefix(part.name)
    if not known:
        return (
            f"{what} has no named splits, but {part.text!r} names {part.name!r}. Omit the name, as in "
            f"`split={sliced or '[:80%]'!r}`."
        )
    if not part.name:
        return (
            f"{part.text!r} does not name a split; {what} has {', '.join(known)}. Write one, as in "
            f"`split={known[0] + sliced!r}`."
        )
    there = f"there are {', '.join(known)}, and `all`" if len(known) > 1 else f"there is only {known[0]}"
    meant = closest(part.name, known)
    guess = f" Did you mean {meant + sliced!r}?" if meant else ""
    return f"{what} has no split {part.name!r}; {there}.{guess}"
