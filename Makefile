# Every target installs what it needs into .venv and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without bytecode, which some container images switch off, every process compiles torch anew: seconds each.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := $(VENV)/.installed
BENCHMARKS := $(patsubst benchmarks/%.py,%,$(filter-out benchmarks/report.py benchmarks/table.py benchmarks/limited_link.py,$(wildcard benchmarks/[a-z]*.py)))

.PHONY: help install demo test newcomer newcomer-steps test-all test-PART coverage promtool test-sglang fuzz scan lint format crds metrics locks cluster bench clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED)  ## create .venv and install everything (runs by itself before the other targets)

# What is installed is compiled here, by all processors: otherwise every process that starts first does it by itself.
SELDOM_IMPORTED := /(nvidia|networkx|mypy|fontTools|pip|kubernetes/client)/

# The versions are locked: a library that was released this morning breaks no clone. uv is itself installed by pip.
UV := 0.13.7
$(INSTALLED): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trimtab needs Python 3.11 or newer; set PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet --require-hashes --requirement images/locks/uv.txt
	@echo "installing into $(VENV) (torch comes along: a few minutes the first time)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements-dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --build-constraints images/locks/build.txt --editable .
	@$(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM_IMPORTED)' $(VENV)/lib || true
	@touch $@

# Compiled once and kept beside the sources; otherwise all processes of the first run do it at the same time.
KERNELS := $(VENV)/.kernels
$(KERNELS): $(wildcard runtime/weights/trimtab/weights/codec/*.py) | $(INSTALLED)
	@echo "compiling the kernels of the weight codec (a third of a minute, once)"
	@$(BIN)/python -m trimtab.weights.codec.compile
	@touch $@

QUICKSTART := examples/quickstart/model/config.json

$(QUICKSTART): examples/quickstart/make.py $(INSTALLED)
	@$(BIN)/python -m examples.quickstart.make 2>/dev/null
	@touch $@

demo: $(QUICKSTART) $(KERNELS)  ## a real RLJob end to end on this machine: watch the reward rise
	@echo "A tiny Llama learns to name the largest of three digits, from random weights. Its agents wait for a tool (simulated),"
	@echo "so the trainer waits for them, and the fleet grows. A few minutes; Ctrl-C stops it."
	$(BIN)/trimtab run --fresh examples/quickstart/job.yaml

# Several at a time, the longest first: much of the time they wait. They wait with patience, so look at who took long.
PYTEST := $(BIN)/pytest -n $(or $(TEST_PROCESSES),4) --no-loadscope-reorder --durations=20

test: $(INSTALLED) $(KERNELS)  ## what every change must pass, in ten minutes: all parts on real servers, small kills, one whole job
	$(PYTEST)

# The longest that a new user is to wait on two cores, installing included.
NEWCOMER_S := 600
newcomer:  ## what somebody new does, in ten minutes: install into an environment of its own, init, run, samples, the best weights
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	timeout $(NEWCOMER_S) $(MAKE) --no-print-directory VENV="$$folder/venv" newcomer-steps

newcomer-steps: $(INSTALLED)
	$(BIN)/pytest -q -p no:cacheprovider --timeout=$(NEWCOMER_S) tests/integration/cli/test_newcomer.py::test_a_template_runs_and_its_model_and_its_words_come_out

test-all: promtool $(KERNELS)  ## everything: slow tests too, storms at full size, examples, two clusters, images
	$(PYTEST) --all

promtool: $(INSTALLED)
	@$(BIN)/python -m monitoring.promtool

# It kills at every line by sys.settrace, which coverage needs too.
COUNTS_LINES_ITSELF := tests/chaos/test_host_copy_kills.py

coverage: $(if $(TESTS),promtool,$(INSTALLED))  ## branch coverage of operator/ and runtime/ by `make test` (TESTS=--all: by `make test-all`)
	@rm -f .coverage .coverage.*
	COVERAGE_FILE=$(CURDIR)/.coverage $(BIN)/coverage run -m $(PYTEST:$(BIN)/%=%) $(TESTS) $(COUNTS_LINES_ITSELF:%=--ignore=%)
	@$(BIN)/coverage combine --quiet
	@for part in operator runtime; do echo "$$part: $$($(BIN)/coverage report --include="$$part/*" --format=total --precision=1) %"; done

test-chart: promtool

PARTS := api fabric weights dataflow rollout trainer operator chart jobs project

$(PARTS:%=test-%): $(INSTALLED) $(KERNELS)
	$(PYTEST) --all --part $(@:test-%=%)

test-PART: help  ## one part at full size (make test-rollout): api fabric weights dataflow rollout trainer operator chart jobs

test-sglang: $(INSTALLED)  ## the engine tests and a training run on a real SGLang, on the CPU (7 GB in the cache folder, once)
	@$(BIN)/python -m examples.sglang.environment
	TRIMTAB_TEST_SGLANG=1 $(BIN)/pytest --timeout=1800 tests/sglang

fuzz: $(INSTALLED)  ## 100,000 random manifests through parser and rules, and as many hostile objects through the controller (15 minutes)
	TRIMTAB_FUZZ_EXAMPLES=17000 TRIMTAB_HOSTILE_OBJECTS=100000 $(BIN)/pytest --timeout=1800 tests/unit/api/test_fuzz.py tests/unit/fabric/test_wire_fuzz.py tests/unit/operator/test_hostile_storm.py

scan: $(INSTALLED)  ## what every role's NATS connection can do, tried; fails when it is more than docs/security.md says
	$(BIN)/python -m tests.support.fabric.scan

lint: $(INSTALLED)  ## ruff, mypy --strict, import layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/python -m trimtab.api.generate --check
	$(BIN)/python -m monitoring.metrics_table --check
	$(BIN)/python charts/trimtab/generate.py --check

format: $(INSTALLED)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: $(INSTALLED)  ## generate crds/*.yaml and docs/reference/api.md from trimtab.api, and the chart's copies
	$(BIN)/python -m trimtab.api.generate
	$(BIN)/python charts/trimtab/generate.py

COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --custom-compile-command "make locks"

locks:  ## resolve anew what is installed here and in images: requirements-dev.txt and images/locks/*.txt
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet uv==$(UV); }
	@$(COMPILE) --extra dev --output-file requirements-dev.txt pyproject.toml
	@echo 'uv==$(UV)' | $(COMPILE) --output-file images/locks/uv.txt -
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(COMPILE) --output-file images/locks/build.txt -
	@$(BIN)/python -c 'from examples.sglang.environment import VERSION; print(f"sglang=={VERSION}")' \
		| $(COMPILE) --output-file images/locks/sglang.txt -
	@$(foreach role,operator dataflow rollout trainer tracking,$(COMPILE) --extra $(role) --output-file images/locks/$(role).txt pyproject.toml;)

metrics: $(INSTALLED)  ## generate docs/reference/metrics.md from the code
	$(BIN)/python -m monitoring.metrics_table

cluster: $(INSTALLED)  ## a Kubernetes cluster on this machine, with the operator: prints how to reach it
	$(BIN)/trimtab dev up

bench: $(INSTALLED)  ## run every benchmark and print the table of results
	$(BIN)/python -m benchmarks.table $(BENCHMARKS)

clean:  ## remove the environment and local state (not the kube-apiserver cache)
	rm -rf $(VENV) .trimtab
