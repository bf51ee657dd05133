"""Reasons as JSON: a form with its values, a bare text that has no translation, or a list of such."""

from __future__ import annotations

import math
from typing import Any

from convforge.errors import JOINED, QUOTED, Reason, Value


def to_data(reason: Reason | None) -> Any:
    """A reason as JSON holds it.

    Examples
    --------
    >>> to_data(Reason("a call takes {time}", time="3 s"))
    {'form': 'a call takes {time}', 'values': {'time': '3 s'}}
    """
    if reason is None:
        return None
    values = dict(reason.values)
    if reason.form == QUOTED:
        return values["text"]
    if reason.form == JOINED:
        first, rest = _data(values["first"]), _data(values["rest"])
        return [first, *rest] if isinstance(rest, list) else [first, rest]
    return {"form": reason.form, "values": {name: _data(value) for name, value in reason.values}}


def from_data(data: Any) -> Reason | None:
    """The reason that :func:`to_data` wrote."""
    return None if data is None else _reason(data)


def _reason(data: Any) -> Reason:
    if isinstance(data, str):
        return Reason.quoted(data)
    if isinstance(data, list):
        return Reason.joined(map(_reason, data)) or Reason.quoted("")
    values = {name: _reason(v) if isinstance(v, dict | list) else v for name, v in data["values"].items()}
    return Reason(data["form"], **values)


def _data(value: Value) -> Any:
    """A value as JSON holds it; infinity and NaN become texts, as JSON has neither."""
    if isinstance(value, Reason):
        return to_data(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
