"""The lab: all studies in one report, as a page, Markdown, charts and data, in English and Chinese."""

from convforge.course.lab.book import Book, Chapter, bind, conduct_all, find_runs
from convforge.course.lab.files import Written, to_table, write_lab
from convforge.course.lab.page import render

__all__ = ["Book", "Chapter", "Written", "bind", "conduct_all", "find_runs", "render", "to_table", "write_lab"]
