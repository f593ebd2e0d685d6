"""What a verification found."""

import re
from dataclasses import dataclass
from typing import Any

SHOWN = 20  # damaged places in the text of a report


@dataclass(frozen=True)
class Damage:
    """Records that cannot be read, or a file that cannot be opened.

    >>> damage = Damage("train.tfrecord", record=7, num_records=1, error="a wrong checksum")
    >>> damage.file, damage.record
    ('train.tfrecord', 7)

    Attributes:
        file: The file or folder; None if the source does not say.
        record: The first record that cannot be read, counted from 0 in the file; None for the file as a whole.
        num_records: How many records in a row cannot be read, and fail alike; 0 if a file cannot be opened.
        error: The error of the first of them.
    """

    file: str | None
    record: int | None
    num_records: int
    error: str

    def and_also(self, other: "Damage") -> "Damage | None":
        """Both as one, if the other one follows this one in the file and fails alike."""
        if self.record is None or other.record != self.record + self.num_records or self.file != other.file:
            return None
        if likeness(self.error) != likeness(other.error):
            return None
        return Damage(self.file, self.record, self.num_records + other.num_records, self.error)

    def __str__(self) -> str:
        where = self.file or "the source"
        if self.record is None:
            return f"{where}: {self.error}"
        if self.num_records == 1:
            return f"{where}, record {self.record}: {self.error}"
        return f"{where}, records {self.record} to {self.record + self.num_records - 1}: {self.error}"


def likeness(error: str) -> str:
    """The text of an error without the numbers, by which those of neighboring records differ."""
    return re.sub(r"\d+", "", error)


@dataclass(frozen=True)
class Part:
    """A file or folder that was read on its own.

    >>> part = Part("train.tfrecord", num_records=1000)
    >>> part.num_records, part.unread_from
    (1000, None)

    Attributes:
        path: The file or folder.
        num_records: How many of its records were read without error.
        unread_from: The first record that was not tried, since reading could not go on; None if all were tried.
    """

    path: str
    num_records: int
    unread_from: int | None = None


@dataclass(frozen=True)
class Verification:
    """What `verify` found; printed, it is a report.

    >>> found = Verification("data/", "tfrecord", None, parts=(Part("data/1.tfrecord", 1000),), damaged=())
    >>> found.is_good, found.parts[0].num_records
    (True, 1000)

    Attributes:
        path: What was verified.
        format: Its format, or the class of the source.
        checksums: What the checksums of the format cover; None if this is not known.
        parts: The files that were read, or the folder if it is read as a whole.
        damaged: What cannot be read.
        is_stopped: Whether verification stopped before its end, after `max_damaged` damages.
    """

    path: str
    format: str
    checksums: str | None
    parts: tuple[Part, ...]
    damaged: tuple[Damage, ...]
    is_stopped: bool = False

    @property
    def num_records(self) -> int:
        """How many records were read without error."""
        return sum(part.num_records for part in self.parts)

    @property
    def is_good(self) -> bool:
        """Whether every record could be read."""
        return not self.damaged and all(part.unread_from is None for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict that JSON can hold."""
        return {
            "path": self.path,
            "is_good": self.is_good,
            "is_stopped": self.is_stopped,
            "format": self.format,
            "checksums": self.checksums,
            "num_records": self.num_records,
            "damaged": [vars(damage) for damage in self.damaged],
            "parts": [vars(part) for part in self.parts],
        }

    def __str__(self) -> str:
        num_files = f"{len(self.parts):,} {'part' if len(self.parts) == 1 else 'parts'}"
        lines = [
            f"{self.path}: {'good' if self.is_good else 'DAMAGED'}. {self.format}, {num_files}, "
            f"{self.num_records:,} records read without error."
        ]
        lines += [f"  {damage}" for damage in self.damaged[:SHOWN]]
        if len(self.damaged) > SHOWN:
            lines.append(f"  … and {len(self.damaged) - SHOWN} more.")
        unread = [part for part in self.parts if part.unread_from is not None]
        lines += [f"  {part.path}: not read from record {part.unread_from} on." for part in unread[:SHOWN]]
        if self.is_stopped:
            lines.append("  Stopped here: `max_damaged` damages were found. What follows was not read.")
        if self.checksums is not None:
            lines.append(f"Checksums: {self.checksums}.")
        return "\n".join(lines)
