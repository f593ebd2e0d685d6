"""Datasets that Hugging Face's library saved to a folder."""

import os
from typing import Any

from headrace._addresses import secrets_in
from headrace.errors import DataError, HeadraceError, PipelineError, RemoteError, optional, without_secrets
from headrace.sources import files, metadata


def open_saved(folder: str, *, split: str | None = None) -> Any:
    """A source of what `save_to_disk` wrote; of several splits `train`, unless another is named."""
    from headrace.sources.hugging_face import HuggingFaceDataSource

    datasets = optional("datasets", extra="hf")
    if not files.is_remote(folder):
        _check(str(folder))
    options = getattr(folder, "options", None)
    try:
        saved = datasets.load_from_disk(str(folder), storage_options=options)
    except (HeadraceError, MemoryError, ImportError):
        raise
    except Exception as e:  # whatever comes of files that are not what they should be
        told = without_secrets(e, secrets_in(options))
        if told is not e:
            raise RemoteError(f"{folder} could not be read: {told}.") from told
        if isinstance(e, FileNotFoundError | PermissionError):
            raise
        raise _unreadable(folder, e) from e
    if isinstance(saved, datasets.DatasetDict):
        name = split or "train"
        if name not in saved:
            raise PipelineError(f"{folder} has no split {name!r}; there are {', '.join(saved)}.")
        return HuggingFaceDataSource(saved[name])
    if split not in (None, str(saved.split)):
        raise PipelineError(f"{folder} is one dataset (its split is {str(saved.split)!r}); got the split {split!r}.")
    return HuggingFaceDataSource(saved)


def _unreadable(folder: str, error: Exception) -> DataError:
    what = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DataError(
        f"{folder} cannot be read as a dataset that `save_to_disk` wrote: {what}. Was it written or copied to its end?"
    )


def _check(folder: str) -> None:
    """Looks at what says which files there are: it must lead to files in the folder, and have what is read of it."""
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
