"""Configuration of the documentation. `make docs` builds it; a warning or a failing cell fails the build."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
EXTENSIONS = DOCS / "_ext"
sys.path.insert(0, str(EXTENSIONS))
sys.path.insert(0, str(DOCS.parent / "src"))

# Cells run in processes of their own: they, too, are to find the checkout and what draws the figures.
_paths = [str(EXTENSIONS), str(DOCS.parent / "src"), str(DOCS.parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in _paths if path)

import convforge  # noqa: E402

project = "convforge"
author = "the convforge authors"
copyright = "the convforge authors"  # noqa: A001
version = release = convforge.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "command", "kernels", "lab_page"]
exclude_patterns = ["_build", "_ext", "_templates", "**.ipynb_checkpoints"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Cells run at every build, each page in a process and a folder of its own.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # the first run compiles kernels
nb_execution_show_tb = True
nb_merge_streams = True

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"convforge {release}"
html_static_path = ["_static"]
html_css_files = ["convforge.css"]
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#9a3d06", "color-brand-content": "#9a3d06"},
    "dark_css_variables": {"color-brand-primary": "#f0a46b", "color-brand-content": "#f0a46b"},
}
