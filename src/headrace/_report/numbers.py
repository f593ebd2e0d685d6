"""The numbers of `iterator.stats()` as plain values with all keys."""

from typing import Any

_STAGE = {
    "where": "consumer",
    "elements": 0,
    "bytes": 0,
    "left_out": 0,
    "busy_s": 0.0,
    "waited_s": 0.0,
    "buffered": None,
}


def plain_numbers(stats: Any) -> dict[str, Any]:
    """Statistics as a dict: of an object with `as_dict()`, or of such a dict.

    >>> plain_numbers({"elements": 10, "seconds": 2.0, "stages": []})["rate"]
    5.0
    """
    found = stats.as_dict() if hasattr(stats, "as_dict") else dict(stats)
    wall_s = found.get("wall_s", found.get("seconds", 0.0))
    elements = found.get("elements", 0)
    recent = found.get("recent")
    return {
        "elements": elements,
        "bytes": found.get("bytes", 0),
        "wall_s": wall_s,
        "waited_s": found.get("waited_s", 0.0),
        "consumer_s": found.get("consumer_s", 0.0),
        "rate": found.get("rate", elements / wall_s if wall_s else 0.0),
        "stages": [_STAGE | {"workers": stage.get("computed_by", 1)} | stage for stage in found.get("stages", ())],
        "operations": list(found.get("operations", ())),
        "bad_records": found.get("bad_records", {}),
        "verdict": found.get("verdict", ""),
        "recent": None if not recent else plain_numbers(recent | {"recent": None}),
    }
