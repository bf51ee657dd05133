"""The directives of the kernels' pages: what can be made from the sources, the stored results and a traced run.

    ```{kernel} direct_shared
    n1c1h24w24_k1r3s3_st1_p1_f32_nchw block_x=8,block_y=4,per_p=2
    ```

makes all of a page of a GPU's kernel but its title and its prose. Its content are the pictures, a line each: a problem,
a config where it is not the default that is drawn, and ``of=KERNEL`` where it is not the last launch; a kernel that the
emulator cannot run has none. The option ``typical`` is the problem for which the parameters' defaults are given.

``{cpu-methods} FOLDER`` makes the rest of a page of CPU methods, and ``{kernel-index}`` the tables of all pages.

    ```{published} C
    :study: stride
    :rules: ahead, im2col-against-direct
    ```

is a table that others published beside what is stored of ours, with what the rules of a study say of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from kernel_pages import DRAWN, cpu_sections, gpu_sections, kernel_files, link, on_cpu, on_gpu, table
from published import page_of
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Generated(SphinxDirective):
    """A directive that stands for Markdown."""

    @property
    def up(self) -> str:
        """The way from the page's folder to the repository's."""
        return "../" * (self.env.docname.count("/") + 1)

    def sections(self, parts: Iterable[tuple[str, str]]) -> list[nodes.Node]:
        """Sections by title and text; one without a title comes as it is."""
        found: list[nodes.Node] = []
        for title, text in parts:
            content = self.parse_text_to_nodes(text)
            if not title:
                found += content
                continue
            section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
            section += [nodes.title(title, title), *content]
            found.append(section)
        return found


class Kernel(Generated):
    """See the module."""

    has_content = True
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"typical": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """All but the title and the prose."""
        method = next((a for a in on_gpu() if a.name == self.arguments[0]), None)
        if method is None:
            raise self.error(f"there is no kernel {self.arguments[0]!r}")
        for path in kernel_files(method):
            self.env.note_dependency(str(path))
        found = self.sections(gpu_sections(method, self.options.get("typical", ""), self.up, bool(self.content)))
        if not self.content:
            return found
        drawn = next(node for node in found if isinstance(node, nodes.section) and nodes.make_id(DRAWN) in node["ids"])
        drawn += self._pictures(method)
        return found

    def _pictures(self, method: Any) -> Iterator[nodes.Node]:
        from kernel_pictures import picture

        from convforge.course.traces import trace
        from convforge.problem import parse_problem

        for line in filter(None, self.content):
            problem, *rest = line.split()
            kernel = next((word.removeprefix("of=") for word in rest if word.startswith("of=")), "")
            config = next((word for word in rest if not word.startswith("of=")), "")
            try:
                traced = trace(parse_problem(problem), method.name, config)
            except (ValueError, RuntimeError) as fault:
                raise self.error(f"{line}: {fault}") from None
            if not traced.is_right:
                raise self.error(f"{method.name} is wrong on {problem}, so that it is not drawn")
            yield nodes.raw("", picture(traced, kernel).html(), format="html")


class CpuMethods(Generated):
    """See the module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """All but the title and the prose."""
        if self.arguments[0] not in on_cpu():
            raise self.error(f"there are no CPU methods in {self.arguments[0]!r}")
        return self.sections(cpu_sections(self.arguments[0], self.up))


class KernelIndex(Generated):
    """See the module."""

    def run(self) -> list[nodes.Node]:
        """A table of the GPU's kernels and one of the CPU's methods."""
        gpu = [(link(a.name), a.operation, a.since or "", a.summary) for a in on_gpu()]
        cpu = [
            (f"[{folder}](/kernels/cpu/{folder}.md)", ", ".join(a.name for a in methods))
            for folder, methods in on_cpu().items()
        ]
        return self.sections([
            ("On the GPU", table(("kernel", "operation", "builds on", "in one line"), gpu)),
            ("On the CPU", table(("page", "methods"), cpu)),
        ])  # fmt: skip


class PublishedTable(Generated):
    """See the module."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "study": directives.unchanged_required,
        "rules": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """What it is, its doubts, the table, the findings."""
        rules = [rule.strip() for rule in self.options["rules"].split(",")]
        return self.parse_text_to_nodes(page_of(self.arguments[0], self.options["study"], rules))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("kernel", Kernel)
    app.add_directive("cpu-methods", CpuMethods)
    app.add_directive("kernel-index", KernelIndex)
    app.add_directive("published", PublishedTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
