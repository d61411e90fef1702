# make demo · make test · make test-slow · make lint · make bench
# PYTHON is the interpreter that makes the environment; everything else runs inside .venv.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.installed
RUN := $(VENV)/bin/python -m

.PHONY: help demo test test-slow lint format bench clean

help:
	@echo "make demo       set up, draw scenes, train CLIP and DiffCLIP, evaluate both, write runs/demo/report.html"
	@echo "make test       set up if needed, then the tests (minutes)"
	@echo "make test-slow  the tests that need real kills or minutes"
	@echo "make lint       ruff, format check, strict types"
	@echo "make bench      speed of attention on this machine, into benchmarks/results/"

demo: $(READY)
	$(VENV)/bin/diffclip demo --folder runs/demo

test: $(READY)
	$(RUN) pytest -m "not slow" -n 2

test-slow: $(READY)
	$(RUN) pytest -m slow

lint: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format: $(READY)
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: $(READY)
	$(RUN) benchmarks.attention

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,eval,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) runs/demo
