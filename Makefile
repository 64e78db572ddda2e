# Every target installs what it needs into .venv and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BENCHMARKS := $(patsubst benchmarks/%.py,%,$(filter-out benchmarks/report.py benchmarks/table.py benchmarks/limited_link.py,$(wildcard benchmarks/[a-z]*.py)))

.PHONY: help install demo test test-sglang fuzz lint format crds cluster bench clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED)  ## create .venv and install everything (runs by itself before the other targets)

# uv resolves in seconds where pip takes minutes; it is itself installed by pip.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trimtab needs Python 3.11 or newer; set PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet uv
	@echo "installing into $(VENV) (torch comes along: a few minutes the first time)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	@touch $@

QUICKSTART := examples/quickstart/model/config.json

$(QUICKSTART): examples/quickstart/make.py $(INSTALLED)
	@$(BIN)/python examples/quickstart/make.py 2>/dev/null
	@touch $@

demo: $(QUICKSTART)  ## a real RLJob end to end on this machine: watch the reward rise
	@echo "A tiny Llama learns to name the largest of three digits, from random weights. Ctrl-C stops it."
	$(BIN)/trimtab run --fresh examples/quickstart/job.yaml

# The rest starts whole jobs, kills servers and measures links: it wants the machine for itself.
SIDE_BY_SIDE := dataflow learning operator rollout trainer

test: $(INSTALLED)  ## run every test: real NATS, real S3, real kube-apiserver (built once, 6 to 9 minutes)
	@$(BIN)/python -c 'from trimtab.embedded.kube.assets import control_plane_assets; control_plane_assets()'
	$(BIN)/pytest -n 2 --dist loadfile tests/unit $(addprefix tests/integration/,$(SIDE_BY_SIDE))
	$(BIN)/pytest tests $(foreach folder,unit $(addprefix integration/,$(SIDE_BY_SIDE)),--ignore=tests/$(folder))

test-sglang: $(INSTALLED)  ## the engine tests and a training run on a real SGLang, on the CPU (7 GB in the cache folder, once)
	@$(BIN)/python -m examples.sglang.environment
	TRIMTAB_TEST_SGLANG=1 $(BIN)/pytest --timeout=1800 tests/sglang

fuzz: $(INSTALLED)  ## 100,000 random manifests through the parser and the rules (10 minutes; the wire fuzz is part of test)
	TRIMTAB_FUZZ_EXAMPLES=17000 $(BIN)/pytest --timeout=1800 tests/unit/api/test_fuzz.py tests/unit/fabric/test_wire_fuzz.py

lint: $(INSTALLED)  ## ruff, mypy --strict, import layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/python -m trimtab.api.generate --check

format: $(INSTALLED)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: $(INSTALLED)  ## generate crds/*.yaml and docs/reference/api.md from trimtab.api
	$(BIN)/python -m trimtab.api.generate

cluster: $(INSTALLED)  ## a Kubernetes cluster on this machine, with the operator: prints how to reach it
	$(BIN)/trimtab dev up

bench: $(INSTALLED)  ## run every benchmark and print the table of results
	$(BIN)/python -m benchmarks.table $(BENCHMARKS)

clean:  ## remove the environment and local state (not the kube-apiserver cache)
	rm -rf $(VENV) .trimtab
