"""Which source a path means."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace._utils.splits import parse
from headrace.dataset import IterDataset, MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import files
from headrace.sources.bagz import shards_of
from headrace.sources.files import is_folder, like, listed
from headrace.sources.opening import formats, splits
from headrace.sources.opening.formats import FOLDERS, FORMATS, Format, is_hidden
from headrace.sources.tf_example import parse_example

HAVE_SPLITS = ("TFDS", "Hugging Face")  # the formats with splits of their own
BY_NAME = "tfds:"
_RANGE = re.compile(r"\[\d*:\d*\]$")
_BAGZ_SHARDS = re.compile(r"@(\d+|\*)\.(bagz|bag)$")


def open(  # the name is that of `headrace.sources.open`
    path: Any,
    *,
    split: Any = None,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    parse_examples: bool = False,
    **options: Any,
) -> Any:
    """The source for a file, a pattern, several files, or a folder; a stream (`IterDataset`) for compressed files.

    A folder may be one that TFDS prepared or Hugging Face saved, a Zarr group, images, or data files of one format.

    >>> np.save(folder / "x.npy", np.arange(4))
    >>> list(open(folder / "x.npy", split="[:50%]"))
    [np.int64(0), np.int64(1)]

    Differs from Grain: only Headrace has it.

    Args:
        path: A path, an address, a pattern (`*`, `?`, `[…]`), or a sequence of these; or `tfds:mnist`, for a dataset
            that TFDS prepared in `data_dir`, as of `TfdsDataSource`.
        split: A split, a part of it, or a sum of these: `train`, `train[:80%]`, `train[10:20]+test`, or `[:80%]` of
            data without splits. Of other data than that of TFDS and Hugging Face, the names are those of files
            (`train.csv`, `train-00000-of-00002.csv`) or folders. For a list of these, a list of sources.
        format: The name of the format, if neither suffix nor content reveal it.
        storage_options: Options of fsspec's file system, for addresses; see `Address`.
        parse_examples: Whether records are `tf.train.Example`, to be parsed by `parse_example`. A dataset of what they
            hold is returned then.
        options: Arguments of the source's class.
    """
    if isinstance(split, list | tuple):
        given = {"format": format, "storage_options": storage_options, "parse_examples": parse_examples} | options
        return [open(path, split=one, **given) for one in split]
    if parse_examples:
        return examples_in(open(path, split=split, format=format, storage_options=storage_options, **options))
    data_dir = options.pop("data_dir", None)
    if storage_options and data_dir is not None:
        data_dir = _with_options(data_dir, storage_options)
    elif storage_options:
        path = _with_options(path, storage_options)
    path = _found_by_name(path, data_dir)
    return _open(path, format, options) if split is None else _open_split(path, split, format, options)


def _open(path: Any, format: str | None, options: dict[str, Any]) -> Any:
    if _is_one_folder(path):
        return _open_folder(os.fsdecode(path), format, options)
    given = [path] if isinstance(path, str | os.PathLike) else path
    return _open_files(paths_of(path), format, options, given=list(given) if _is_ranged(path) else None)


def _open_split(path: Any, split: Any, format: str | None, options: dict[str, Any]) -> Any:
    form = _form_of_folder(os.fsdecode(path), format) if _is_one_folder(path) else None
    if form is not None and form.name in HAVE_SPLITS:
        return _open(path, format, options | {"split": split})
    what = splits.shown(path)
    if not any(part.name for part in parse(split)):
        return splits.open_slices(_open(path, format, options), split, what)
    has_names = not _is_ranged(path) and (form is None or form.name == "images")
    named = splits.by_name(paths_of(path)) if has_names else {}
    return splits.open_named(named, split, what, lambda some: _open(some, format, options))


def _found_by_name(path: Any, data_dir: str | os.PathLike | None = None) -> Any:
    """A path as it is; for `tfds:NAME`, the folder of that dataset."""
    if isinstance(path, str) and path.startswith(BY_NAME) and not files.is_remote(path):
        return formats.imported("tfds.folder_by_name")(path.removeprefix(BY_NAME), data_dir)
    if data_dir is not None:
        raise PipelineError(f"`data_dir` is for datasets of TFDS by name, as in '{BY_NAME}mnist'; got {path!r}.")
    return path


def _is_one_folder(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and is_folder(os.fsdecode(path))


def examples_in(records: Any) -> IterDataset[Any] | MapDataset[Any]:
    """The features of records that are `tf.train.Example`."""
    dataset = records if isinstance(records, IterDataset) else MapDataset.source(records)
    return dataset.map(parse_example)


def parts_of(
    path: Any, *, format: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Format, list[str], str]:
    """The format of a data set, what of it can be opened alone (files, or the folder), and what its checksums cover."""
    if storage_options:
        path = _with_options(path, storage_options)
    path = _found_by_name(path)
    if _is_one_folder(path):
        folder = os.fsdecode(path)
        form = _form_of_folder(folder, format)
        if form is not None:
            return form, [folder], form.checksums
        paths = parts = _files_in(folder, format)
    else:
        paths, given = paths_of(path), [path] if isinstance(path, str | os.PathLike) else path
        parts = [os.fsdecode(one) for one in given] if any(map(_has_range, given)) else paths
    form = _form_of_files(paths) if format is None else formats.named(format)
    return form, parts, formats.checksums_of(form, _begin(paths[0]))


def _form_of_files(paths: list[str]) -> Format:
    """The format of the first file that has a known one: those before it may be damaged."""
    for path in paths:
        with contextlib.suppress(DataError):
            return formats.format_of(path, _begin(path))
    return formats.format_of(paths[0], _begin(paths[0]))  # raises


def paths_of(path: Any) -> list[str]:
    """The files that `open` reads for a path, a pattern or a sequence of these; for a folder, its content."""
    path = _found_by_name(path)
    if _is_one_folder(path):
        return [one for one in listed(os.fsdecode(path)) if not is_hidden(one)]
    given = [path] if isinstance(path, str | os.PathLike) else path
    plain = [file for one in given for file in _meant(one)] if isinstance(given, Sequence) else given
    return files.expand(plain, what="Data files", folders=True)  # which `open` has an error for


def _open_files(paths: list[str], name: str | None, options: dict[str, Any], *, given: list[Any] | None = None) -> Any:
    """Opens files of one format; `given` is passed to the source instead of their paths."""
    begin = _begin(paths[0])
    found = formats.format_of(paths[0], begin) if name is None else formats.named(name)
    asked = given or paths
    if found.begins is not None and formats.is_compressed(begin) and found.stream != found.source:
        if found.stream is None:
            raise DataError(f"{paths[0]} is compressed, but {found.name} files are not read so. Decompress it first.")
        streams = [formats.imported(found.stream)(path, **options) for path in asked]
        return streams[0] if len(streams) == 1 else IterDataset.interleave(streams, cycle_length=1)
    if not found.many and len(asked) > 1:
        raise PipelineError(f"{found.name} files are opened one at a time; got {len(asked)}: {', '.join(asked[:5])}.")
    return formats.imported(found.source)(asked if len(asked) > 1 else asked[0], **options)


def _begin(path: str) -> bytes:
    if not files.is_remote(path) and os.path.isdir(path):
        raise PipelineError(f"{path} is a folder; folders are opened one at a time.")
    with contextlib.closing(files.open_file(path)) as file:
        return file.read(0, formats.BEGIN_BYTES)


def _open_folder(folder: str, name: str | None, options: dict[str, Any]) -> Any:
    form = _form_of_folder(folder, name)
    if form is not None:
        return formats.imported(form.source)(folder, **options)
    return _open_files(_files_in(folder, name), name, options)


def _form_of_folder(folder: str, name: str | None) -> Format | None:
    """The format of a folder that is read as a whole."""
    kind = formats.kind_of_folder(folder) if name is None else name
    form = None if kind is None else formats.named(kind)
    return form if form in FOLDERS else None


def _files_in(folder: str, name: str | None) -> list[str]:
    """The files to read in a folder: those of the only format, or of the named one."""
    paths = [path for path in listed(folder) if not is_hidden(path)]
    found: dict[str, list[str]] = {}
    for path in paths:
        for form in FORMATS:
            if formats.plain_name(path).endswith(form.suffixes):
                found.setdefault(form.name, []).append(path)
    if name is not None:
        return found.get(formats.named(name).name) or paths
    if len(found) != 1:
        seen = "; ".join(f"{len(few)} of {kind}, as {few[0]}" for kind, few in found.items())
        raise DataError(
            f"{folder} is a folder that has {seen or 'no data files'}. {formats.known()} Name the files with a "
            "pattern, or the format with `format`."
        )
    return next(iter(found.values()))


def _with_options(path: Any, options: Mapping[str, Any]) -> Any:
    from headrace.sources.remote import Address

    if isinstance(path, str | os.PathLike):
        return Address(os.fsdecode(path), **options)
    return [Address(os.fsdecode(one), **options) for one in path]


def _is_ranged(path: Any) -> bool:
    given = [path] if isinstance(path, str | os.PathLike) else path
    return isinstance(given, Sequence) and any(map(_has_range, given))


def _has_range(path: Any) -> bool:
    """Whether a path ends in `[a:b]`, `[a:]` or `[:b]`, which selects some of its records."""
    if not isinstance(path, str | os.PathLike):
        return False
    return _RANGE.search(os.fsdecode(path)) is not None and not os.path.exists(path)


def _meant(path: Any) -> list[Any]:
    """The files or patterns that a path means: without a range, and with each shard of `name@3.bagz`."""
    if not isinstance(path, str | os.PathLike):
        return [path]
    plain = _RANGE.sub("", os.fsdecode(path)) if _has_range(path) else os.fsdecode(path)
    found = shards_of(plain) if _BAGZ_SHARDS.search(plain) and not os.path.exists(plain) else [plain]
    return [like(os.fsdecode(path), one) for one in found]
