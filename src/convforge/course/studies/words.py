"""Converts findings to text: `str.format` with units, lists and workloads as format specs.

Sentences and details are written in English in studies.toml and translated through the language's catalogue.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from importlib import resources
from typing import Any

from convforge.benchmark.formats import three
from convforge.benchmark.reasons import from_data
from convforge.course.language import gettext, language, ngettext

# A space between two Chinese characters, and the position between a Chinese character and a Latin one or a digit.
_BETWEEN = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
_BESIDE = re.compile(r"(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])")
# Default parameters of a workload, which texts omit.
ALONE = {("n", 1), ("groups", 1)}
# Most names in one list. Further names are only counted; the finding's values hold all.
MOST_NAMES = 6


@cache
def messages() -> dict[str, dict[str, Any]]:
    """Return the English sentences and details of all findings, from studies.toml."""
    return tomllib.loads(resources.files(__package__).joinpath("studies.toml").read_text(encoding="utf-8"))


def template(form: str) -> str:
    """Return the English sentence of a form, with fields; raises ``KeyError`` if there is none.

    Examples
    --------
    >>> template("hit-rates/kept-shared") == template("hit-rates/kept")
    True
    """
    known = messages()["sentences"]
    while form not in known and "-" in form.partition("/")[2]:
        form = form.rpartition("-")[0]
    return str(known[form])


def details(form: str, values: Mapping[str, Any]) -> list[str]:
    """Return the details of a form that have known values and are not in its sentence."""
    shown = set(_fields(template(form)))
    return [
        say(text, values)
        for text in (*_lines(form), *_lines("every"))
        if not (fields := _fields(text)) or not shown.issuperset(fields)
        if all(_has(values, field) for field in fields)
    ]


def _lines(form: str) -> list[str]:
    """Templates of a form, or otherwise those of the form without its suffix, or of its family."""
    own = messages()["details"].get(form, ["..."])
    if own[:1] != ["..."]:
        return list(own)
    family, _, outcome = form.partition("/")
    shorter = form.rpartition("-")[0] if "-" in outcome else family if outcome else ""
    return [*(_lines(shorter) if shorter else []), *own[1:]]


def say(text: str, values: Mapping[str, Any]) -> str:
    """Format a message with its values, in the current language."""
    return Formatter().vformat(gettext(text), (), values)


def _fields(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name]


def _has(values: Mapping[str, Any], field: str) -> bool:
    try:
        value, _ = string.Formatter().get_field(field, (), values)
    except KeyError:
        return False
    return value is not None and value not in ("", [], (), {})


def weights_words(weights: str) -> str:
    """Name the kind of a case's filters."""
    known = {
        "normal": gettext("filters of full rank"),
        "gaussian": gettext("Gaussian filters"),
        "shared": gettext("one filter for all channels"),
    }
    return known.get(weights, weights)


def clock_name(config: str) -> str:
    """Name a way of timing by the config stored in the timing study; other configs are returned unchanged."""
    known = {
        "clock=right": gettext("the right way"),
        "clock=no_wait": gettext("without waiting"),
        "clock=host_clock": gettext("the host's clock, with a wait"),
        "clock=allocating": gettext("allocation inside"),
        "clock=planning": gettext("planning inside"),
        "clock=same_arrays": gettext("the same arrays"),
    }
    return known.get(config, config)


def workload_words(load: Mapping[str, Any]) -> str:
    """Describe the parameters that all cases of a series share, in the current language."""
    c, k = load.get("c"), load.get("k")
    channels = ngettext("{k} output channel", "{k} output channels", k or 0)
    if c is not None:
        channels = gettext("{c} input, {k} output channels")
    words = {
        "n": gettext("batch {n}"), "images": gettext("{images} pixels"), "k": channels,
        "groups": gettext("{groups} groups"), "filter": gettext("{filter} filter"),
        "stride": gettext("stride {stride}"), "layout": "{layout}", "weights": weights_words(load.get("weights", "")),
    }  # fmt: skip
    said = [text for name, text in words.items() if load.get(name) and (name, load[name]) not in ALONE]
    return gettext(", ").join(said).format_map(load)


def nouns(noun: str) -> tuple[str, str]:
    """Return the singular and the plural message of a noun.

    Examples
    --------
    >>> nouns("case"), nouns("entry")
    (('{n} case', '{n} cases'), ('{n} entry', '{n} entries'))
    """
    return f"{{n}} {noun}", f"{{n}} {noun[:-1]}ies" if noun.endswith("y") else f"{{n}} {noun}s"


def _count(n: int, noun: str) -> str:
    return ngettext(*nouns(noun), n).format(n=n)


def _each(n: int, noun: str) -> str:
    things = _count(n, noun)
    return things if n == 1 else gettext("each of {things}").format(things=things)


def _time(value: float) -> str:
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("us", 1e6)
    return f"{three(value * factor)} {unit}"


def _times(ratio: float) -> str:
    digits = 2 if ratio < 9.995 else 1 if ratio < 99.5 else 0
    return gettext("{ratio}x").format(ratio=f"{ratio:.{digits}f}")


def _percent(share: float) -> str:
    percent = 100 * share
    if percent >= 99.5 and share < 1:
        said = f"{min(percent, 99.9):.1f}"
    else:
        said = f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}" if percent >= 0.1 else f"{percent:.1g}"
    return gettext("{share} %").format(share=said)


def _rate(flops_per_s: float) -> str:
    factor, unit = (1e12, "TFLOP/s") if flops_per_s >= 1e12 else (1e9, "GFLOP/s")
    return f"{three(flops_per_s / factor)} {unit}"


def _names(names: Sequence[object]) -> str:
    """Join names to a list with at most `MOST_NAMES`; an empty one is an error."""
    if not names:
        raise ValueError("a sentence names what an empty list holds: its finding should have another form")
    words = [str(name) for name in names]
    if len(words) == 1:
        return words[0]
    more = len(words) - MOST_NAMES + 1 if len(words) > MOST_NAMES else 0
    first = reduce(lambda a, b: gettext("{first}, {second}").format(first=a, second=b),
                   words[: MOST_NAMES - 1] if more else words[:-1])  # fmt: skip
    if more:
        return gettext("{names} and {n} more").format(names=first, n=more)
    return gettext("{names} and {last}").format(names=first, last=words[-1])


def _axis(axis: str) -> str:
    return {
        "size": gettext("image size"),
        "stride": gettext("stride"),
        "filter": gettext("filter size"),
        "channels": gettext("number of channels"),
        "inputs": gettext("number of input channels"),
    }[axis]


def _reason(data: Any) -> str:
    reason = from_data(data)
    return "" if reason is None else reason.render(gettext)


def _apart(load: Mapping[str, Any]) -> str:
    """Parameters that distinguish a series from others, in brackets; empty for the only series."""
    words = workload_words(load)
    return gettext(" ({words})").format(words=words) if words else ""


def _stretches(stretches: Sequence[Mapping[str, Any]]) -> str:
    ends = [(part["first"], part["last"], "/".join(part["methods"])) for part in stretches]
    return gettext("; ").join(_named(f"{a}" if a == b else f"{a}-{b}", methods) for a, b, methods in ends)


def _span(span: Mapping[str, Any], figure: Callable[[float], str] = _times) -> str:
    """The smallest and the largest ratio or share, each with its case."""
    ends = [(figure(span[end]), span[f"{end}_case"]) for end in ("least", "most")]
    first, last = (gettext("{figure} ({case})").format(figure=figure, case=case) for figure, case in ends)
    return first if ends[0][1] == ends[1][1] else gettext("{least} to {most}").format(least=first, most=last)


def _ratios(ratios: Mapping[Any, float]) -> str:
    return _names([_named(gettext(str(name)), _times(ratio)) for name, ratio in ratios.items()])


def _groups(groups: Mapping[Any, Sequence[str]]) -> str:
    return gettext("; ").join(_named(name, _names(own)) for name, own in groups.items())


def _named(name: object, words: str) -> str:
    return gettext("{name}: {words}").format(name=name, words=words)


# Spec of a field -> function that formats its value; a noun follows "count" and "each".
SPECS: Mapping[str, Callable[..., str]] = {
    "count": _count, "each": _each, "time": _time, "times": _times, "percent": _percent, "rate": _rate,
    "names": _names, "axis": _axis, "reason": _reason, "workload": workload_words, "apart": _apart,
    "stretches": _stretches, "span": _span, "shares": partial(_span, figure=_percent), "ratios": _ratios,
    "groups": _groups, "either": "/".join, "word": gettext, "clock": clock_name, "tiny": "{:.1e}".format,
    "bytes_rate": lambda bytes_per_s: f"{three(bytes_per_s / 1e9)} GB/s",
    "megabytes": lambda nbytes: f"{three(nbytes / 1e6)} MB",
}  # fmt: skip


class Formatter(string.Formatter):
    """Formats a finding's values in the current language; a spec is one of `SPECS` or a Python format spec.

    Examples
    --------
    >>> Formatter().format("{a:time}, {b:times}, {c:percent}, {d:names}, {n:count case}, {n:each case}",
    ...                    a=2.5e-6, b=1.5, c=0.25, d=["x", "y", "z"], n=2)
    '2.50 us, 1.50x, 25 %, x, y and z, 2 cases, each of 2 cases'
    """

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a sentence; Chinese text has a space next to Latin letters, and none between Chinese characters."""
        said = super().vformat(format_string, args, kwargs)
        return said if language() == "en" else _BESIDE.sub(" ", _BETWEEN.sub("", said))

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a value with one of the specs, and with its noun if it has one."""
        name, _, noun = format_spec.partition(" ")
        if name not in SPECS:
            return str(super().format_field(value, format_spec))
        return SPECS[name](value, noun) if noun else SPECS[name](value)
