"""Templates: every text in them is escaped, wherever it comes from."""

import functools
import os
from typing import Any

from headrace.errors import optional

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")


def render(template: str, **values: Any) -> str:
    """A template with its values."""
    return _environment().get_template(template).render(values)


def asset(name: str) -> str:
    """A file that pages need."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return f.read()


@functools.cache
def _environment() -> Any:
    jinja2 = optional("jinja2", extra="view")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["markup"] = optional("markupsafe", extra="view").Markup  # for what our own code has made
    return environment
