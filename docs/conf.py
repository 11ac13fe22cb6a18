"""Configuration of the site; CONTRIBUTING.md has the command that builds it."""

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["MPLBACKEND"] = (
    "module://matplotlib_inline.backend_inline"  # notebooks show their figures
)
sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import heed

project = "heed"
author = "The heed authors"
project_copyright = author
version = release = heed.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "mathml",
    "names",
    "outside",
    "ratios",
]
root_doc = "index"
exclude_patterns = ["extensions"]
nitpicky = True
pygments_style, pygments_dark_style = "friendly", "github-dark"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Unchanged notebooks are not executed again; the cache is outside of docs/.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # TensorFlow's messages on start
# Without KerasHub its notebook is shown, but not executed.
nb_execution_excludepatterns = (
    [] if importlib.util.find_spec("keras_hub") else ["tutorials/kerashub.ipynb"]
)

# The button copies what a reader types: no prompts, and no output where there are prompts.
copybutton_prompt_text = r">>> |\.\.\. ?|\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_copy_empty_lines = False

autodoc_typehints = "none"
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"heed {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#155fa0", "color-brand-content": "#155fa0"},
    "dark_css_variables": {"color-brand-primary": "#7fb8ee", "color-brand-content": "#7fb8ee"},
}
