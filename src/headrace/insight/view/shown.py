"""What the page shows of a pipeline."""

import threading
from typing import Any

from headrace.engine.plan import Plan
from headrace.errors import PipelineError
from headrace.errors.addresses import redacted
from headrace.insight import report
from headrace.insight.report import Graph, Lengths, label_of, on_nodes, report_html, shares_of, short
from headrace.insight.show import element_html
from headrace.insight.view.lengths import measure
from headrace.insight.view.outputs import Streams
from headrace.insight.view.runner import Runner
from headrace.insight.view.trace import Tracer, TraceStep
from headrace.ops.buffer import ToStream


class PipelinePage:
    """A pipeline that runs, and its page in pieces.

    Args:
        pipeline: A dataset or a loader.
        title: Its name on the page.
    """

    def __init__(self, pipeline: Any, title: str):
        self._pipeline = pipeline
        self._title = title
        dataset = getattr(pipeline, "dataset", pipeline)
        self._plan = Plan(dataset._op)
        self._graph = Graph(self._plan)
        self._tracer = Tracer(dataset._op)
        self.runner = Runner(pipeline._open_iterator, self._tracer.remember)
        self._lengths: list[Lengths] | None = None
        self._measuring = threading.Lock()

    def page(self) -> str:
        return report.render("view.html", title=self._title, graph=self._graph, state=self.runner.state)

    def live(self) -> dict[str, Any]:
        """The numbers that change, as texts."""
        self.runner.note_viewer()
        numbers = self.runner.numbers()
        now = numbers["recent"] or numbers
        return {
            "state": self.runner.state,
            "failure": redacted(self.runner.failure),
            "rate": short(now["rate"]),
            "count": f"{numbers['elements']:,}",
            "verdict": numbers["verdict"],
            "nodes": on_nodes(self._graph, numbers),
        }

    def figures(self) -> str:
        rates, span_s = self.runner.rates()
        shown = [report.rate_figure(rates, span_s)] if len(rates) > 1 else []
        shown += [report.mixture_figure(each) for each in shares_of(self._stream, self.runner.position)]
        shown += [report.length_figure(each) for each in self.lengths()]
        return report.render("figures.html", figures=shown)

    def stages(self) -> str:
        return report.render("stages.html", numbers=self.runner.numbers())

    def report(self) -> str:
        """A file of what there is to see now."""
        rates, span_s = self.runner.rates()
        return report_html(
            self.runner.numbers(),
            Plan(self._stream),
            self.runner.position,
            title=self._title,
            rates=rates,
            span_s=span_s,
            lengths=self.lengths(),
        )

    def elements(self, number: int) -> str:
        """An output, and the elements that it was made of after every operation."""
        if self._is_read_once:
            raise PipelineError(
                "The source yields each element only once, so elements cannot be shown apart from the run."
            )
        trace = self._tracer.trace(number)
        first, *others = trace.steps
        telling = [first, *(step for step in others if not _changes_nothing(step))][::-1]
        seeds = [
            (step.op.name, seed) for step in trace.steps[::-1] if (seed := getattr(step.op, "seed", None)) is not None
        ]
        return report.render(
            "steps.html",
            trace=trace,
            in_files=any(origin.file is not None for origin in trace.origins),
            steps=[self._step(step) for step in telling],
            seeds=seeds,
        )

    def lengths(self) -> list[Lengths]:
        """The lengths of sequences, measured once."""
        with self._measuring:
            if self._lengths is None:
                try:
                    self._lengths = [] if self._is_read_once else measure(self._plan.op, Streams(self._plan.op))
                except Exception:  # the run shows the error where it belongs
                    self._lengths = []
            return self._lengths

    @property
    def _is_read_once(self) -> bool:
        """Whether the source of a loader is a stream that cannot be read again."""
        return getattr(self._pipeline, "_in_order", None) is not None

    @property
    def _stream(self) -> Any:
        """The operation that the runner's positions belong to."""
        return getattr(self._pipeline, "dataset", self._pipeline)._stream_op

    def _step(self, step: TraceStep) -> dict[str, Any]:
        return {
            "node": self._graph.number_of(step.op),
            "label": label_of(step.op),
            "line": step.op.site,
            "note": step.note,
            "elements": [
                {
                    "title": item.title,
                    "error": item.error,
                    "html": "" if item.error else element_html(item.element, step.op),
                }
                for item in step.items
            ],
        }


def _changes_nothing(step: TraceStep) -> bool:
    """Whether an operation passes its elements on unchanged, so that it needs no column."""
    return not step.note and (step.op.is_transparent or isinstance(step.op, ToStream))
