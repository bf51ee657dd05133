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
    from convforge.lab import bind, find_runs, write_lab
    from convforge.language import LANGUAGES

    write_lab(bind(find_runs([RESULTS / DEVICE])), Path(app.outdir) / "lab", codes=tuple(LANGUAGES))


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
