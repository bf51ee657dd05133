"""The README's chart: our speed divided by that of the best other library, by image size and stride."""

from __future__ import annotations

from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from convforge.benchmark.peer_tables import ahead_of, spoken_peers
from convforge.benchmark.records import Run
from convforge.course.pages.charts import Datasets, Spec, png, themed, unvalidated
from convforge.course.pages.looks import Ink

if TYPE_CHECKING:
    from pandas import DataFrame

# Colours of strides 1, 2, 3 and more on a light page, from dark to light, so that they also differ in print.
COLOURS = ("#0067b1", "#2f93c8", "#9ccbe6")


def ahead_png(run: Run, *, scale: float = 2.0) -> bytes:
    """Draw the chart of a run of an image workload as PNG, offline; `scale` is file pixels per pixel of the chart.

    Raises ``ValueError`` if no case of the run has both a method of ours and a peer.
    """
    return png(ahead_spec(run), scale)


def ahead_spec(run: Run) -> Spec:
    """Return the Vega-Lite spec behind :func:`ahead_png`: a group of bars for each size, with one bar per stride."""
    import altair as alt

    ink, data = Ink("light", {}), Datasets()
    rows = ratio_rows(ahead_of(run, run.results))
    peers = spoken_peers(run.results)
    strides = sorted({row["stride"] for row in rows})
    with unvalidated():
        base = data.chart(rows)
        y = alt.Y("ratio:Q", title=f"times as fast as {peers}", axis=alt.Axis(format="~g", tickCount=6))
        bars = base.mark_bar().encode(
            x=alt.X("size:O", title="image size, pixels a side", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("stride:O"), y=y,
            color=alt.Color("stride:O", scale=alt.Scale(domain=strides, range=list(COLOURS[: len(strides)])),
                            legend=alt.Legend(title="stride", orient="top-left", direction="horizontal")),
        )  # fmt: skip
        values = base.mark_text(dy=-5, fontSize=9, color=ink("muted")).encode(
            x="size:O", xOffset=alt.XOffset("stride:O"), y=y, text=alt.Text("ratio:Q", format=".1f")
        )
        level = alt.Chart(alt.NamedData(name="level")).mark_rule(color=ink("ink"), strokeDash=[4, 3]).encode(y="one:Q")
        data["level"] = [{"one": 1}]
        title = alt.TitleParams(f"convforge against {peers}: 3x3 filter over an RGB image, float32, {run.where}")
        return themed(alt.layer(bars, values, level).properties(width=760, height=300, title=title), data, ink)


def ratio_rows(cases: DataFrame) -> list[dict[str, Any]]:
    """Return a row for each size and stride, with the geometric mean of the ratios of its cases."""
    means = cases.groupby(["size", "stride"], as_index=False).ratio.agg(geometric_mean)
    return [{"size": int(size), "stride": int(stride), "ratio": float(mean)} for size, stride, mean in means.values]
