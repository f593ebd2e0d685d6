"""Datasets that Hugging Face's library saved to a folder."""

from typing import Any

from headrace.errors import PipelineError, optional


def open_saved(folder: str, *, split: str | None = None) -> Any:
    """A source of what `save_to_disk` wrote; of several splits `train`, unless another is named."""
    from headrace.sources.hugging_face import HuggingFaceDataSource

    datasets = optional("datasets", extra="hf")
    saved = datasets.load_from_disk(str(folder), storage_options=getattr(folder, "options", None))
    if isinstance(saved, datasets.DatasetDict):
        name = split or "train"
        if name not in saved:
            raise PipelineError(f"{folder} has no split {name!r}; there are {', '.join(saved)}.")
        return HuggingFaceDataSource(saved[name])
    if split not in (None, str(saved.split)):
        raise PipelineError(f"{folder} is one dataset (its split is {str(saved.split)!r}); got the split {split!r}.")
    return HuggingFaceDataSource(saved)
