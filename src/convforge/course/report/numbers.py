"""Numbers as the page prints them: three significant digits, a unit, no exponent a reader must decode."""

from __future__ import annotations

import math

from convforge.course.language import gettext

MISSING = "–"


def three(value: float) -> str:
    """Three significant digits, never with an exponent.

    Examples
    --------
    >>> three(0.0012345), three(12.345), three(12345.0), three(9.996), three(0.0)
    ('0.00123', '12.3', '12345', '10.0', '0')
    """
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    # Rounded first: 9.996 has three digits as 10.0, not as 10.00.
    exponent = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{value:.{max(2 - exponent, 0)}f}"


def seconds(value: float) -> str:
    """A time with its unit.

    Examples
    --------
    >>> seconds(9.8e-3), seconds(1.2345e-4), seconds(3.2e-7), seconds(2.5)
    ('9.80 ms', '123 us', '320 ns', '2.50 s')
    """
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def byte_count(value: float) -> str:
    """Bytes with a binary unit; whole ones without digits behind the point.

    Examples
    --------
    >>> byte_count(0), byte_count(512 << 10), byte_count(1.5 * 2**30)
    ('0 B', '512 KiB', '1.50 GiB')
    """
    units = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    for scale, unit in units:
        if abs(value) >= scale:
            scaled = value / scale
            return f"{scaled:.0f} {unit}" if scaled == round(scaled) else f"{three(scaled)} {unit}"
    return f"{value:.0f} B"


def ratio(value: float) -> str:
    """A ratio of times.

    Examples
    --------
    >>> ratio(1.834), ratio(0.613), ratio(52.4)
    ('1.83x', '0.61x', '52.4x')
    """
    return f"{value:.2f}x" if value < 10 else f"{three(value)}x"


def tiny(value: float) -> str:
    """An error, with two digits.

    Examples
    --------
    >>> tiny(6.123e-8), tiny(0.0)
    ('6.1e-8', '0')
    """
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def fraction(value: float) -> str:
    """A share that may be tiny.

    Examples
    --------
    >>> fraction(0.174), fraction(2.41e-6), fraction(52000.0)
    ('0.174', '2.4e-6', '52000')
    """
    return tiny(value) if 0 < value < 1e-3 else three(value)


def percent(value: float) -> str:
    """A share of one.

    Examples
    --------
    >>> percent(0.0123), percent(0.873)
    ('1.2 %', '87 %')
    """
    digits = f"{100 * value:.1f}" if abs(value) < 0.0995 else f"{100 * value:.0f}"
    return gettext("{n} %").format(n=digits)


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in units:
        if abs(value) >= 0.9995 * scale:
            return f"{three(value / scale)} {unit}"
    return f"{three(value / units[-1][0])} {units[-1][1]}"
