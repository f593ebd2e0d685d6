"""Tests that take long: `make test` runs some of their parameters, or none; `make test-all` runs all.

They repeat a law for many operations, faults or formats, and are marked:

- `@pytest.mark.sampled(every=3)`: one in three of its parameters runs, beginning with the first.
- `@pytest.mark.slow`: none of it runs. Tutorials are slow, and run when the site is built, too.

Whoever names a test runs all of it, and `--lf` runs all that failed.
"""

import re
from collections import Counter

import pytest


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all parameters of slow tests, and the slowest tests")


@pytest.hookimpl(trylast=True)  # when tests have the names that pytest-xdist gives them
def pytest_collection_modifyitems(config, items):
    """Leaves out what is not sampled, except with `--all` and for whoever names a test."""
    failed = _failed_last(config, items)
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    counts, kept, left_out = Counter(), [], []
    for item in items:
        name = without_group(item.nodeid).partition("[")[0]
        is_kept = item.nodeid in failed or _is_sampled(item, counts[name])
        counts[name] += 1
        (kept if is_kept else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _failed_last(config: pytest.Config, items: list[pytest.Item]) -> dict[str, bool]:
    """With `--lf`, the tests that failed; pytest then leaves out the others, and has to know groups for that."""
    if not config.getoption("lf", False):
        return {}
    failed = config.pluginmanager.get_plugin("lfplugin").lastfailed
    failed |= {item.nodeid: True for item in items if without_group(item.nodeid) in failed}
    return failed


def _is_sampled(item: pytest.Item, number: int) -> bool:
    if item.get_closest_marker("slow"):
        return False
    sampled = item.get_closest_marker("sampled")
    return sampled is None or number % sampled.kwargs["every"] == 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    """A test that failed in a group is found by `--lf` without groups, too."""
    if hasattr(report, "node"):  # it has come from a process of pytest-xdist
        report.nodeid = without_group(report.nodeid)


def without_group(nodeid: str) -> str:
    """`a.py::test_b[c]` of `a.py::test_b[c]@group`, as pytest-xdist calls the tests of a group."""
    return re.sub(r"@[^@\]]*$", "", nodeid)
