"""Reasons as JSON: a form with its values, a bare text that has no translation, or a list of such."""

from __future__ import annotations

import math
from typing import Any

from convforge.errors import JOINED, QUOTED, Reason, Value


def to_data(reason: Reason | None) -> Any:
    """A reason as JSON holds it, such as {"form": "a call takes {time}", "values": {"time": "3 s"}}."""
    if reason is None:
        return None
    values = {name: _data(value) for name, value in reason.values}
    if reason.form == QUOTED:
        return values["text"]
    if reason.form == JOINED:
        rest = values["rest"]
        return [values["first"], *(rest if isinstance(rest, list) else [rest])]
    return {"form": reason.form, "values": values}


def from_data(data: Any) -> Reason | None:
    """The reason that :func:`to_data` wrote."""
    if data is None or isinstance(data, str):
        return None if data is None else Reason.quoted(data)
    if isinstance(data, list):
        return Reason.joined(reason for part in data if (reason := from_data(part)) is not None)
    values: Any = {name: from_data(v) if isinstance(v, dict | list) else v for name, v in data["values"].items()}
    return Reason(data["form"], **values)


def _data(value: Value) -> Any:
    """A value as JSON holds it; infinity and NaN become texts, as JSON has neither."""
    if isinstance(value, Reason):
        return to_data(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
