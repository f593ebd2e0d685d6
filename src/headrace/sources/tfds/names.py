"""Where TensorFlow Datasets keeps a dataset: `DATA_DIR/name/version`, or `DATA_DIR/name/config/version`."""

import os
import re

from headrace._utils.addresses import redacted
from headrace._utils.spelling import closest
from headrace.errors import PipelineError
from headrace.sources import files, metadata

DATA_DIR = "~/tensorflow_datasets"
_NAME = re.compile(r"([A-Za-z_]\w*)(?:/([\w.+-]*\w))?(?::((?:\d+|\*)(?:\.(?:\d+|\*)){2}))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def folder_of(given: str | os.PathLike, data_dir: str | os.PathLike | None) -> str:
    """The folder with the files of a dataset, which is given by that folder or by its name in `data_dir`."""
    folder = files.absolute(os.path.expanduser(given))
    named = isinstance(given, str) and _NAME.fullmatch(given) is not None
    if data_dir is not None:
        return folder_by_name(os.fsdecode(given), data_dir)
    if not named or files.is_folder(folder):
        return folder
    try:
        return folder_by_name(os.fsdecode(given), None)
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{given!r} is not a folder, and not the name of a dataset of TFDS. {e}") from None


def folder_by_name(name: str, data_dir: str | os.PathLike | None) -> str:
    """The folder of a dataset with a name such as `mnist`, `glue/cola`, `mnist:3.0.1` or `mnist:3.*.*`.

    Without a version, it is the latest; without a config, the one that was prepared as the default.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise PipelineError(
            f"{name!r} is not the name of a dataset of TFDS. Write it as in `mnist`, `mnist:3.0.1`, or, with a config, "
            "`glue/cola`."
        )
    dataset, config, version = found.groups()
    root = files.absolute(os.path.expanduser(data_dir or os.environ.get("TFDS_DATA_DIR") or DATA_DIR))
    hint = (
        "`data_dir`, or TFDS_DATA_DIR, says where. Headrace downloads nothing: `tfds build` or `tfds.load` prepares a "
        "dataset"
    )
    folder = _inside(root, dataset, f"There is no dataset {dataset!r}", hint)
    config = config or _default_config(folder)
    if config:
        folder = _inside(folder, config, f"{dataset} has no config {config!r}", f"Write it as in `{dataset}/config`")
    versions = _versions(folder)
    if not versions:
        configs = _folders(folder)
        hint = f" Is it one of its configs, as in '{dataset}/{configs[0]}'? There are {', '.join(configs)}."
        raise FileNotFoundError(f"{redacted(folder)} has no versions of a dataset.{hint if configs else ''}")
    matching = [one for one in versions if version is None or _matches(one, version)]
    if not matching:
        raise FileNotFoundError(f"{redacted(folder)} has no version {version}; there are {', '.join(versions)}.")
    return files.below(folder, matching[-1])


def _inside(folder: str, name: str, problem: str, hint: str) -> str:
    path = files.below(folder, name)
    if not files.is_folder(path):
        there = _folders(folder) if files.is_folder(folder) else []
        meant = closest(name, there)
        guess = f" Did you mean {meant!r}?" if meant else ""
        shown = f"there are {', '.join(there[:20])}" if there else "there are none"
        raise FileNotFoundError(f"{problem} in {redacted(folder)}; {shown}.{guess} {hint}.")
    return path


def _folders(folder: str) -> list[str]:
    names = (files.name_of(path) for path in files.listed(folder) if files.is_folder(path))
    return [name for name in names if not name.startswith(".")]


def _versions(folder: str) -> list[str]:
    """The versions in a folder, the latest last."""
    return sorted(filter(_VERSION.fullmatch, _folders(folder)), key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _matches(version: str, wanted: str) -> bool:
    pairs = zip(version.split("."), wanted.split("."), strict=True)
    return all(two == "*" or int(one) == int(two) for one, two in pairs)


def _default_config(folder: str) -> str | None:
    """The config that TFDS noted as the default; the only one, if there is no note; None without configs."""
    try:
        told = metadata.read(files.below(folder, ".config/metadata.json")).get("default_config_name")
    except FileNotFoundError:
        told = None
    if told is not None and told.value:
        told.name_below(folder)  # raises unless it is
        return told.text()
    names = _folders(folder)
    return names[0] if len(names) == 1 and not _VERSION.fullmatch(names[0]) else None
