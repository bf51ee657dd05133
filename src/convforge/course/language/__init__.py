"""The language of pages, charts and findings: English in the sources, all others as catalogues in this folder.

A text is translated where it is created, into the language set by the enclosing :func:`in_language` block. Catalogues
use gettext's format (``zh.po``, read by Babel); a text missing in a catalogue stays English.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import resources

__all__ = ["LANGUAGES", "catalogue", "gettext", "in_language", "language", "ngettext"]

# Language code -> name in that language.
LANGUAGES = {"en": "English", "zh": "中文"}

_language: ContextVar[str] = ContextVar("language", default="en")


def language() -> str:
    return _language.get()


@contextmanager
def in_language(code: str) -> Iterator[None]:
    """Set the language of texts inside the block; ``ValueError`` for an unknown code."""
    if code not in LANGUAGES:
        raise ValueError(f"language={code!r} is unknown; choose one of {', '.join(LANGUAGES)}")
    token = _language.set(code)
    try:
        yield
    finally:
        _language.reset(token)


def gettext(message: str) -> str:
    """Translate a text into the current language."""
    return catalogue(language()).get(message, message)


def ngettext(one: str, many: str, n: int) -> str:
    """Translate the text for one or for many; a language without plurals has the same text for both."""
    found = catalogue(language()).get(one)
    return found if found is not None else one if n == 1 else many


@cache
def catalogue(code: str) -> Mapping[str, str]:
    """Return English text -> translation; empty for English."""
    if code == "en":
        return {}
    from babel.messages.pofile import read_po

    with resources.files(__name__).joinpath(f"{code}.po").open("rb") as file:
        messages = [message for message in read_po(file, locale=code) if message.id and message.string]
    return {_first(message.id): _first(message.string) for message in messages}


def _first(text: str | Sequence[str] | None) -> str:
    return text if isinstance(text, str) else text[0] if text else ""
