"""Runs the code of a document: `python -m tests.support.documents docs/how_to/resume.md`.

The blocks of a document share their names and run in order, in a folder of its own. What they say about their output is
compared with it:

- A `text` block right after a `python` block is its output; `...` stands for anything.
- A comment after a `print(...)` begins with what is printed, up to a `…` if it has one.
- A `pycon` block is a doctest.

`<!-- not run: REASON -->` before a block keeps it from being run. In tutorials, code cells are run.
"""

import ast
import contextlib
import doctest
import io
import os
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)(`{3,})([^\n]*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
OPTIONS = re.compile(r"\A(?:---\n.*?\n---\n|(?::[^\n]*\n)+)", re.DOTALL)  # of a code cell


@dataclass(frozen=True)
class Block:
    """A fenced block: what is said of it before, its code, its line in the document, and the output that follows it."""

    language: str
    code: str
    line: int
    not_run: str | None = None
    output: str | None = None
    raises: bool = False


def documents() -> list[Path]:
    """README.md and all documents but tutorials."""
    tutorials = ROOT / "docs" / "tutorials"
    pages = (
        path for path in (ROOT / "docs").rglob("*.md") if tutorials not in path.parents and "_build" not in path.parts
    )
    return [ROOT / "README.md", *sorted(pages)]


def tutorials() -> list[Path]:
    """The tutorials: documents with code cells."""
    return [path for path in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if "{code-cell}" in path.read_text()]


def blocks_of(document: Path) -> list[Block]:
    """All fenced blocks of a document."""
    text, blocks, end = document.read_text(), [], 0
    for match in FENCE.finditer(text):
        indent, _, language, code = match.groups()
        code, line = textwrap.dedent(code) if indent else code, text.count("\n", 0, match.start()) + 2
        before, end = text[end : match.start()], match.end()
        if language.startswith("{code-cell}"):
            options = OPTIONS.match(code)
            given = options[0] if options else ""
            language, code = "python", "\n" * given.count("\n") + code[len(given) :]
            blocks.append(Block(language, code, line, raises="raises-exception" in given))
            continue
        if language == "text" and not before.strip() and blocks and blocks[-1].language == "python":
            blocks[-1] = Block(**{**vars(blocks[-1]), "output": code})
        reason = NOT_RUN.search(before)
        blocks.append(Block(language, code, line, reason[1] if reason else None))
    return blocks


def run(document: Path) -> str:
    """Runs all code of a document in the current folder, and returns what it prints."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks_of(document):
        if block.not_run is not None:
            continue
        if block.language == "python":
            printed.append(run_python(block, document, names))
        elif block.language == "pycon":
            run_doctest(block, document, names)
    return "".join(printed)


def run_python(block: Block, document: Path, names: dict[str, Any]) -> str:
    filename, lines = str(document), block.code.splitlines()
    tree = ast.increment_lineno(ast.parse(block.code), block.line - 1)
    printed = ""
    for statement in tree.body:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(compile(ast.Module([statement], []), filename, "exec"), names)
            except Exception as error:
                if not block.raises:
                    error.add_note(f"in {document.relative_to(ROOT)}, line {statement.lineno}")
                    raise
        comment = comment_after(statement, lines[statement.end_lineno - block.line])
        if comment is not None and is_print(statement):
            check_comment(comment, out.getvalue(), f"{filename}, line {statement.lineno}")
        printed += out.getvalue()
    if block.output is not None and not doctest.OutputChecker().check_output(block.output, printed, doctest.ELLIPSIS):
        raise AssertionError(
            f"{filename}, line {block.line}: printed\n{printed}\nbut the document shows\n{block.output}"
        )
    return printed


def is_print(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def comment_after(statement: ast.stmt, line: str) -> str | None:
    """The comment at the end of a statement's last line."""
    _, mark, comment = line.encode()[statement.end_col_offset :].decode().partition("# ")
    return comment.strip() if mark else None


def check_comment(comment: str, printed: str, where: str) -> None:
    shown, elided, _ = comment.partition("…")
    printed = " ".join(printed.split())
    if not (printed.startswith(shown.strip()) if elided else comment.startswith(printed)):
        raise AssertionError(f"{where}: printed {printed!r}, but the document says {comment!r}")


def run_doctest(block: Block, document: Path, names: dict[str, Any]) -> None:
    name = str(document.relative_to(ROOT))
    test = doctest.DocTestParser().get_doctest(block.code, names, name, str(document), block.line - 1)
    out = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    if runner.run(test, out=out.write, clear_globs=False).failed:
        raise AssertionError(out.getvalue())
    names |= test.globs


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ.setdefault("MPLBACKEND", "agg")
        print(run(path), end="")
