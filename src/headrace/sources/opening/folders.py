"""What is in a folder, here or behind an address."""

from headrace.sources.files import is_folder, listed, name_of
from headrace.sources.images.folder import SUFFIXES


def kind_of_folder(folder: str) -> str | None:
    """The format of a folder that is one thing as a whole; None of one that only has files."""
    paths = listed(folder)
    names = {name_of(path) for path in paths}
    if {"dataset_info.json", "features.json"} <= names:
        return "TFDS"
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= names:
        return "Hugging Face"
    if names & {".zgroup", ".zarray", "zarr.json"}:
        return "Zarr"
    if _has_images(paths):
        return "images"
    folders = (path for path in paths if not is_hidden(path) and is_folder(path))
    return "images" if any(_has_images(listed(path)) for path in folders) else None


def _has_images(paths: list[str]) -> bool:
    return any(path.lower().endswith(SUFFIXES) for path in paths)


def is_hidden(path: str) -> bool:
    """Whether a file is one that tools keep for themselves."""
    return name_of(path).startswith((".", "_"))
