# make demo · make test · make test-slow · make lint · make bench
# PYTHON is the interpreter that makes the environment; everything else runs inside .venv.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.installed
RUN := $(VENV)/bin/python -m

.PHONY: help demo test test-slow lint format bench bench-gpu study-gpu clean

help:
	@echo "make demo       set up, draw scenes, train CLIP and DiffCLIP, evaluate both, write runs/demo/report.html"
	@echo "make test       set up if needed, then the tests (minutes)"
	@echo "make test-slow  the tests that need real kills or minutes"
	@echo "make lint       ruff, format check, strict types"
	@echo "make bench      speed of attention and of a training step on this machine, into benchmarks/results/"

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
	$(RUN) benchmarks.training

# On a machine with a GPU, with its own interpreter and packages: make bench-gpu PYTHON=python3 DATA=… OUT=…
# (DEVICE=cpu rehearses them without one.)
DATA ?= ../shared/data
OUT ?= benchmarks/results
DEVICE ?= cuda
BARE := PYTHONPATH=src $(PYTHON) -m

bench-gpu:
	$(BARE) benchmarks.parity --device $(DEVICE) --output $(OUT)
	$(BARE) benchmarks.attention --device $(DEVICE) --dtype bfloat16 --output $(OUT)
	$(BARE) benchmarks.training --device $(DEVICE) --output $(OUT)
	$(BARE) benchmarks.training --device $(DEVICE) --compile --output $(OUT)

study-gpu:
	$(BARE) benchmarks.study --data $(DATA) --runs $(OUT)/runs --output $(OUT)/study --seeds 0 1 2 3 4 \
		--models CLIP DiffCLIP DiffCLIP-dynamic DiffCLIP-vision
	tar -C $(OUT) -czf $(OUT)/study.tgz study && rm -r $(OUT)/study $(OUT)/runs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,eval,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) runs/demo
