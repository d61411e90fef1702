# make demo · make test · make test-slow · make lint · make bench
# PYTHON is the interpreter that makes the environment; everything else runs inside .venv.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.installed
RUN := $(VENV)/bin/python -m
LOWEST := $(VENV)/lowest

.PHONY: help docs demo test test-slow test-lowest lint format bench bench-gpu study-cpu study-gpu clean

help:
	@echo "make demo       set up, draw scenes, train CLIP and DiffCLIP, evaluate both, write runs/demo/report.html"
	@echo "make test       set up if needed, then the tests (minutes)"
	@echo "make test-slow  the tests that need real kills or minutes"
	@echo "make test-lowest  the tests of what uses transformers, on the lowest version that we take"
	@echo "make lint       ruff, format check, strict types"
	@echo "make docs       the documentation site, into site/"
	@echo "make bench      errors and speed of attention, and of a training step, here, into benchmarks/results/ and docs/"
	@echo "make bench-gpu  the same on a GPU, with PYTHON= and OUT=, without an environment of its own"
	@echo "make study-cpu  does differential attention help? a grid of models and seeds on Flickr8k; hours, goes on where it was stopped"
	@echo "make study-gpu  a larger grid on a GPU, ten minutes of it, with PYTHON=, DATA=, OUT=, DONE= and SET="

demo: $(READY)
	$(VENV)/bin/diffclip demo --folder runs/demo

test: $(READY)
	$(RUN) pytest -m "not slow" -n 2

test-slow: $(READY)
	$(RUN) pytest -m slow -n 2 --maxschedchunk 1

test-lowest: $(READY)
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(LOWEST) \
		transformers==5.4.0 huggingface_hub==1.5.0 tokenizers==0.22.2
	PYTHONPATH=$(LOWEST) $(RUN) pytest -m "not slow" -n 2 tests/vlm tests/convert tests/integrations/test_transformers_*.py

lint: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(VENV)/bin:$$PATH" mkdocs build --strict --quiet

format: $(READY)
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: $(READY)
	$(RUN) benchmarks.parity --device cpu
	$(RUN) benchmarks.attention --device cpu --curve
	$(RUN) benchmarks.training --device cpu --compile blocks --seconds 330
	$(RUN) benchmarks.loader
	$(RUN) benchmarks.scaling
	$(RUN) benchmarks.plots
	$(RUN) benchmarks.tables
	$(RUN) benchmarks.scaling_tables
	$(RUN) benchmarks.recipes --document docs/scaling.md

# On a machine with a GPU, with its own interpreter and packages: make bench-gpu PYTHON=python3 DATA=… OUT=…
# (DEVICE=cpu rehearses them without one.)
DATA ?= ../shared/data
OUT ?= benchmarks/results
DEVICE ?= cuda
PATHS := PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH}
BARE := $(PATHS) $(PYTHON) -m

# One step that fails or runs out of time does not stop the next ones, but make fails in the end. Tuning is first, so that
# the errors are those of the blocks that are timed. Nine minutes at most.
WORKERS ?= 12
LARGEST := $(if $(filter cpu,$(DEVICE)),--largest 200)
LONGEST := $(if $(filter cpu,$(DEVICE)),--longest 200)
SECONDS_ATTENTION := $(if $(filter cpu,$(DEVICE)),40,110)
SECONDS_TRAINING := $(if $(filter cpu,$(DEVICE)),40,185)
LIMIT := $(if $(shell command -v timeout),timeout -k 5)

bench-gpu:
	@mkdir -p $(OUT); failed=0; all=$$(date +%s); \
	step() { \
		limit=$$1; shift; started=$$(date +%s); echo "== $$*"; \
		PYTHONUNBUFFERED=1 $(PATHS) $(if $(LIMIT),$(LIMIT) $$limit) $(PYTHON) -m "$$@" --device $(DEVICE) --output $(OUT) \
			|| { failed=1; echo "== FAILED: $$*"; }; \
		now=$$(date +%s); echo "== $$((now - started)) s for $$1, $$((now - all)) s in all"; \
	}; \
	step 85 benchmarks.tuning --workers $(WORKERS) --seconds 60; \
	step 95 benchmarks.parity --workers $(WORKERS) --seconds 65 $(LONGEST); \
	step 140 benchmarks.attention --curve --workers $(WORKERS) --seconds $(SECONDS_ATTENTION) $(LARGEST); \
	step 215 benchmarks.training $(if $(filter cpu,$(DEVICE)),,--compile blocks) --seconds $(SECONDS_TRAINING); \
	exit $$failed

# In parts of ten minutes at most: make study-gpu PYTHON=python3 DATA=… OUT=… DONE=…, where OUT/study.tgz of the part before is
# DONE; the last one is unpacked in benchmarks/results/.
MINUTES ?= 9
STUDY ?= study_gpu
study-gpu:
	mkdir -p $(OUT)/results $(OUT)/runs
	$(if $(DONE),tar -xzf $(DONE) -C $(OUT)/results)
	$(BARE) diffclip.cli study $(STUDY) --data $(DATA) --runs $(OUT)/runs --output $(OUT)/results/$(STUDY) --minutes $(MINUTES) --device $(DEVICE)
	tar -czf $(OUT)/study.tgz -C $(OUT)/results $(STUDY)

study-cpu: $(READY)
	$(VENV)/bin/diffclip study study_cpu --data $(DATA) --runs runs/study_cpu --output benchmarks/results/study_cpu --workers 2
	$(VENV)/bin/diffclip report benchmarks/results/study_cpu --markdown docs/results.md --section study_cpu --paper

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,data,eval,search,web,vlm,export,docs,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) runs/demo
