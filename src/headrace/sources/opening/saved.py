"""Datasets that Hugging Face's library saved to a folder."""

from typing import Any

from headrace._addresses import secrets_in
from headrace.errors import PipelineError, RemoteError, optional, without_secrets


def open_saved(folder: str, *, split: str | None = None) -> Any:
    """A source of what `save_to_disk` wrote; of several splits `train`, unless another is named."""
    from headrace.sources.hugging_face import HuggingFaceDataSource

    datasets = optional("datasets", extra="hf")
    options = getattr(folder, "options", None)
    try:
        saved = datasets.load_from_disk(str(folder), storage_options=options)
    except Exception as e:
        told = without_secrets(e, secrets_in(options))
        if told is e:
            raise
        raise RemoteError(f"{folder} could not be read: {told}.") from told
    if isinstance(saved, datasets.DatasetDict):
        name = split or "train"
        if name not in saved:
            raise PipelineError(f"{folder} has no split {name!r}; there are {', '.join(saved)}.")
        return HuggingFaceDataSource(saved[name])
    if split not in (None, str(saved.split)):
        raise PipelineError(f"{folder} is one dataset (its split is {str(saved.split)!r}); got the split {split!r}.")
    return HuggingFaceDataSource(saved)
