"""The public names are those that are documented, and importing them loads nothing heavy."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import convforge

PUBLIC = {
    "Conv2dProblem",
    "Epilogue",
    "Filter",
    "GemmProblem",
    "Pool2dProblem",
    "Quantization",
    "UnsupportedProblem",
    "algorithms",
    "conv2d",
    "filter",
    "filter_large",
    "filter_many",
    "gemm",
    "max_pool2d",
    "parse_problem",
    "relu",
}

HEAVY = (
    "PIL",
    "altair",
    "cv2",
    "dask",
    "imagecodecs",
    "jinja2",
    "numba",
    "rich",
    "scipy",
    "skimage",
    "tensorstore",
    "tifffile",
    "torch",
    "typer",
)


def test_all_is_the_public_interface() -> None:
    assert set(convforge.__all__) == PUBLIC
    assert len(convforge.__all__) == len(PUBLIC), "no name twice"
    assert convforge.__all__ == sorted(convforge.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(convforge, name)
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name}("), f"{name} has the docstring that dataclasses make up"
    assert len(text.splitlines()[0]) <= 120
    assert value.__module__.startswith("convforge.")


@pytest.mark.parametrize(
    "name", ["conv2d", "filter", "filter_large", "filter_many", "max_pool2d", "relu", "gemm", "algorithms", "Filter"]
)
def test_what_users_call_has_an_example_and_names_its_arguments(name: str) -> None:
    value = getattr(convforge, name)
    text = inspect.getdoc(value) or ""
    assert ">>> " in text
    for argument, parameter in inspect.signature(value).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:  # those are taken to refuse them in words
            assert argument in text, f"{name} says nothing of {argument}"


def test_a_star_import_brings_the_public_names_alone() -> None:
    names: dict[str, object] = {}
    exec("from convforge import *", names)
    assert set(names) - {"__builtins__"} == PUBLIC


def test_nothing_public_is_left_out_of_all() -> None:
    """Names without an underscore that are not submodules are in __all__."""
    stray = {
        name
        for name, value in vars(convforge).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in PUBLIC
    }
    assert not stray


def test_the_version_is_the_package_s() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert convforge.__version__ == project["project"]["version"]


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded in the end, beside those that Python itself loads."""
    code = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_importing_loads_none_of_the_parts() -> None:
    loaded = loaded_by("import convforge")
    assert {name for name in loaded if name.startswith("convforge")} == {
        *("convforge", "convforge.backends", "convforge.backends.forks"),
    }
    outside = {name.partition(".")[0] for name in loaded} - {"convforge"}
    assert outside <= set(sys.stdlib_module_names), "nothing but Python's own library"


def test_the_functions_load_numpy_and_no_other_library_that_computes() -> None:
    loaded = loaded_by("import convforge; convforge.conv2d, convforge.Filter")
    outside = {name.partition(".")[0] for name in loaded} - {"convforge"}
    assert outside - set(sys.stdlib_module_names) == {"numpy", "platformdirs"}
    assert not {
        name for name in loaded if name.startswith(("convforge.imaging.pipeline", "convforge.verify", "convforge.cli"))
    }


def test_names_are_the_functions_whatever_was_imported_before() -> None:
    """One folder of the package has the name of a function."""
    code = (
        "import convforge.algorithms, convforge; from convforge.algorithms import find; convforge.algorithms().__len__"
    )
    assert "convforge.api" in loaded_by(code)
    assert "convforge.api" in loaded_by("import convforge; convforge.conv2d; convforge.algorithms().__len__")


@pytest.mark.parametrize("module", ["convforge", "convforge.cli.filter"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = [name for name in HEAVY if not (name == "typer" and module.startswith("convforge.cli"))]
    code = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


def test_nothing_heavy_is_loaded_by_describing_and_planning_nothing() -> None:
    code = (
        "import sys, convforge; convforge.parse_problem('n1c3h64w64_k8r3s3_f32_nchw'); "
        f"convforge.algorithms(); print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []
