"""The splits of folders that have some: those of TFDS, and those that Hugging Face's library saved."""

from headrace.errors import DataError
from headrace.sources import files, metadata
from headrace.sources.opening.saved import open_saved


def splits_of(folder: str, format: str) -> dict[str, int]:
    """The splits of a folder by name, with their numbers of records; empty if it has none."""
    if format == "TFDS":
        listed = metadata.read(files.below(folder, "dataset_info.json")).get("splits")
        return {} if listed is None else {split.at("name").text(): _length(split) for split in listed.items()}
    if format == "Hugging Face":
        names = [files.name_of(path) for path in saved_splits(folder) if path != folder]
        return {name: len(open_saved(folder, split=name)) for name in names}
    return {}


def saved_splits(folder: str) -> list[str]:
    """The folders of the splits that Hugging Face saved in a folder; if it is one dataset, the folder."""
    try:
        listed = metadata.read(files.below(folder, "dataset_dict.json")).at("splits").items()
        return [split.name_below(folder) for split in listed] or [folder]
    except (FileNotFoundError, DataError):  # opening the folder says what is wrong
        return [folder]


def _length(split: metadata.Node) -> int:
    lengths = split.get("shardLengths")
    return 0 if lengths is None else sum(length.number() for length in lengths.items())
