"""Everything that only looks: pipelines and elements as people see them, reports, the page in the browser, diagnosis.

The functions here are what datasets and statistics call. Their modules are imported on first use, since few programs
need them.
"""

import sys
from typing import TYPE_CHECKING, Any

from headrace.dataset.base import Viewable
from headrace.stats import Stats

if TYPE_CHECKING:
    from headrace.engine.plan import Plan
    from headrace.insight.view import View


def open_view(pipeline: Any, *, title: str, port: int, open_browser: bool) -> "View":
    """Serves a page that shows a dataset or a loader."""
    from headrace.insight.view import view

    return view(pipeline, title=title, port=port, open_browser=open_browser)


def show_elements(pipeline: Any, n: int) -> None:
    """Prints the first elements of a dataset or a loader, or displays them in a notebook."""
    from headrace.insight.show import show

    show(pipeline, n)


def dataset_html(pipeline: Any) -> str:
    """A dataset or a loader with its first element, for notebooks."""
    from headrace.insight.show import dataset_html

    return dataset_html(pipeline)


def report_html(stats: Stats, plan: "Plan | None", position: Any, *, title: str) -> str:
    """A report of an iterator's statistics, as one page."""
    from headrace.insight.report import report_html

    return report_html(stats, plan, position, title=title)


Viewable.insight = Stats.insight = sys.modules[__name__]
