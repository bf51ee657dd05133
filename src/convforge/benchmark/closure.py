"""Find the code that a class computes with: its own, and recursively all functions, classes and constants used.

Names are followed through imports, including those inside functions, into the packages that compute. The contract of
methods, the problems and the runtimes are left out: they describe a problem or run a method but compute nothing, and
each change of them would mark every result as stale. The line of an import that is not followed is left out too, so
that renaming a package changes no digest.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("convforge.algorithms.", "convforge.peers.", "convforge.backends.cpu.")
LEFT_OUT = ("convforge.algorithms.contract",)
# Modules of the decorators of kernels. Only their constants count, the options; not how they compile and store code.
DECORATORS = ("convforge.backends.cpu.jit",)
# Members of a class that choose among methods and configs or describe them: they do not change how a given config
# runs. `reads` refuses arrays; stored results have the versions of libraries beside the digest.
DESCRIBING = ("refuses", "configs", "summary", "since", "reads", "cost", "work_for", "look", "preference",
              "preference_for", "nan_spread", "versions")  # fmt: skip

Name = tuple[str, str]  # module, and name in it; an empty name is the module itself


class Tree(NamedTuple):
    """Folders that hold modules: the package's root, and `folder`, a further one of its subpackage `package`."""

    root: Path
    package: str
    folder: Path

    def file(self, module: str) -> Path | None:
        """The file of a module of this package; None for modules of other libraries."""
        parts = module.split(".")
        if parts[0] != "convforge":
            return None
        places = [self.root.joinpath(*parts[1:])]
        if module.rpartition(".")[0] == self.package:
            places.append(self.folder / parts[-1])
        files = (file for path in places for file in (path / "__init__.py", path.with_suffix(".py")))
        return next((file for file in files if file.is_file()), None)

    def imports(self, node: ast.AST) -> Iterator[tuple[str, Name]]:
        """Yield each name that an import binds, with the (module, name) to which it refers."""
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return
        for alias in node.names:
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, (whole, "")
            else:
                module = f"{node.module}.{alias.name}"
                is_module = self.file(module) is not None
                yield alias.asname or alias.name, (module, "") if is_module else (str(node.module), alias.name)


class Statement(NamedTuple):
    """A statement of a module: its text without comments, docstrings and blank lines, and the names that it uses."""

    text: str
    names: frozenset[str]  # names and attributes of names: "block_of_items", "cpu.naive"
    imports: dict[str, Name]


class Module(NamedTuple):
    """A Python file: its statements by the names that they bind. Key "" has those that bind none, such as a call."""

    statements: dict[str, list[Statement]]
    imports: dict[str, Name]


def closure(root: Path, path: Path, module: str, name: str) -> dict[Path, list[str]]:
    """File -> texts of all statements that a class or a function computes with.

    `root` is the package's folder. `path` is the file of `module`, which may be outside of it.
    """
    tree = Tree(root, module.rpartition(".")[0], path.parent)
    texts: dict[Path, list[str]] = {}
    seen: set[Name] = set()
    waiting = [(module, name)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        file = path if at[0] == module else tree.file(at[0])
        if file is None:  # module of another library
            texts.setdefault(path, []).append(f"import {'.'.join(filter(None, at))}")
            continue
        found = _read(tree, file)
        if at[1] in found.imports:
            waiting += _followed(found.imports[at[1]])
            continue
        for statement in [*found.statements.get(at[1], ()), *found.statements.get("", ())]:
            if at[0] not in DECORATORS or at[1].isupper():
                texts.setdefault(file, []).append(statement.text)
            for used in statement.names:
                waiting += _targets(tree, at[0], found, statement, used)
    return {file: sorted(set(parts)) for file, parts in sorted(texts.items())}


def _targets(tree: Tree, module: str, found: Module, statement: Statement, used: str) -> list[Name]:
    """The (module, name) of the definition of a name that a statement uses; empty if it is not followed."""
    first, _, attribute = used.partition(".")
    constants_alone = module in DECORATORS
    target = None if constants_alone else statement.imports.get(first) or found.imports.get(first)
    if target is None:
        return [(module, first)] if first in found.statements and (first.isupper() or not constants_alone) else []
    if target[1] == "" and tree.file(target[0]) is not None:
        return _followed((target[0], attribute)) if attribute else []
    return _followed(target)


def _followed(target: Name) -> list[Name]:
    """The name in a list if it is followed: those in our computing packages, and all of other libraries."""
    ours = f"{target[0]}.".startswith("convforge.")
    return [target] if not ours or (f"{target[0]}.".startswith(PACKAGES) and target[0] not in LEFT_OUT) else []


@cache
def _read(tree: Tree, path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    lines, found = _without_comments(text), Module({}, {})
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.update(tree.imports(node))
        elif not (_is_docstring(node) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")):
            statement = _statement(tree, node, lines)
            for name in sorted(_bound(node)) or [""]:
                found.statements.setdefault(name, []).append(statement)
    return found


def _statement(tree: Tree, node: ast.stmt, lines: list[str]) -> Statement:
    every = list(ast.walk(node))
    dropped = [n for parent in every if isinstance(parent, ast.ClassDef) for n in parent.body if _describes(n)]
    definitions = [n for n in every if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    dropped += [n.body[0] for n in definitions if _is_docstring(n.body[0])]
    # Imports of which no name is followed.
    outside = [n for n in every if isinstance(n, ast.Import | ast.ImportFrom)
               and not any(_followed(target) for _, target in tree.imports(n))]  # fmt: skip
    gone = {line for n in [*dropped, *outside] for line in _lines(n)}
    names, imports = set[str](), dict[str, Name]()
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if inner in dropped:
            continue
        imports |= dict(tree.imports(inner))
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            names.add(f"{inner.value.id}.{inner.attr}")
        elif isinstance(inner, ast.Name):
            names.add(inner.id)
        else:
            waiting += ast.iter_child_nodes(inner)
    kept = (lines[i - 1] for i in _lines(node) if i not in gone)
    return Statement("\n".join(filter(None, kept)), frozenset(names), imports)


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds. Also "" for a decorator with arguments, which may register it without any name."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        calls = (decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call))
        registers = any(not (isinstance(call, ast.Name) and call.id == "dataclass") for call in calls)
        return {node.name} | ({""} if registers else set())
    every = list(ast.walk(node))
    stored = {inner.id for inner in every if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
    return stored | {inner.name for inner in every if isinstance(inner, ast.FunctionDef | ast.ClassDef)}


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _describes(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.Assign | ast.AnnAssign) and not _bound(node).isdisjoint(DESCRIBING)


def _lines(node: ast.stmt) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _without_comments(text: str) -> list[str]:
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for line in lines]
