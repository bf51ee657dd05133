"""The lab of the stored runs of a GPU, in every language, beside the built pages: ``lab/lab.html``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# The device whose stored runs are shown.
DEVICE = "nvidia-h200-132sm"


def write(app: Any, fault: Exception | None) -> None:
    """Write the lab's folder into the built site."""
    if fault is not None or app.builder.name != "html":
        return
    from convforge.course.lab import bind, find_runs, render
    from convforge.course.language import LANGUAGES
    from convforge.course.report import write as write_page

    book = bind(find_runs([RESULTS / DEVICE]))
    names = {code: "lab.html" if code == "en" else f"lab-{code}.html" for code in LANGUAGES}
    for code, name in names.items():
        pages = [(LANGUAGES[other], address) for other, address in names.items() if other != code]
        write_page(Path(app.outdir) / "lab" / name, render(book, code=code, pages=pages))


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
