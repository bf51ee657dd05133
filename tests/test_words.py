"""Plain words: no docstring begins with a question, no sentence hides its actor, terms are the field's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
KERNELS = sorted(path for path in (ROOT / "src").rglob("*.*") if path.suffix in (".cu", ".cuh", ".h", ".cpp"))
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/kernels").glob("*.md"), ROOT / "README.md"])

# A docstring's first words: it says what the thing does or is.
QUESTION = re.compile(r"(What|Whether|Who|Whose|Why|How|Where|Which)\b")
# Private words, and the field's in their place.
TERMS = {
    r"multiprocessors?\b": "SM",
    r"second[- ]level cache": "L2",
    r"\bas it (is|stands|lies)\b": "unchanged",
    r"\bas they (are|stand|lie)\b": "unchanged",
    r"\b(is|are) (said|told)\b": "say who says it",
    r"\bone by one\b": "one at a time",
}


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and first line of every docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text.partition("\n")[0]


def questions(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in docstrings(source) if QUESTION.match(text)]


def terms(text: str) -> list[str]:
    """Private words of a text; what is quoted as code is left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [f"{match[0]!r}: {better}" for term, better in TERMS.items() for match in re.finditer(term, text)]
