"""Elements that are kept on disk: random access to them, even if they come from a stream."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import PipelineError
from headrace.ops.buffer import Cache, ToStream
from headrace.ops.op import Op
from headrace.ops.order import gather_options

if TYPE_CHECKING:
    from headrace.storage.elements import Folder, KeptElements


class OpenedCache:
    """The elements of a folder, once it is complete."""

    elements: "KeptElements | None" = None


@dataclass(frozen=True, eq=False, repr=False)
class DiskCache(Cache):
    """The elements of the first epoch, kept in a folder below `path`; those of a stream by their number."""

    path: str = field(kw_only=True)
    key: str = field(kw_only=True, repr=False)  # names the folder: see `state/content_key.py`

    def __post_init__(self):
        super().__post_init__()
        if self.parent.lanes > 1:
            raise PipelineError("`cache(path)` cannot hold several lanes: put it before `to_iter_dataset(num_lanes=)`.")

    @property
    def has_disk_cache(self) -> bool:
        return True

    @property
    def folder(self) -> "Folder":
        from headrace.storage.elements import Folder  # hardly ever needed

        return Folder(self.path, self.key)

    def open_elements(self) -> "KeptElements | None":
        """Its elements; `None` until the folder is complete."""
        kept = self.kept.of(OpenedCache)
        if kept.elements is None:
            kept.elements = self.folder.opened()
        return kept.elements

    @property
    def source(self) -> "KeptElements | None":
        """Its elements as a source."""
        return self.open_elements()

    @property
    def gathers_columns(self) -> bool:
        return hasattr(self.source, "__getcolumns__")

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def length_is_known(self) -> bool:
        return not self.parent.is_stream or self.open_elements() is not None

    def length(self) -> int:
        if not self.parent.is_stream:
            return self.parent.length()
        elements = self.open_elements()
        if elements is None:
            raise PipelineError(
                f"The length of {self.label()} (pipeline at {self.site}) is known only after an iterator has "
                "filled the cache. Iterate over it once."
            )
        return len(elements)

    @property
    def is_sparse(self) -> bool:
        """Whether a filter or `on_error` has dropped elements; those of a stream are all there."""
        if self.parent.is_stream:
            return False
        return self.parent.is_sparse or not gather_options(self.parent).on_error.raises

    def how(self) -> str:
        return "kept on disk" if self.folder.is_complete() else "kept on disk after an iterator has filled the cache"

    def label(self) -> str:
        return f"cache({self.path!r})"


class FromDisk(ToStream):
    """A stream of elements that are kept on disk; how many is known when they are there."""

    @property
    def cache(self) -> DiskCache:
        assert isinstance(self.parent, DiskCache)
        return self.parent

    @property
    def endless(self) -> bool:
        return False


def stream_from_disk(stream: Op, path: str, key: str) -> FromDisk:
    """A stream, kept on disk."""
    return FromDisk(DiskCache(stream, path=path, key=key), allow_nones=True)
