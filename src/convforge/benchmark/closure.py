"""The code that a class computes with: its own, and every function, class and constant that it names, and they name.

Names are followed through imports, also those inside functions, into the rooms that compute. The contract of methods,
problems and runtimes are left out: they say what is asked and who runs it, and each change of them would mark every
result as stale although no method computes anything else. Nor does the line count that imports from a room that is not
followed: a room that gets another name computes nothing else.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOMS = ("convforge.algorithms.", "convforge.peers.", "convforge.backends.cpu.")
LEFT_OUT = ("convforge.algorithms.contract",)
# Decorators of kernels: of how they compile and keep code only the options count, constants that they name.
DECORATORS = ("convforge.backends.cpu.jit",)
# Members of a class that choose among methods and configs or speak to readers: a config, once chosen, runs the same
# without them. `reads` refuses arrays.
SAID = ("refuses", "configs", "summary", "since", "reads", "cost", "work_for", "look", "preference",
        "preference_for")  # fmt: skip

Name = tuple[str, str]


class Tree(NamedTuple):
    """Folders of modules: the package's, and another folder that one of its packages may have."""

    root: Path
    package: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a module: its text without comments, docstrings and blank lines, and what it names.

    Attributes
    ----------
    text : str
    names : frozenset of str
        Names in it, and attributes of names: "block_of_items", "cpu.naive".
    imports : dict
        Name within the statement -> module and name there, as of :attr:`Module.imports`.
    """

    text: str
    names: frozenset[str]
    imports: dict[str, Name]


@dataclass(slots=True)
class Module:
    """A file of Python.

    Attributes
    ----------
    statements : dict
        Name -> the statements that bind it; "" -> those that bind none, such as a call.
    imports : dict
        Name -> (module, name there); the latter is empty where it is a module.
    """

    path: Path
    statements: dict[str, list[Statement]] = field(default_factory=dict)
    imports: dict[str, Name] = field(default_factory=dict)


def closure(root: Path, path: Path, module: str, name: str) -> dict[Path, list[str]]:
    """Texts by file, of all that a class or a function computes with.

    Parameters
    ----------
    root : Path
        The package's folder.
    path : Path
        The file of `module`, which may lie elsewhere.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    tree = Tree(root, module.rpartition(".")[0], path.parent)
    files = {module: path}
    texts: dict[Path, list[str]] = {}
    seen: set[Name] = set()
    waiting = [(module, name)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        file = files.get(at[0]) or _file(tree, at[0])
        if file is None:  # another library's
            texts.setdefault(path, []).append(f"import {'.'.join(filter(None, at))}")
            continue
        found = _read(tree, file)
        if at[1] in found.imports:
            waiting += _followed(found.imports[at[1]])
            continue
        constants_alone = at[0] in DECORATORS
        for statement in [*found.statements.get(at[1], ()), *found.statements.get("", ())]:
            if not constants_alone or at[1].isupper():
                texts.setdefault(file, []).append(statement.text)
            for used in statement.names:
                waiting += _targets(tree, at[0], found, statement, used, constants_alone)
    return {file: sorted(set(parts)) for file, parts in sorted(texts.items())}


def _targets(
    tree: Tree, module: str, found: Module, statement: Statement, used: str, constants_alone: bool
) -> Iterator[Name]:
    """Yield the modules and names that define the names of a statement, as far as they are followed."""
    first, _, attribute = used.partition(".")
    if constants_alone:
        if first.isupper() and first in found.statements:
            yield module, first
        return
    target = statement.imports.get(first) or found.imports.get(first)
    if target is None:
        if first in found.statements:
            yield module, first
        return
    if target[1] == "" and _file(tree, target[0]) is not None:
        if attribute:
            yield from _followed((target[0], attribute))
        return
    yield from _followed(target)


def _followed(target: Name) -> Iterator[Name]:
    """A name of ours where it is in a room that computes; any of another library's."""
    ours = target[0] == "convforge" or target[0].startswith("convforge.")
    if not ours or (f"{target[0]}.".startswith(ROOMS) and target[0] not in LEFT_OUT):
        yield target


def _file(tree: Tree, module: str) -> Path | None:
    """Of a module of the package; None for those of other libraries."""
    parts = module.split(".")
    if parts[0] != "convforge":
        return None
    places = [tree.root.joinpath(*parts[1:])]
    if module.rpartition(".")[0] == tree.package:
        places.append(tree.folder / parts[-1])
    files = (file for path in places for file in (path / "__init__.py", path.with_suffix(".py")))
    return next((file for file in files if file.is_file()), None)


@cache
def _read(tree: Tree, path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    syntax, lines = ast.parse(text), _without_comments(text)
    found = Module(path)
    for node in syntax.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports |= dict(_imports(tree, node))
        elif not (_is_docstring(node) or _is_for_types(node)):
            statement = _statement(tree, node, lines)
            for name in sorted(_bound(node) | ({""} if _registers(node) else set())) or [""]:
                found.statements.setdefault(name, []).append(statement)
    return found


def _statement(tree: Tree, node: ast.stmt, lines: list[str]) -> Statement:
    classes = (parent for parent in ast.walk(node) if isinstance(parent, ast.ClassDef))
    dropped: dict[int, ast.AST] = {id(inner): inner for parent in classes for inner in parent.body if _is_said(inner)}
    for parent in ast.walk(node):
        if isinstance(parent, ast.FunctionDef | ast.ClassDef) and _is_docstring(parent.body[0]):
            dropped[id(parent.body[0])] = parent.body[0]
    unsaid = [*dropped.values(), *(inner for inner in ast.walk(node) if _leads_out(tree, inner))]
    gone = {line for inner in unsaid for line in range(_first(inner), inner.end_lineno + 1)}  # type: ignore[attr-defined]
    kept = [lines[i - 1] for i in range(_first(node), (node.end_lineno or node.lineno) + 1) if i not in gone]
    names, imports = set[str](), dict[str, Name]()
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if id(inner) in dropped:
            continue
        if isinstance(inner, ast.Import | ast.ImportFrom):
            imports |= dict(_imports(tree, inner))
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            names.add(f"{inner.value.id}.{inner.attr}")
        elif isinstance(inner, ast.Name):
            names.add(inner.id)
        else:
            waiting += ast.iter_child_nodes(inner)
    return Statement("\n".join(line for line in kept if line), frozenset(names), imports)


def _imports(tree: Tree, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Name]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, (whole, "")
        else:
            module = f"{node.module}.{alias.name}"
            is_module = _file(tree, module) is not None
            yield alias.asname or alias.name, (module, "") if is_module else (str(node.module), alias.name)


def _leads_out(tree: Tree, node: ast.AST) -> bool:
    """True if an import brings nothing that is followed."""
    targets = [target for _, target in _imports(tree, node)] if isinstance(node, ast.Import | ast.ImportFrom) else []
    return bool(targets) and not any(found for target in targets for found in _followed(target))


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {
        inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    } | {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef | ast.ClassDef)}


def _registers(node: ast.stmt) -> bool:
    """True if a decorator registers a definition with a library, such as ``@overload(f)``: nobody need name it."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    calls = [d.func for d in decorators if isinstance(d, ast.Call)]
    return any(not (isinstance(call, ast.Name) and call.id == "dataclass") for call in calls)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_said(node: ast.AST) -> bool:
    """True if a member of a class is one of :data:`SAID`."""
    if isinstance(node, ast.FunctionDef):
        return node.name in SAID
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id in SAID for target in targets)


def _first(node: ast.AST) -> int:
    """The first line of a statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    return int(min([node.lineno, *(d.lineno for d in decorators)]))  # type: ignore[attr-defined]


def _without_comments(text: str) -> list[str]:
    """Lines without comments and without blanks at their ends."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for line in lines]
