"""Fills caches on disk before they are read: whoever comes first computes all elements, and the others wait."""

from typing import TYPE_CHECKING

from headrace.ops.buffer import MpPrefetch, ToStream
from headrace.ops.disk_cache import DiskCache
from headrace.ops.op import Op, parents_first

if TYPE_CHECKING:
    from headrace.storage.elements import Filling


def fill_caches(op: Op) -> None:
    """Fills the caches that a pipeline reads, if nobody has done so.

    What is before an `mp_prefetch` is computed by workers like those that it will have.
    """
    ahead: list[tuple[Op, MpPrefetch | None]] = [(op, None)]
    seen: set[Op] = set()
    while ahead:
        op, workers = ahead.pop()
        if op in seen or not op.has_disk_cache:
            continue
        seen.add(op)
        if isinstance(op, DiskCache):
            _fill(op, workers)  # with the caches that are before it
        else:
            after = op if isinstance(op, MpPrefetch) and op.options.has_workers else workers
            ahead += [(parent, after) for parent in op.parents]


def _fill(op: DiskCache, workers: MpPrefetch | None) -> None:
    if op.open_elements() is not None:
        return
    with op.folder.locked():
        if not op.folder.is_complete():
            try:
                with op.folder.filling() as filling:
                    _write(op, workers, filling)
            except Exception as e:
                e.add_note(
                    f"while filling {op.label()} (pipeline at {op.site}); an `on_error` after it does not apply here"
                )
                raise
    op.open_elements()


def _write(op: DiskCache, workers: MpPrefetch | None, filling: "Filling") -> None:
    """Computes all elements; an index without one has `None`, so that indices keep their meaning."""
    from headrace.engine.iteration import Iteration

    stream = op.parent if op.parent.is_stream else ToStream(op.parent, site=op.site)
    has_own = any(isinstance(each, MpPrefetch) for each in parents_first(stream, lambda _: True))
    if workers is not None and not has_own:
        stream = MpPrefetch(stream, workers.options, workers.worker_init_fn, site=op.site)
    iteration = Iteration(stream)
    try:
        for rows in iteration:
            for row in rows:
                if not op.parent.is_stream:
                    _write_none(filling, iteration.position() - 1)
                filling.write(row)
    finally:
        iteration.close()
    if not op.parent.is_stream:
        _write_none(filling, op.parent.length())


def _write_none(filling: "Filling", stop: int) -> None:
    """Writes `None` up to an index."""
    while filling.num_elements < stop:
        filling.write(None)
