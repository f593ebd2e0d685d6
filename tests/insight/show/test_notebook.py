"""A real notebook: datasets show themselves, and code is named by its cell."""

import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import headrace\nfrom headrace.data import digits",
    "def brighten(example):\n    return example\nds = headrace.MapDataset.source(digits()).map(brighten)\nds",
    "print(ds)",
    "ds.show(2)",
    'def fail(element):\n    raise ValueError("in a worker")\nnext(iter(ds.map(fail).mp_prefetch(1)))',
    "import tempfile\nfrom headrace import progress\nprogress.DELAY_S = 0\n"
    "headrace.sources.write_tfrecord([b'x'] * 600, tempfile.mkdtemp() + '/bytes.tfrecord');",
]


@pytest.fixture(scope="module")
def outputs():
    """The outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=100, kernel_name="python3", allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_dataset_shows_itself_in_a_notebook(outputs):
    (result,) = outputs[1]
    page = result["data"]["text/html"]
    assert '<img src="data:image/png;base64,' in page
    assert ".map(brighten at In[2]:1)" in page
    assert "In[2]:3" in page  # the line that made the operation
    assert result["data"]["text/plain"].endswith(".map(brighten at In[2]:1)")


def test_code_is_named_by_its_cell(outputs):
    (printed,) = outputs[2]
    assert printed["text"].rstrip().endswith(".map(brighten at In[2]:1)")


def test_show_shows_html_in_a_notebook(outputs):
    (shown,) = outputs[3]
    assert shown["data"]["text/html"].count("<img") == 2


def test_errors_of_workers_name_the_cell(outputs):
    error = outputs[4][-1]
    assert (error["ename"], error["output_type"]) == ("ValueError", "error")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert "in map(fail at In[5]:1), element 0 (pipeline at In[5]:3)" in text


def test_a_notebook_shows_bars(outputs):
    shown = "".join(each["text"] for each in outputs[5] if each["output_type"] == "stream")
    assert "Writing bytes.tfrecord: 100%" in shown
    assert "ipywidgets" not in shown


def test_ipython_in_a_terminal_prints_text_and_names_the_input():
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('import headrace', store_history=True)\n"
        "shell.run_cell('ds = headrace.MapDataset.range(3).map(lambda x: x)', store_history=True)\n"
        "shell.run_cell('print(ds); ds.show(1)', store_history=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["MapDataset.range(3)", "  .map(<lambda> at In[2]:1)", "int  0"], done.stderr
