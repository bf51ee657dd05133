"""Reasons as JSON: a form with its values, an untranslated text, or a list of these."""

from __future__ import annotations

import math
from typing import Any

from convforge.errors import JOINED, QUOTED, Reason, Value


def to_data(reason: Reason | None) -> Any:
    """Convert a reason to JSON data, such as {"form": "a call takes {time}", "values": {"time": "3 s"}}."""
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
    """Convert the output of :func:`to_data` back to a reason."""
    if data is None or isinstance(data, str):
        return None if data is None else Reason.quoted(data)
    if isinstance(data, list):
        return Reason.joined(reason for part in data if (reason := from_data(part)) is not None)
    values: Any = {name: from_data(v) if isinstance(v, dict | list) else v for name, v in data["values"].items()}
    return Reason(data["form"], **values)


def _data(value: Value) -> Any:
    """Convert a value to JSON data; infinity and NaN become texts, because JSON has neither."""
    if isinstance(value, Reason):
        return to_data(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
