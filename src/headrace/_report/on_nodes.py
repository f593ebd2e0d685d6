"""The numbers of stages and operations, put on the nodes of a graph."""

from collections import Counter
from typing import Any

from headrace._report.graph import Graph
from headrace._report.words import seconds, short


def on_nodes(graph: Graph, numbers: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """By node: what to write on it, who computes it, and its share of the time at work, from 0 to 1.

    Statistics know operations by their labels: those that look alike have their numbers together.
    """
    now = numbers["recent"] or numbers
    operations, stages = _by_label(now["operations"], "operation"), _by_label(now["stages"], "stage")
    so_far = _by_label(numbers["stages"], "stage") | _by_label(numbers["operations"], "operation")
    times = {key: each["seconds"] for key, each in operations.items()}
    times = times or {key: each["busy_s"] for key, each in stages.items()}
    whole_s, alike = sum(times.values()), Counter(node.key for node in graph.nodes)
    found = {}
    for node in graph.nodes:
        key = node.key
        stage, known = stages.get(key), operations.get(key) or stages.get(key)
        if known is None:
            continue
        words = _words(so_far[key]["elements"], known["elements"], times.get(key, 0.0), now["wall_s"])
        words += [f"buffer {stage['buffered']:.0%} full"] if stage and stage["buffered"] is not None else []
        words += [f"sum of {alike[key]} operations"] if alike[key] > 1 else []
        found[node.number] = {
            "text": " · ".join(words),
            "where": _where(stage) if stage else known["where"],
            "share": times.get(key, 0.0) / whole_s if whole_s else 0.0,
        }
    return found


def _words(count: int, recently: int, taken_s: float, wall_s: float) -> list[str]:
    words = [f"{short(count)} elements"]
    words += [f"{short(recently / wall_s)}/s"] if wall_s and recently else []
    return words + ([f"{seconds(taken_s / recently)} each"] if taken_s and recently else [])


def _where(stage: dict[str, Any]) -> str:
    return stage["where"] + (f" ({stage['workers']})" if stage["where"] in ("threads", "workers") else "")


def _by_label(rows: list[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """Rows by their labels; numbers of rows with the same label are added."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(row[name], row)
        if known is not row:
            added = {key: known[key] + row[key] for key in ("elements", "busy_s", "seconds") if key in row}
            found[row[name]] = known | added
    return found
