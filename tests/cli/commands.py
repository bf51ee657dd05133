"""The result of a command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    def line(self, name: str) -> str:
        """Return the line of the report called `name`."""
        found = [line[12:] for line in self.out.splitlines() if line[:12].strip() == name]
        assert len(found) == 1, f"{name!r} occurs {len(found)} times in\n{self.out}"
        return found[0]

    @property
    def rows(self) -> dict[str, list[str]]:
        """The cells of every row of its boxed tables, by the first cell."""
        lines = [line for line in self.out.splitlines() if line.startswith("│")]
        cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
        assert len({row[0] for row in cells}) == len(cells), f"a row is folded or occurs twice in\n{self.out}"
        return {row[0]: row[1:] for row in cells}
