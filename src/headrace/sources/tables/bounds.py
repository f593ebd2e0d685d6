"""Whether Arrow data from a file stays within its buffers.

Arrow trusts the offsets, indices and sizes that stand in a file: one that is damaged leads it to memory that is not
there, which ends the process. They are looked at before any value is.
"""

from typing import Any

from headrace.sources.tables.values import arrow, with_leaves


def check_bounds(table: Any) -> None:
    """Raises `ArrowInvalid` where a value of a table or record batch would be read from outside of it."""
    for column in table.columns:
        for chunk in getattr(column, "chunks", None) or [column]:
            check_array(chunk)


def check_array(array: Any) -> None:
    """The same of an array: this reads its offsets, indices and nulls, and no values.

    Text is taken for bytes, as to see whether it is UTF-8 would be to read it: one that is not is found out when it is
    asked for.
    """
    array = getattr(array, "storage", array)
    array.validate()
    plain = with_leaves(array.type, _as_bytes)
    if plain != array.type:
        try:
            array = array.view(plain)
        except arrow().ArrowException:  # it has types that cannot be seen as others
            pass
    array.validate(full=True)


def _as_bytes(kind: Any) -> Any:
    if arrow().types.is_string(kind):
        return arrow().binary()
    return arrow().large_binary() if arrow().types.is_large_string(kind) else kind
