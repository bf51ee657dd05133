"""The directive ``command``: run a `convforge` command while the page is built, and show it with what it printed.

    ```{command} convforge explain n1c3h64w64_k1r3s3_st1_p1_f32_nchw
    ```

All commands of a page run in one temporary folder, so that one can use the files of another. From the start it holds a
photograph, astronaut.png, a stack of planes, stacks/cells.npy, the students' files of examples/, and the files that
`example_files` has for the page. The option ``exit`` says which exit code is expected (0 by default); any other fails
the build. The option ``picture`` names a file that the command wrote, to be shown below.

The directive ``script`` has lines of bash as its content and runs them in the same folder, where `convforge` is the
checkout's; the block is shown with what it printed below.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from example_files import OF_PAGE
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# What the installed script does.
_RUN = "import sys; from convforge.cli import main; sys.argv = ['convforge', *sys.argv[1:]]; main()"
_COLUMNS = 116
_TIMEOUT_S = 600

_folders: dict[str, Path] = {}


class Command(SphinxDirective):
    """See the module."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "exit": directives.nonnegative_int,
        "picture": directives.unchanged,
        "alt": directives.unchanged,
        "last-lines": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        """The console block, and the picture where one is asked for."""
        line = " ".join(self.arguments[0].split())
        words = shlex.split(line)
        if words[0] != "convforge":
            raise self.error(f"only convforge's own commands are run; got {words[0]!r}")
        folder = _folder(self.env.docname)
        try:
            done = _run(words[1:], folder)
        except subprocess.TimeoutExpired:
            raise self.error(f"`{line}` took more than {_TIMEOUT_S} s") from None
        expected = self.options.get("exit", 0)
        if done.returncode != expected:
            raise self.error(f"`{line}` ended with {done.returncode}, not {expected}:\n{done.stdout}")
        output = [text.rstrip().replace(f"{folder}/", "") for text in done.stdout.rstrip().splitlines()]
        if last := self.options.get("last-lines"):
            output = ["...", *output[-last:]] if len(output) > last else output
        block = nodes.literal_block("", "\n".join([f"$ {line}", *output]), language="console")
        self.set_source_info(block)
        return [block, *self._picture(folder)]

    def _picture(self, folder: Path) -> list[nodes.Node]:
        name = self.options.get("picture")
        if name is None:
            return []
        if not (folder / name).is_file():
            raise self.error(f"the command wrote no {name}")
        target = Path(self.env.srcdir) / "_build" / "commands" / f"{self.env.docname.replace('/', '-')}-{name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target)
        uri = "/" + target.relative_to(self.env.srcdir).as_posix()
        image = nodes.image(uri=uri, alt=self.options.get("alt", name))
        return [image]


class Script(SphinxDirective):
    """See the module."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"exit": directives.nonnegative_int}

    def run(self) -> list[nodes.Node]:
        """The block, and what it printed."""
        folder, text = _folder(self.env.docname), "\n".join(self.content)
        try:
            done = run_script(text, folder)
        except subprocess.TimeoutExpired:
            raise self.error(f"the script took more than {_TIMEOUT_S} s") from None
        expected = self.options.get("exit", 0)
        if done.returncode != expected:
            raise self.error(f"the script ended with {done.returncode}, not {expected}:\n{done.stdout}")
        found: list[nodes.Node] = [nodes.literal_block("", text, language="bash")]
        if output := done.stdout.rstrip().replace(f"{folder}/", ""):
            found.append(nodes.literal_block("", output, language="text"))
        for block in found:
            self.set_source_info(block)
        return found


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run lines of bash in a folder; the first that fails ends them."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    program = programs / "convforge"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{_RUN}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = _environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def _folder(docname: str) -> Path:
    """The folder of a page's commands."""
    if docname not in _folders:
        from convforge.imaging.photographs import PHOTOGRAPHS

        spec = importlib.util.find_spec("skimage")
        if spec is None or spec.origin is None:
            raise RuntimeError("the pages filter a photograph of scikit-image: pip install 'convforge[dev,docs]'")
        _folders[docname] = Path(tempfile.mkdtemp(prefix="convforge-docs-"))
        source = Path(spec.origin).parent / "data" / PHOTOGRAPHS["astronaut"]
        shutil.copyfile(source, _folders[docname] / "astronaut.png")
        (_folders[docname] / "stacks").mkdir()
        planes = np.add.outer(np.arange(200), np.add.outer(np.arange(25), np.arange(25)))
        np.save(_folders[docname] / "stacks" / "cells.npy", planes.astype(np.uint8))
        for example in (Path(__file__).parents[2] / "examples").glob("student_*"):
            shutil.copyfile(example, _folders[docname] / example.name)
        if docname in OF_PAGE:
            OF_PAGE[docname](_folders[docname])
    return _folders[docname]


def _run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder; both of its streams in the order in which they came."""
    return subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], cwd=folder, env=_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    return os.environ | {"COLUMNS": str(_COLUMNS), "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


def _remove_folders(app: Sphinx, exception: Exception | None) -> None:
    while _folders:
        shutil.rmtree(_folders.popitem()[1], ignore_errors=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("command", Command)
    app.add_directive("script", Script)
    app.connect("build-finished", _remove_folders)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
