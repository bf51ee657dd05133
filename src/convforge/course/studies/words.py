"""From a finding to a sentence: `str.format` with the field's units, lists and workloads as format specs.

Sentences stand in English beside their rules and are looked up in the catalogue of the language; what stands in their
fields is said by a formatter, one a language.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from convforge.benchmark.formats import three
from convforge.benchmark.reasons import from_data
from convforge.course.language import gettext, language, ngettext
from convforge.course.studies.finding import Finding

# A space between two Chinese letters, and the place between a Chinese letter and a Latin one or a digit.
_BETWEEN = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
_BESIDE = re.compile(r"(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])")
# Names in one sentence; the rest are counted, and all stand in the finding's values.
MOST_NAMES = 6


def render(finding: Finding, sentences: Mapping[str, str]) -> str:
    """The sentence of a finding in the language of this place; what its rule left out as too noisy to rank is named.

    Raises
    ------
    KeyError
        The table lacks the finding's form, or the sentence asks for a value that the finding lacks.
    """
    formatter = FORMATTERS[language()]()
    said = formatter.vformat(gettext(sentences[finding.form]), (), finding.values)
    if finding.values.get("unsure"):
        said += formatter.vformat(gettext(" Too noisy to rank: {unsure:names}."), (), finding.values)
    return said


def workload_words(load: Mapping[str, Any]) -> str:
    """What a series of cases has in common, in the language of this place."""
    return FORMATTERS[language()]().say_workload(load)


def weights_words(weights: str) -> str:
    """What the filters of a case are, in the language of this place."""
    known = {
        "normal": gettext("filters of full rank"),
        "gaussian": gettext("Gaussian filters"),
        "shared": gettext("one filter for all channels"),
    }
    return known.get(weights, weights)


def clock_name(config: str) -> str:
    """A way of timing, from the config that the study of timing stores; any other config as it is."""
    known = {
        "clock=right": gettext("the right way"),
        "clock=no_wait": gettext("without waiting"),
        "clock=host_clock": gettext("the host's clock, with a wait"),
        "clock=allocating": gettext("allocation inside"),
        "clock=planning": gettext("planning inside"),
        "clock=same_arrays": gettext("the same arrays"),
    }
    return known.get(config, config)


class English(string.Formatter):
    """Formats a finding's values in English: a format spec is the name of a method below, without its "say".

    Examples
    --------
    >>> English().format("{a:time}, {b:times}, {c:percent}, {d:names}, {n:count case}, {n:each case}",
    ...                  a=2.5e-6, b=1.5, c=0.25, d=["x", "y", "z"], n=2)
    '2.50 us, 1.50x, 25 %, x, y and z, 2 cases, each of 2 cases'
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value by one of the specs below, with its noun where it has one; other specs are Python's."""
        name, _, noun = format_spec.partition(" ")
        say = getattr(self, f"say_{name}", None)
        if say is None:
            return str(super().format_field(value, format_spec))
        return str(say(value, noun) if noun else say(value))

    def say_count(self, n: int, noun: str) -> str:
        """How many."""
        return counted(n, noun)

    def say_each(self, n: int, noun: str) -> str:
        """Each of several."""
        return f"the one {noun}" if n == 1 else f"each of {counted(n, noun)}"

    def say_all(self, n: int, noun: str) -> str:
        """All of several."""
        return f"the one {noun}" if n == 1 else f"all of {counted(n, noun)}"

    def say_time(self, seconds: float) -> str:
        """A time with its unit."""
        for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
            if seconds * factor >= 1 or unit == "us":
                return f"{three(seconds * factor)} {unit}"
        raise AssertionError("the last unit takes every time")

    def say_times(self, ratio: float) -> str:
        """A ratio."""
        return f"{_ratio(ratio)}x"

    def say_percent(self, share: float) -> str:
        """A share of one."""
        return f"{_percent(share)} %"

    def say_rate(self, flops_per_s: float) -> str:
        """FLOPs a second."""
        big = flops_per_s >= 1e12
        return f"{three(flops_per_s / 1e12)} TFLOP/s" if big else f"{three(flops_per_s / 1e9)} GFLOP/s"

    def say_bytes_rate(self, rate: float) -> str:
        """Bytes a second."""
        return f"{three(rate / 1e9)} GB/s"

    def say_megabytes(self, nbytes: float) -> str:
        """Bytes."""
        return f"{three(nbytes / 1e6)} MB"

    def say_tiny(self, value: float) -> str:
        """An error."""
        return f"{value:.1e}"

    def say_names(self, names: Sequence[object]) -> str:
        """A list; a sentence about an empty one is of the wrong form."""
        words, more = listed(names)
        words = [*words, f"{more} more"] if more else words
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

    def say_word(self, word: str) -> str:
        """A word that a rule chose, such as the name of a family of methods."""
        return gettext(word)

    def say_axis(self, axis: str) -> str:
        """What differs along a series."""
        return {
            "size": gettext("side of the picture"),
            "stride": gettext("stride"),
            "filter": gettext("side of the filter"),
            "channels": gettext("number of channels"),
            "inputs": gettext("number of input channels"),
        }[axis]

    def say_reason(self, data: Any) -> str:
        """How the machine moved, or why there is nothing, as JSON holds it."""
        reason = from_data(data)
        return "" if reason is None else reason.render(gettext)

    def say_workload(self, load: Mapping[str, Any]) -> str:
        """What a series of cases has in common."""
        said = [gettext("batch {n}").format(n=load["n"])] if load.get("n", 1) != 1 else []
        if "pictures" in load:
            said.append(gettext("{size} pixels").format(size=load["pictures"]))
        if "c" in load:
            words = ngettext("{c} channel to {k}", "{c} channels to {k}", load["c"])
            said.append(words.format(c=load["c"], k=load["k"]))
        elif "k" in load:
            said.append(ngettext("{k} output channel", "{k} output channels", load["k"]).format(k=load["k"]))
        if load.get("groups", 1) != 1:
            said.append(gettext("{n} groups").format(n=load["groups"]))
        if "filter" in load:
            said.append(gettext("{size} filter").format(size=load["filter"]))
        if "stride" in load:
            said.append(gettext("stride {n}").format(n=load["stride"]))
        if "layout" in load:
            said.append(load["layout"])
        if load.get("weights"):
            said.append(weights_words(load["weights"]))
        return gettext(", ").join(said)

    def say_stretches(self, stretches: Sequence[Mapping[str, Any]]) -> str:
        """Who is fastest along an axis, in its order."""
        said = []
        for part in stretches:
            first, last = part["first"], part["last"]
            where = f"{first}" if first == last else f"{first} to {last}"
            level = f" (level with others at {self.say_names(part['level'])})" if part["level"] else ""
            said.append(f"{' or '.join(part['methods'])} at {where}{level}")
        return "; ".join(said)

    def say_span(self, span: Mapping[str, Any]) -> str:
        """The least and the most of ratios, each with its case."""
        return self._between(span, self.say_times(span["least"]), self.say_times(span["most"]))

    def say_shares(self, span: Mapping[str, Any]) -> str:
        """The least and the most of shares, each with its case."""
        return self._between(span, self.say_percent(span["least"]), self.say_percent(span["most"]))

    def _between(self, span: Mapping[str, Any], least: str, most: str) -> str:
        low = f"{least} ({span['least_case']})"
        return low if span["least_case"] == span["most_case"] else f"{low} to {most} ({span['most_case']})"

    def say_ratios(self, ratios: Mapping[str, float]) -> str:
        """Names, each with its ratio."""
        return self.say_names([f"{self.say_word(name)} {self.say_times(ratio)}" for name, ratio in ratios.items()])

    def say_split(self, split: Mapping[str, Sequence[str]]) -> str:
        """Where something is faster, slower and level."""
        return "; ".join(f"{order} on {self.say_names(cases)}" for order, cases in split.items() if cases)

    def say_turns(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """By channels, with which square filters something is faster, slower and level."""
        said = []
        for turn in turns:
            runs = [f"{run['order']} at {self._sides(run)}" for run in turn["runs"]]
            word = "channel" if turn["channels"] == [1] else "channels"
            said.append(f"with {self.say_names(turn['channels'])} {word} {', '.join(runs)}")
        return "; ".join(said)

    def _sides(self, run: Mapping[str, Any]) -> str:
        first, last = (f"{run[end]}x{run[end]}" for end in ("first", "last"))
        return first if first == last else f"{first} to {last}"

    def say_related(self, related: Mapping[str, Sequence[str]]) -> str:
        """What grows or falls with something, by the names of those of which that is so."""
        said = {
            "faster": gettext("a shorter time for {names}"),
            "slower": gettext("a longer time for {names}"),
            "neither": gettext("neither a shorter time nor a longer one for {names}"),
            "mixed": gettext("a shorter time or a longer one, by the case, for {names}"),
        }
        found = [said[form].format(names=self.say_names(names)) for form, names in related.items() if names]
        return gettext("; ").join(found)

    def say_groups(self, groups: Mapping[str, Sequence[str]]) -> str:
        """Names, and the cases of each."""
        return "; ".join(f"{name} on {self.say_names(cases)}" for name, cases in groups.items())

    def say_by_stride(self, methods: Mapping[int, Sequence[str]]) -> str:
        """The fastest methods of each stride."""
        return self.say_names([f"{'/'.join(found)} (stride {stride})" for stride, found in methods.items()])


class Chinese(English):
    """Formats a finding's values in Chinese: no plurals, lists with an enumeration comma, brackets of full width.

    Examples
    --------
    >>> from convforge.course.language import in_language
    >>> with in_language("zh"):
    ...     Chinese().format("{b:times}，{c:percent}，{d:names}，{n:each case}", b=1.5, c=0.25, d=["x", "y", "z"], n=2)
    '1.50 倍，25%，x、y 和 z，全部 2 个算例'
    """

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A sentence, with a space between Chinese and Latin letters and none between Chinese ones."""
        said = super().vformat(format_string, args, kwargs)
        return _BESIDE.sub(" ", _BETWEEN.sub("", said))

    def say_each(self, n: int, noun: str) -> str:
        """Each of several, and all of them."""
        return f"这 {counted(n, noun)}" if n == 1 else f"全部 {counted(n, noun)}"

    say_all = say_each

    def say_times(self, ratio: float) -> str:
        """See :class:`English`, as all below."""
        return f"{_ratio(ratio)} 倍"

    def say_percent(self, share: float) -> str:
        return f"{_percent(share)}%"

    def say_names(self, names: Sequence[object]) -> str:
        words, more = listed(names)
        if more:
            return f"{'、'.join(words)} 等 {len(names)} 个"
        return words[0] if len(words) == 1 else f"{'、'.join(words[:-1])} 和 {words[-1]}"

    def say_stretches(self, stretches: Sequence[Mapping[str, Any]]) -> str:
        said = []
        for part in stretches:
            first, last = part["first"], part["last"]
            where = f"{first}" if first == last else f"{first} 到 {last}"
            level = f"（在 {self.say_names(part['level'])} 处与其他方法持平）" if part["level"] else ""
            said.append(f"在 {where} 处为 {' 或 '.join(part['methods'])}{level}")
        return "；".join(said)

    def _between(self, span: Mapping[str, Any], least: str, most: str) -> str:
        low = f"{least}（{span['least_case']}）"
        return low if span["least_case"] == span["most_case"] else f"{low}到 {most}（{span['most_case']}）"

    def say_split(self, split: Mapping[str, Sequence[str]]) -> str:
        orders = {"faster": "更快", "slower": "更慢", "level": "持平", "neither": "看不出关系"}
        return "；".join(f"在 {self.say_names(cases)} 上{orders[order]}" for order, cases in split.items() if cases)

    def say_turns(self, turns: Sequence[Mapping[str, Any]]) -> str:
        orders = {"faster": "更快", "slower": "更慢", "level": "持平"}
        said = []
        for turn in turns:
            runs = [f"{self._sides(run)} 时{orders[run['order']]}" for run in turn["runs"]]
            said.append(f"{self.say_names(turn['channels'])} 个通道，{'，'.join(runs)}")
        return "；".join(said)

    def _sides(self, run: Mapping[str, Any]) -> str:
        first, last = (f"{run[end]}x{run[end]}" for end in ("first", "last"))
        return first if first == last else f"{first} 到 {last}"

    def say_groups(self, groups: Mapping[str, Sequence[str]]) -> str:
        return "；".join(f"{self.say_names(cases)} 上为 {name}" for name, cases in groups.items())

    def say_by_stride(self, methods: Mapping[int, Sequence[str]]) -> str:
        return self.say_names([f"{'/'.join(found)}（步长 {stride}）" for stride, found in methods.items()])


# Language -> its formatter.
FORMATTERS: dict[str, type[English]] = {"en": English, "zh": Chinese}


def counted(n: int, noun: str) -> str:
    """A number of things; nouns stand in the catalogue with their number."""
    return ngettext(*nouns(noun), n).format(n=n)


def nouns(noun: str) -> tuple[str, str]:
    """The messages for one and for many of a thing.

    Examples
    --------
    >>> nouns("case"), nouns("entry")
    (('{n} case', '{n} cases'), ('{n} entry', '{n} entries'))
    """
    return f"{{n}} {noun}", f"{{n}} {noun[:-1]}ies" if noun.endswith("y") else f"{{n}} {noun}s"


def listed(names: Sequence[object]) -> tuple[list[str], int]:
    """The names that a sentence holds, and how many more there are.

    Raises
    ------
    ValueError
        There is none.
    """
    if not names:
        raise ValueError("a sentence names what an empty list holds: its finding should have another form")
    words = [str(name) for name in names]
    return (words, 0) if len(words) <= MOST_NAMES else (words[: MOST_NAMES - 1], len(words) - MOST_NAMES + 1)


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.0f}" if ratio >= 99.5 else f"{ratio:.1f}"


def _percent(share: float) -> str:
    percent = 100 * share
    if percent >= 99.5 and share < 1:
        return f"{min(percent, 99.9):.1f}"
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}" if percent >= 0.1 else f"{percent:.1g}"
