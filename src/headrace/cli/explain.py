"""`headrace explain FILE:NAME`: how a pipeline is computed, and by whom."""

import argparse
import json
from typing import Any

from headrace.cli import arguments, output, pipelines
from headrace.engine.plan import CONSUMER, Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows where and how each operation of a pipeline is computed; with --json, also why a stage begins there."
    )
    arguments.add_pipeline(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=_explain)


def _explain(given: argparse.Namespace) -> int:
    plan = pipelines.load(given.pipeline).explain()
    if given.json:
        print(json.dumps({"pipeline": given.pipeline, "steps": _as_dicts(plan)}, indent=2))
        return 0
    rows = [(step.label, step.where or CONSUMER, step.how, step.op.site) for step in plan.steps]
    output.show(output.Table(("operation", "where", "how", "line"), rows))
    return 0


def _as_dicts(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "operation": step.label.strip(),
            "where": step.where or CONSUMER,
            "how": step.how,
            "stage": step.stage,
            "reason": step.reason,
            "line": step.op.site,
        }
        for step in plan.steps
    ]
