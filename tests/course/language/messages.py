"""All messages of the sources, and the catalogues beside them.

``make words`` adds to each catalogue what the sources hold and it lacks, untranslated, and takes out what none holds
any more; the tests ask for a translation of each.
"""

from __future__ import annotations

import ast
import io
import json
import string
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from convforge.algorithms import algorithms
from convforge.algorithms.direct.naive import PARTITIONS
from convforge.course import language
from convforge.course.pages.charts import TOOLTIPS
from convforge.course.studies import STUDIES, breakdown, crossovers, memory, size, words
from convforge.course.studies.published import TABLES
from convforge.course.studies.words import nouns
from convforge.problem.types import PRECISIONS

SOURCES = Path(language.__file__).parents[2]
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
PATTERNS = [("**.py", "python"), ("**.j2", "jinja2")]
OPTIONS = {"**.j2": {"newstyle_gettext": "true", "trim_blocks": "true", "lstrip_blocks": "true", "silent": "false"}}

Text = str | tuple[str, ...]


def catalogue_path(code: str) -> Path:
    """Path of a language's catalogue."""
    return SOURCES / "course" / "language" / f"{code}.po"


@cache
def messages() -> Catalog:
    """Every message of the sources, with the file that holds it; not to be changed."""
    found = Catalog()
    for path, _, text, _, _ in extract_from_dir(SOURCES, PATTERNS, OPTIONS):
        found.add(text, locations=[(f"src/convforge/{path}", 0)])
    for path, text in data():
        found.add(text, locations=[(f"src/convforge/{path}", 0)])
    return found


def data() -> Iterator[tuple[str, Text]]:
    """Messages that stand in tables: file, and what is looked up."""
    for path, text in sentences():
        yield path, text
        yield from ((path, nouns(noun)) for noun in counted(text))
    yield from (("course/studies/studies.toml", study.asks) for study in STUDIES.values())
    for table in TABLES.values():
        yield from (
            ("course/studies/published.py", text) for text in (table.about, *(doubt.words for doubt in table.doubts))
        )
    yield from (("course/studies/crossovers.py", word) for word in (*crossovers.BY_FILTER, *crossovers.BY_CHANNELS))
    yield from (("course/pages/charts.py", word) for word in TOOLTIPS.values())
    yield from (("course/studies/partition.py", word) for word in PARTITIONS)
    yield from (("course/studies/breakdown.py", word) for word in breakdown.PLACES.values())
    yield from (("course/studies/memory.py", word) for word, *_ in memory.CLAIMS.values())
    yield from (("course/studies/size.py", word) for word in size.WAYS.values())
    yield from (("algorithms/__init__.py", method.summary) for method in algorithms())
    yield from (("problem/types.py", words) for words in PRECISIONS.values())
    yield from reasons()


def reasons() -> Iterator[tuple[str, str]]:
    """The forms of reasons: file, and the text that a call of Reason begins with; then those that are stored alone."""
    calls = list(reason_calls())
    found = [(path, call.args[0].value) for path, call in calls if isinstance(call.args[0], ast.Constant)]
    yield from found
    made = {form for _, form in found}
    yield from (("benchmark/reasons.py", form) for form in sorted(set(stored_forms()) - made))


def reason_calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of Reason in the sources: file and call."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason":
                yield path.relative_to(SOURCES).as_posix(), node


def stored_forms() -> Iterator[str]:
    """The forms of the reasons and notes of stored rows, those included that no method gives any more."""
    for path in RESULTS.rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield from _forms([row.get("reason"), row.get("note")])


def _forms(data: Any) -> Iterator[str]:
    if isinstance(data, list):
        yield from (form for part in data for form in _forms(part))
    elif isinstance(data, dict):
        yield data["form"]
        yield from _forms(list(data["values"].values()))


def sentences() -> Iterator[tuple[str, str]]:
    """The sentences of all findings and the details below them: file, and the English text."""
    known = words.messages()
    texts = dict.fromkeys([*known["sentences"].values(), *(t for lines in known["details"].values() for t in lines)])
    yield from (("course/studies/studies.toml", text) for text in texts if text != "...")


def fields(text: str) -> list[tuple[str, str]]:
    """The fields of a message in braces, each with its spec, in an order that does not depend on the language."""
    return sorted((name, spec or "") for _, name, spec, _ in string.Formatter().parse(text) if name is not None)


def counted(text: str) -> set[str]:
    """The nouns that a sentence counts."""
    found = (spec.partition(" ") for _, spec in fields(text))
    return {noun for name, _, noun in found if name in ("count", "each", "all")}


def translated(code: str) -> list[Message]:
    """The messages of a catalogue, without its header."""
    return [message for message in _read(code) if message.id]


def updated(code: str) -> str:
    """A catalogue as it should stand: with every message of the sources, and no other."""
    text = catalogue_path(code).read_text(encoding="utf-8")
    known, wanted = _read(code), messages()
    known.update(wanted, no_fuzzy_matching=True)
    body = io.BytesIO()
    write_po(body, known, width=120, omit_header=True, ignore_obsolete=True, sort_by_file=True, include_lineno=False)
    return text.split("\n\n")[0] + "\n\n" + body.getvalue().decode().strip() + "\n"


def _read(code: str) -> Catalog:
    with catalogue_path(code).open("rb") as file:
        return read_po(file, locale=code)


def update(codes: Iterable[str]) -> None:
    """Write catalogues anew."""
    for code in codes:
        catalogue_path(code).write_text(updated(code), encoding="utf-8")
        empty = sum(1 for message in translated(code) if not all(_strings(message)))
        print(f"{catalogue_path(code)}: {len(translated(code))} messages, {empty} without translation")


def _strings(message: Message) -> tuple[str, ...]:
    return (message.string,) if isinstance(message.string, str) else tuple(message.string)


if __name__ == "__main__":
    update(code for code in language.LANGUAGES if code != "en")
