# Everything a newcomer or CI runs. Each target makes the virtual environment and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
OUT ?= out
# For GPUs: the extra that the driver takes (cuda13, or cuda12 for older ones), the device, and what gpu-bench measures.
CUDA ?= cuda13
DEVICE ?= cuda
GPU_WORKERS ?= 4
PARTS ?=
PART ?=
BUDGET ?=
BIN := $(VENV)/bin

# Python compiles what it imports, and keeps that, or every process of the tests would compile it again; pip would compile
# all that it installs, on one core, most of which is never imported.
unexport PYTHONDONTWRITEBYTECODE
export PIP_COMPILE ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: demo test test-all check bench gpu-test gpu-sanitize gpu-bench docs format words clean

# Edge-detect a photograph with every method, run the image workload, write out/report.html.
demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py --out $(OUT)

# Lint, types, the test suite, the examples in the docstrings. Types are checked beside the tests, on one core, and what
# is found stands behind theirs.
test: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & types=$$!; failed=0; \
	echo '$(BIN)/pytest --numprocesses auto --dist worksteal -m "not thorough"'; \
	$(BIN)/pytest --numprocesses auto --dist worksteal -m "not thorough" || failed=1; \
	wait $$types || failed=1; echo '$(BIN)/mypy'; cat $(VENV)/mypy.log; exit $$failed

# What takes long besides: kernels compiled for every architecture, the rest of the largest grids of tests, installs in
# empty environments. PART=2/3 is the second of three parts of that.
test-all: test
	$(BIN)/pytest --numprocesses auto --dist worksteal -m thorough $(if $(PART),--part $(PART))

check: test-all docs

# The results behind README's table and the docs' figures; several minutes.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# All cases on an NVIDIA GPU, in both layouts, by every method; streams, several GPUs, large sizes; the sanitizer.
gpu-test: $(VENV)/.gpu
	$(BIN)/pytest tests/gpu --numprocesses $(GPU_WORKERS) --dist worksteal

# compute-sanitizer alone: memcheck, racecheck, initcheck, synccheck.
gpu-sanitize: $(VENV)/.gpu
	$(BIN)/pytest tests/gpu/test_sanitizer.py

# The results of an NVIDIA GPU, in parts: make gpu-bench PARTS="images blocks gemm layers-b32" BUDGET=7m
gpu-bench: $(VENV)/.gpu
	$(BIN)/python benchmarks/run.py $(PARTS) --device $(DEVICE) --budget '$(BUDGET)'

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# The catalogues of other languages, after a change of a text: what is new stands in them untranslated.
words: $(VENV)/.dev
	$(BIN)/python -m tests.course.language.messages

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) $(OUT) docs/_build dist

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "convforge needs Python 3.11 or later; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/.gpu: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --editable '.[dev,gpu-dev,$(CUDA)]'
	touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --editable '.[dev,docs]'
	touch $(VENV)/.dev $@
