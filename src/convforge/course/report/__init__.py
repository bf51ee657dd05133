"""The report: one HTML page of stored runs that works offline, with its charts as SVG and PNG."""

from convforge.course.pages.images import find_images
from convforge.course.pages.page import write
from convforge.course.report.ahead import ahead_png
from convforge.course.report.charts import KINDS, Kind, chart_png, chart_spec, chart_svg
from convforge.course.report.page import render
from convforge.course.report.records import load

__all__ = [
    "KINDS", "Kind", "ahead_png", "chart_png", "chart_spec", "chart_svg", "find_images", "load", "render", "write",
]  # fmt: skip
