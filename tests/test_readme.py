"""The README's code runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_first_screen_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, str(README), "exec"), {})
        assert capsys.readouterr().out == "(128, 28, 28)\n"
