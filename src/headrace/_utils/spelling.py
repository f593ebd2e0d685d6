"""Names that a misspelled one may mean."""

from collections.abc import Iterable
from itertools import islice

MOST_KEYS = 20  # in an error


def closest(name: str, names: Iterable[str]) -> str | None:
    """The public name that is most like a misspelled one, if any is.

    >>> closest("suffle", ["map", "shuffle"])
    'shuffle'
    """
    import difflib  # hardly ever needed

    public = [] if name.startswith("_") else [each for each in names if not each.startswith("_")]
    return next(iter(difflib.get_close_matches(name, public, 1)), None)


def no_attribute(what: str, name: str, meant: str | None, hint: str = "") -> AttributeError:
    """The error for an attribute that something does not have, with the name that may be meant."""
    hint = f" Did you mean `{meant}`?{hint}" if meant else hint
    # Python guesses as well, among the attributes of `obj`, but only some tracebacks show that.
    return AttributeError(f"{what} has no attribute {name!r}{'.' if hint else ''}{hint}", name=name, obj=None)


def keys_instead(error: KeyError) -> str | None:
    """The keys of the dict that lacks a key, if a variable of the function that raised the error has it.

    >>> element = {"image": 1, "label": 2}
    >>> try:
    ...     (lambda element: element["img"])(element)
    ... except KeyError as e:
    ...     keys_instead(e)
    "'image', 'label'"
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or len(error.args) != 1:
        return None
    for value in trace.tb_frame.f_locals.values():
        if isinstance(value, dict) and value and error.args[0] not in value:
            return ", ".join([*map(repr, islice(value, MOST_KEYS)), *["..."] * (len(value) > MOST_KEYS)])
    return None
