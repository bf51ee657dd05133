"""The worked example of adding-an-algorithm.md, taken from the page and laid out as a reader would paste it.

A block of code whose first line is ``# path/of/a/file.py`` is that file. Used by the page's own cells and by
tests/test_docs.py, so that what is shown is what runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```python\n# (?P<path>[\w./]+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_ALGORITHMS = "src/convforge/algorithms/"


def files_of(page: Path) -> dict[str, str]:
    """Path in the repository -> text, of every file that a page shows whole."""
    return {match["path"]: match["code"] for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def lay_out(page: Path, folder: Path) -> list[str]:
    """Write the page's new algorithm files below `folder`, and let Python find them as parts of convforge.

    Returns
    -------
    list of str
        Names of the modules, such as ``convforge.algorithms.shifted``. Undo with :func:`take_away`.
    """
    import convforge.algorithms as _  # noqa: F401  (the package, not the function of the same name)

    modules = []
    for path, code in files_of(page).items():
        if path.startswith(_ALGORITHMS):
            target = folder / path.removeprefix(_ALGORITHMS)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(code, encoding="utf-8")
            name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules.append(name)
    sys.modules["convforge.algorithms"].__path__.append(str(folder))
    return modules


def take_away(folder: Path, modules: list[str]) -> None:
    """Undo :func:`lay_out`."""
    sys.modules["convforge.algorithms"].__path__.remove(str(folder))
    for name in modules:
        sys.modules.pop(name, None)
