"""The lab: all studies in one report, as a page, Markdown, charts and data, in English and Chinese."""

from convforge.lab.book import Book, Chapter, bind, find_runs
from convforge.lab.files import Written, to_table, write_lab
from convforge.lab.measure import Watch, conduct_all
from convforge.lab.page import render

__all__ = [
    "Book",
    "Chapter",
    "Watch",
    "Written",
    "bind",
    "conduct_all",
    "find_runs",
    "render",
    "to_table",
    "write_lab",
]
