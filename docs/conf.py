"""How Sphinx builds the site: `make docs`."""

import importlib.metadata
import logging
import os

project = "Headrace"
author = "The Headrace authors"
project_copyright = "The Headrace authors"
version = release = importlib.metadata.version("headrace")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
suppress_warnings = ["ref.python"]  # `bytes` in a signature is the type, and not one of the attributes of that name


def matches_something(record: logging.LogRecord) -> bool:
    """Patterns fix the order of tutorials, and may match nothing; `suppress_warnings` does not know this warning."""
    return getattr(record, "subtype", None) != "empty_glob"


logging.getLogger("sphinx.sphinx.directives.other").addFilter(matches_something)

# ---- text
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language
copybutton_exclude = ".linenos, .gp, .go"
smartquotes = False

# ---- notebooks
nb_execution_mode = "cache" if os.environ.get("HEADRACE_DOCS_CACHE") else "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # nothing is loaded from elsewhere
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TQDM_DISABLE", "1")

# ---- docstrings
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# ---- HTML
html_theme = "sphinx_book_theme"
html_title = "Headrace"
html_static_path = ["_static"]
html_css_files = ["headrace.css"]
html_favicon = "_static/favicon.svg"
html_logo = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "repository_url": "https://github.com/headrace/headrace",
    "repository_branch": "main",
    "path_to_docs": "docs",
    "use_repository_button": True,
    "use_edit_page_button": False,
    "use_issues_button": False,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": False,
    "navbar_persistent": [],  # the search is in the sidebar
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
