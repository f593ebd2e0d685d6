"""What is in a folder, here or behind an address."""

import os

from headrace.sources import files

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


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
    return any(path.lower().endswith(IMAGES) for path in paths)


def is_folder(path: str) -> bool:
    """Whether there is a folder, and not a file."""
    if not files.is_remote(path):
        return os.path.isdir(path)
    from headrace.sources import remote

    return remote.is_folder(path)


def listed(folder: str) -> list[str]:
    """What is in a folder, by path, in order."""
    if not files.is_remote(folder):
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    from headrace.sources import remote

    return remote.listed(folder)


def name_of(path: str) -> str:
    """The last part of a path or address."""
    if not files.is_remote(path):
        return os.path.basename(path)
    from headrace.sources import remote

    return remote.file_name(path)


def is_hidden(path: str) -> bool:
    """Whether a file is one that tools keep for themselves."""
    return name_of(path).startswith((".", "_"))
