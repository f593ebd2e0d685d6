"""Datasets that Hugging Face's library saved to a folder."""

import os
from typing import Any

from headrace.errors import optional
from headrace.sources import files, metadata
from headrace.sources.array_files.paths import damage_named


def open_saved(folder: str, *, split: Any = None, decode: bool = True) -> Any:
    """A source of what `save_to_disk` wrote; of several splits, `train` by default."""
    from headrace.sources.hugging_face import HuggingFaceDataSource
    from headrace.sources.hugging_face.splits import chosen

    datasets = optional("datasets", extra="hf")
    if not files.is_remote(folder):
        _check(str(folder))
    with damage_named(folder, "a dataset that `save_to_disk` wrote"):
        saved = datasets.load_from_disk(str(folder), storage_options=getattr(folder, "options", None))
    if isinstance(saved, datasets.DatasetDict):
        saved = chosen(saved, split or "train", str(folder))
    elif split is not None:
        saved = chosen({str(saved.split or ""): saved}, split, str(folder))
    return HuggingFaceDataSource(saved, decode=decode)


def _check(folder: str) -> None:
    """Checks the metadata: it must name only files in the folder, and have the expected types."""
    splits = os.path.join(folder, "dataset_dict.json")
    if os.path.exists(splits):
        for split in metadata.read(splits).at("splits").items():
            _check(split.name_below(folder))
        return
    state = metadata.read(os.path.join(folder, "state.json"))
    for file in state.at("_data_files").items():
        file.at("filename").name_below(folder)
    for name in ("_fingerprint", "_split", "_format_type"):
        if (found := state.get(name)) is not None:
            found.text()
    if (columns := state.get("_format_columns")) is not None:
        _ = [column.text() for column in columns.items()]
    if (arguments := state.get("_format_kwargs")) is not None:
        arguments.members()
    metadata.read(os.path.join(folder, "dataset_info.json"))
