# make demo · make test · make test-slow · make browser · make lint · make bench
# PYTHON is the interpreter that makes the environment; everything else runs inside .venv.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.installed
RUN := $(VENV)/bin/python -m
LOWEST := $(VENV)/lowest
PEERS := $(VENV)/peers
WHEEL := $(VENV)/wheel

# Without bytecode every process would compile all that it imports: two seconds of torch alone, hundreds of times in the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help docs demo test test-slow test-lowest test-peers test-triton36 browser lint format bench bench-gpu experiments study-gpu clean

help:
	@echo "make demo       set up, draw scenes, train CLIP and DiffCLIP, evaluate both, write runs/demo/report.html"
	@echo "make test       set up if needed, then the tests (minutes)"
	@echo "make test-slow  the tests that need real kills or minutes"
	@echo "make test-lowest  the tests of what uses transformers, on the lowest version that we take"
	@echo "make test-peers  the tests of transformers, timm and open_clip, of the installed versions, on our models"
	@echo "make browser    install Chromium for the tests of the page, which are skipped without it"
	@echo "make lint       ruff, format check, strict types"
	@echo "make test-triton36  the fused kernels compiled with Triton 3.6 as well, that of torch 2.11"
	@echo "make docs       the documentation site, into site/"
	@echo "make bench      errors and speed of attention, and of a training step, here, into benchmarks/results/ and docs/"
	@echo "make bench-gpu  the same on a GPU, with PYTHON= and OUT=, without an environment of its own"
	@echo "make experiments  write the pages of experiments/ again from their records"
	@echo "make study-gpu  experiment A or B on a GPU, with STUDY=, MINUTES=, PYTHON=, DATA=, OUT=, DONE= and SET="

demo: $(READY)
	$(VENV)/bin/diffclip demo --folder runs/demo

# One thread per process: two processes of two spinning threads each on two cores slow one another many times.
test test-slow: export OMP_NUM_THREADS := 1
test test-slow: export OMP_WAIT_POLICY := PASSIVE

# Each worker takes half of the tests in order, so that the fixtures of a file are made once.
test: $(READY)
	$(RUN) pytest -m "not slow" -n 2 --dist worksteal

# The slow tests, the whole demo among them, use the package as a wheel brings it, without the repository. Only their files
# are collected: the others import more packages.
test-slow: $(READY)
	rm -rf $(WHEEL)
	$(RUN) pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(WHEEL) .
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps --no-index --target $(WHEEL) $(WHEEL)/diffclip-*.whl
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" PYTHONPATH=$(CURDIR)/$(WHEEL) $(RUN) pytest -m slow -n 2 --maxschedchunk 1 \
		--nbmake --nbmake-timeout=1800 $$(grep -rl 'mark.slow' --include='test_*.py' tests) docs/tutorial.ipynb

test-lowest: $(READY)
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(LOWEST) \
		transformers==5.4.0 huggingface_hub==1.5.0 tokenizers==0.22.2
	PYTHONPATH=$(LOWEST) $(RUN) pytest -m "not slow" -n 2 tests/vlm tests/sources tests/integrations/test_transformers_*.py

# Their tests come from the source distributions each time: nothing of them is kept here. PEER=timm_models runs one of them.
PEER ?= transformers_common timm_models open_clip_training
test-peers: export HF_HUB_OFFLINE := 1
test-peers: export OMP_NUM_THREADS := 1
test-peers: $(READY)
	rm -rf $(PEERS) && mkdir -p $(PEERS)
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps --target $(PEERS) parameterized
	for file in $(PEER); do \
		case $$file in transformers*) name=transformers ;; timm*) name=timm ;; *) name=open_clip_torch ;; esac; \
		mkdir -p $(PEERS)/$$name && \
		$(RUN) pip download --quiet --disable-pip-version-check --no-deps --no-binary $$name --dest $(PEERS) \
			$$name==$$($(RUN) pip show $$name | sed -n 's/^Version: //p') && \
		tar -xzf $(PEERS)/$$name-*.tar.gz -C $(PEERS)/$$name --strip-components 1 && \
		(cd $(PEERS)/$$name && rm -rf timm src/open_clip* && PYTHONPATH=.:$(CURDIR)/$(PEERS):$(CURDIR)/src \
			$(CURDIR)/$(VENV)/bin/python -m pytest -q -p no:cacheprovider -W ignore -c /dev/null --rootdir . \
			$(CURDIR)/tests/peers/$$file.py) || exit 1; \
	done

# The system's package where we may install it, else playwright's own build.
browser: $(READY)
	@command -v chromium >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -y -q chromium; } || \
		$(RUN) playwright install chromium

test-triton36: $(READY)
	$(RUN) pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/triton36 triton==3.6.0
	$(RUN) pytest -m slow tests/attention/test_compile_kernels.py

lint: $(READY)
	$(RUN) ruff check --no-cache .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) experiments.pages && git diff --exit-code --stat -- experiments

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(VENV)/bin:$$PATH" mkdocs build --strict --quiet

format: $(READY)
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: $(READY)
	$(RUN) benchmarks.parity --device cpu
	$(RUN) benchmarks.attention --device cpu --curve --seconds 500
	$(RUN) benchmarks.training --device cpu --compile blocks --seconds 330
	$(RUN) benchmarks.loader
	$(RUN) benchmarks.plots
	$(RUN) benchmarks.tables

# On a machine with a GPU, with its own interpreter and packages; PART=second, third and fourth are the next runs. DEVICE=cpu rehearses them.
DATA ?= sets-80
OUT ?= benchmarks/results
DEVICE ?= cuda
PART ?= first
BARE := PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m

bench-gpu:
	DEVICE=$(DEVICE) PYTHON=$(PYTHON) benchmarks/gpu.sh $(PART) $(OUT)

# A call stops after MINUTES, with code 75 (without it, at the end), and writes OUT/study.tgz; the next call goes on from it:
# make study-gpu PYTHON=python3 DATA=… OUT=… DONE=OUT/study.tgz.
# SET='scenes.distractors=4' changes the study; each such study needs an OUT and RUNS of its own. Checkpoints are in RUNS.
STUDY ?= study_b_gpu
RUNS ?= /tmp/diffclip-study
study-gpu:
	mkdir -p $(OUT)/results
	$(if $(DONE),tar -xzf $(DONE) -C $(OUT)/results)
	$(if $(MINUTES),timeout --preserve-status $(MINUTES)m env) $(BARE) diffclip.cli study $(STUDY) $(SET) --data $(DATA) \
		--device $(DEVICE) --runs $(RUNS)/$(basename $(notdir $(STUDY))) --output $(OUT)/results/$(basename $(notdir $(STUDY))); \
		code=$$?; tar -czf $(OUT)/study.tgz -C $(OUT)/results . && exit $$code

# Tables and figures of the experiments' pages from their results.csv; lint tells if that changes a file.
experiments: $(READY)
	$(RUN) experiments.pages

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[train,eval,web,vlm,docs,dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) runs/demo
