"""Plain words: docstrings say what a thing does or is, and texts use the field's terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
KERNELS = sorted(path for path in (ROOT / "src").rglob("*.*") if path.suffix in (".cu", ".cuh", ".h", ".cpp"))
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/kernels").glob("*.md"), ROOT / "README.md"])

# A docstring begins with a verb or a noun phrase, not with a question.
QUESTION = re.compile(r"(?:What|Whether|Who|Whose|Why|How|Where|Which)\b")
# Private words, and what to write in their place.
TERMS = {
    r"(?<!streaming )multiprocessors?": "SM",
    r"(?:first|second)[- ]level caches?": "L1, L2",
    r"(?:is|are|was|were) (?:said|told)": "who says it?",
    r"as (?:it|they) (?:stands?|lies?)": "unchanged, in its own layout",
}
_TERM = re.compile("|".join(rf"(?P<t{i}>\b{term}\b)" for i, term in enumerate(TERMS)))
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CODE = re.compile(r"```.*?^```|`[^`\n]*`|<!-- table.*?<!-- end -->", re.DOTALL | re.MULTILINE)


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Line and first line of every docstring that begins with a question."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text):
                yield node.body[0].lineno, text.partition("\n")[0]


def prose(path: Path, text: str) -> str:
    """The prose of a file: comments of device code, pages without code and generated tables, all of Python."""
    if path.suffix == ".md":
        return _CODE.sub("", text)
    return text if path.suffix == ".py" else "\n".join(_COMMENT.findall(text))


def private_words(text: str) -> Iterator[str]:
    """Each private word of a text, with what to write in its place."""
    for match in _TERM.finditer(text):
        assert match.lastgroup is not None
        yield f"{match[0]!r}: {list(TERMS.values())[int(match.lastgroup[1:])]}"


def test_no_docstring_begins_with_a_question() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        for line, text in questions(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_texts_use_the_terms_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (*SOURCES, *KERNELS, *PAGES)
        for word in private_words(prose(path, path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_a_question_is_found() -> None:
    source = (
        '"""Whether it is."""\ndef f():\n    """What it does."""\n\ndef g():\n    """Whatever is given, doubled."""\n'
    )
    assert list(questions(source)) == [(1, "Whether it is."), (3, "What it does.")]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", "# a multiprocessor holds it", ["'multiprocessor': SM"]),
        ("a.cu", "int multiprocessor;  // the second level cache", ["'second level cache': L1, L2"]),
        ("a.md", "`is said` of it\n```\nis told\n```\n<!-- table:x -->\nis told\n<!-- end -->\nnothing", []),
        ("a.md", "memory as it lies", ["'as it lies': unchanged, in its own layout"]),
    ],
)
def test_a_private_word_is_found(name: str, text: str, found: list[str]) -> None:
    assert list(private_words(prose(Path(name), text))) == found
