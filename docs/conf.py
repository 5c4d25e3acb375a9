"""Sphinx: ``sphinx-build -W -n docs docs/_build``."""

import fastnorm

project = "fastnorm"
author = "The fastnorm maintainers"
copyright = author
release = fastnorm.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"fastnorm {release}"
