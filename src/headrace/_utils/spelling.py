"""Names that a misspelled one may mean."""

from collections.abc import Iterable


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
