# All tasks of this repository. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
CLANG ?= 14
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
FUZZ_SECONDS ?= 60
KILLS ?= 1000
SOAK_SECONDS ?= 1800
FLOOD_KEYS ?= 100000000
VALUE_SECONDS ?= 600
LOST_ROUNDS ?= 5
HANDOVER_SECONDS ?= 30
INVENTED_SECONDS ?= 120
RESERVATIONS ?= 100000
MUTANTS ?= 40
SETS ?= 10000
REQUESTS ?= 1000
SEED ?= 1
SINCE ?= HEAD
SECONDS ?= 2

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export CTEST_PARALLEL_LEVEL ?= $(JOBS)
export PATH := $(abspath $(VENV))/bin:$(PATH)

# Without bytecode each process of pytest would rewrite the assertions of all tests again.
unexport PYTHONDONTWRITEBYTECODE

python := $(VENV)/bin/python
pip := $(python) -m pip install --quiet --disable-pip-version-check --no-input

package_files := pyproject.toml README.md CMakeLists.txt $(shell find cmake cpp python tests/extension -type f \
  -not -path '*/__pycache__/*')
cpp_sources := $(shell find cpp python/bindings -name '*.cc')
cpp_headers := $(shell find cpp python/bindings -name '*.h')
cpp_others := $(shell find tests/cpp tests/extension tests/fuzz benchmarks/cpp -name '*.cc' -o -name '*.h' 2>/dev/null)
python_files := python tests benchmarks examples docs scripts

.PHONY: help demo quick test test-cpp test-python touched test-servers frameworks crash flood owed values leases lost-rules starts handovers invented chaos soak bench bench-against simulate-leases bench-report surge lint lint-python lint-cpp asan asan-python tsan portable \
  fetch fuzz conformance mutants oracle campaign docs wheel clean deps-build deps-test deps-bench deps-fuzz
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo:  ## show a FastAPI service that refuses the right requests
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/demo.sh

# Downloads run beside the compiler, and linters and the project that uses the library beside tests that wait.
# Pytest runs last, so that its failures are at the end of the output.
test:  ## all tests, C++ and Python, except lint-cpp, asan, tsan and asan-python
	+@$(MAKE) --no-print-directory --jobs=2 deps-test $(VENV)/.build
	+@$(MAKE) --no-print-directory --jobs=2 --output-sync $(VENV)/.test build-cpp
	+@$(MAKE) --no-print-directory test-units
	+@$(MAKE) --no-print-directory test-python beside='lint-python test-consumer'

# ------------------------------------------------------------------- environment

deps-build deps-test deps-bench deps-fuzz: deps-%:
	@PYTHON=$(PYTHON) scripts/install-deps.sh $*
deps-test deps-bench deps-fuzz: | deps-build  # two apt-get at once would fail

$(python): | deps-build
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build: python/requirements.txt | $(python)
	$(pip) -r python/requirements.txt
	@touch $@

# Some Python versions have a requirements file of their own.
$(VENV)/.test: tests/requirements.txt $(wildcard tests/requirements-3.*.txt) $(VENV)/.build
	version=$$($(python) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  list=tests/requirements-$$version.txt; test -e $$list || list=tests/requirements.txt; \
	  scripts/install-requirements.sh $(VENV) $$list
	@touch $@

$(VENV)/.docs: docs/requirements.txt | $(python)
	$(pip) -r docs/requirements.txt
	@touch $@

# As it is released, with link-time optimization. `released_and` adds options.
$(VENV)/.package: $(package_files) $(VENV)/.build | deps-build
	$(pip) --no-build-isolation --no-deps $(released_and) .
	@rm -f $(VENV)/.tested $(VENV)/.quick; touch $@

# For the tests: without link-time optimization, and from the tree that the C++ tests are built in, which
# so share the compiled core. The limiter is as it is released, what stands around it is compiled in less time.
tree := --config-settings=build-dir=build/test
for_tests := --config-settings=cmake.define.TIDEGATE_IPO=OFF \
  --config-settings=cmake.define.TIDEGATE_WERROR=ON \
  --config-settings=cmake.define.TIDEGATE_OUTER_OPTIONS=-Og \
  --config-settings=cmake.define.TIDEGATE_BUILD_TESTS=ON \
  --config-settings=cmake.define.TIDEGATE_BUILD_BENCHMARKS=ON
$(VENV)/.tested: $(package_files) $(VENV)/.build | deps-test
	$(pip) --no-build-isolation --no-deps $(tree) $(for_tests) --config-settings=cmake.define.TIDEGATE_INSTALL=ON .
	@rm -f $(VENV)/.package $(VENV)/.quick; touch $@

# For editing: Python's modules are those of the tree, and an import builds again what has changed.
quick: $(VENV)/.test | deps-test  ## the package for editing: rebuilt on import, without optimization
	$(pip) --no-build-isolation --no-deps --config-settings=build-dir=build/quick $(for_tests) \
	  --config-settings=cmake.define.TIDEGATE_UNITY=OFF \
	  --config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 \
	  --config-settings=editable.rebuild=true --config-settings=editable.verbose=false --editable .
	@rm -f $(VENV)/.package $(VENV)/.tested; touch $(VENV)/.quick

# ------------------------------------------------------------------------- tests

# Fails if an editable install in the environment hides the package on PYTHONPATH.
is_from = $(python) -c 'import sys, tidegate._core as core; \
  sys.exit("$(1)" not in core.__file__ and "not from $(1): " + core.__file__)'

.PHONY: build-cpp
build-cpp: $(VENV)/.tested
	cmake --build build/test --target tidegate_tests

test-cpp:  ## the C++ tests, and a project that uses the installed library

.PHONY: test-units test-consumer
test-units: which := --exclude-regex '^consumer$$'
test-consumer: which := --tests-regex '^consumer$$'
test-cpp test-units test-consumer: build-cpp
	ctest --test-dir build/test $(which) --no-tests=error --timeout 300 --quiet || \
	  { cd build/test/Testing/Temporary; cat LastTestsFailed.log; echo "see $$PWD/LastTest.log"; exit 1; }

# Some tests wait rather than compute, so there are two processes for each core; each collects all tests for
# itself. The tests that are marked `alone` run before the others, one at a time, and leave a core idle: what
# runs there yields to them. It also compiles all test modules, which the others then load.
TEST_JOBS ?= $$((2 * $(JOBS)))
test-python: deps-test $(VENV)/.test $(VENV)/.tested  ## the Python tests
	+@$(MAKE) --no-print-directory --jobs=2 --output-sync test-alone beside-alone; failed=$$?; \
	$(MAKE) --no-print-directory test-together || exit 1; \
	[ $$failed = 0 ] || { echo "these passed; what ran before them failed, see above"; exit 1; }

.PHONY: test-alone beside-alone test-together
test-alone:
	@$(python) -m pytest -m alone $(shell grep -rl --include='test_*.py' mark.alone tests)
beside-alone:
	@nice -n 5 $(python) -m pytest --collect-only -qq >/dev/null || true  # the workers say what is wrong
	+@$(if $(beside),nice -n 5 $(MAKE) --no-print-directory $(beside))
test-together:
	@$(python) -m pytest -m 'not alone' --numprocesses=$(TEST_JOBS) --dist=loadfile --no-loadscope-reorder

touched: $(VENV)/.test  ## the tests nearest to what differs from SINCE; no Python test begins after SECONDS
	@$(python) scripts/touched.py --since $(SINCE) --seconds $(SECONDS)

test-servers: deps-test $(VENV)/.test $(VENV)/.tested  ## the Redis tests on Redis 6.2, 7.0 and 8.2 and on Valkey 8.1
	$(python) scripts/test-servers.py $(SERVERS)

# Integrations use private parts of frameworks, see docs/adr/0009-frameworks-private-parts.md. The
# lowest and the newest releases each have their own environment. Deprecations of old releases are
# ignored.
FRAMEWORKS ?= lowest newest
frameworks: deps-build $(VENV)/.build  ## the tests of the web at the lowest and the newest FastAPI, Flask and Django
	rm -rf build/frameworks/site
	$(pip) --no-build-isolation --no-deps --target build/frameworks/site .
	set -e; export PYTHONPATH=$(abspath build/frameworks/site); \
	for release in $(FRAMEWORKS); do \
	  rm -rf build/frameworks/$$release; $(PYTHON) -m venv build/frameworks/$$release; \
	  build/frameworks/$$release/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
	    -r tests/frameworks/$$release.txt; \
	  build/frameworks/$$release/bin/python -m pytest -o filterwarnings=default \
	    tests/python/web tests/python/integrations; \
	done

crash: deps-test $(VENV)/.test $(VENV)/.tested  ## kill KILLS workers of one shared memory at random instants
	$(python) tests/faults/crash_campaign.py --kills $(KILLS)

flood: deps-test $(VENV)/.test $(VENV)/.tested  ## FLOOD_KEYS keys through a table for a million; invented keys against exhausted clients
	$(python) tests/faults/flood_campaign.py --keys $(FLOOD_KEYS)
	$(python) tests/faults/forget_campaign.py

owed: deps-test $(VENV)/.test $(VENV)/.tested  ## RESERVATIONS in Redis with kills, lost replies, double commits and restarts
	@mkdir -p build
	$(python) tests/faults/reservations_campaign.py --reservations $(RESERVATIONS) --json build/owed.json

values: deps-test $(VENV)/.test $(VENV)/.tested  ## random stored values against every Redis script, for VALUE_SECONDS
	$(python) tests/redis/value_fuzz.py --seconds $(VALUE_SECONDS)

leases: deps-test $(VENV)/.test $(VENV)/.tested  ## 16 processes on one leased Redis, under faults: no interval admits too much; and broken rules, which are noticed
	$(python) tests/faults/leases_campaign.py
	for rule in late given step; do \
	  $(python) tests/faults/leases_campaign.py --seconds 14 --broken $$rule || exit 1; \
	done

lost-rules: deps-test $(VENV)/.test $(VENV)/.tested  ## restore, empty, hide and damage rules LOST_ROUNDS times, under 200 checks a second
	$(python) tests/faults/lost_rules_campaign.py --rounds $(LOST_ROUNDS)

asan: deps-test $(VENV)/.build  ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

tsan: deps-test $(VENV)/.build  ## the C++ tests under ThreadSanitizer
	cmake --preset tsan $$(scripts/debian-sources.sh build/sources)
	cmake --build --preset tsan
	ctest --preset tsan

# The interpreter is not instrumented, so the runtimes are loaded before it. It allocates small
# objects by malloc, which detects accesses beyond their ends. The runtimes fill the static block of
# thread-local storage, which the gate's variable needs in each extension. Left out are tests that
# preload a library of their own, one that leaves no descriptor, with which UBSan looks at an
# exception, and two in which the interpreter unwinds threads that it ends, which ASan does not see.
asan-python: deps-test $(VENV)/.test  ## the Python tests with an extension built for ASan and UBSan
	rm -rf build/asan-site
	$(pip) --no-build-isolation --no-deps --target build/asan-site . \
	  --config-settings=build-dir=build/asan-python \
	  --config-settings=cmake.build-type=Debug \
	  --config-settings=cmake.define.CMAKE_CXX_FLAGS_DEBUG='-O1 -g1' \
	  --config-settings=cmake.define.TIDEGATE_SANITIZE=address,undefined \
	  --config-settings=cmake.define.TIDEGATE_BUILD_TESTS=ON
	export LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192 ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  PYTHONPATH=$(abspath build/asan-site); \
	  $(call is_from,build/asan-site) && $(python) -m pytest tests/python tests/conformance \
	  tests/property tests/concurrency tests/faults tests/redis \
	  -k "not without_descriptors and not python_code_that_the_core_calls and not exit_with_calls_in_flight" \
	  --ignore=tests/faults/test_clock_corrections.py --ignore=tests/faults/test_soak.py \
	  --ignore=tests/redis/test_wall_clock.py

# Uses pipes instead of eventfd, fences instead of membarrier, and the system's clock instead of
# the time-stamp counter.
portable: deps-test $(VENV)/.test  ## the C++ tests and those of Redis without features that only Linux has
	cmake --preset portable
	cmake --build --preset portable
	ctest --preset portable
	rm -rf build/portable-site
	$(pip) --no-build-isolation --no-deps --target build/portable-site . \
	  --config-settings=build-dir=build/portable-python \
	  --config-settings=cmake.define.TIDEGATE_PORTABLE=ON
	export PYTHONPATH=$(abspath build/portable-site); \
	  $(call is_from,build/portable-site) && $(python) -m pytest \
	  tests/python/limiter/test_limiter.py tests/redis/test_redis_async.py tests/redis/test_redis_store.py \
	  tests/redis/test_redis_faults.py

fetch: deps-test $(VENV)/.build  ## build and test with every dependency built from its pinned source
	cmake --preset fetch $$(scripts/debian-sources.sh build/sources)
	cmake --build --preset fetch
	ctest --preset fetch

# Python parsers are fuzzed in Python, by the same libFuzzer.
fuzz: deps-fuzz $(VENV)/.build  ## run each libFuzzer target for FUZZ_SECONDS
	cmake --preset fuzz
	cmake --build --preset fuzz
	set -e; for target in limit_fuzz step_fuzz reply_fuzz pieces_fuzz logs_fuzz \
	  check_json_fuzz check_proto_fuzz envoy_json_fuzz envoy_proto_fuzz grpc_fuzz http1_fuzz http2_fuzz; do \
	  build/fuzz/tests/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ \
	    build/fuzz/tests/fuzz/found/$$target tests/fuzz/corpus/$$target; \
	done
	rm -rf build/fuzz/site
	$(pip) --no-build-isolation --no-deps --target build/fuzz/site .
	$(pip) --target build/fuzz/site -r tests/fuzz/requirements.txt
	mkdir -p build/fuzz/tests/fuzz/found/forwarded_fuzz
	PYTHONPATH=$(abspath build/fuzz/site) $(python) tests/fuzz/forwarded_fuzzer.py \
	  -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ \
	  build/fuzz/tests/fuzz/found/forwarded_fuzz tests/fuzz/corpus/forwarded_fuzz

oracle: $(VENV)/.tested  ## rules of SETS random documents, held to a second reading of docs/rules.md
	$(python) tests/rules_oracle.py --sets $(SETS) --requests $(REQUESTS) --seed $(SEED) --jobs $(JOBS)

# Cosmic Ray is installed apart from the tests, which get only coverage and pytest-cov in addition.
mutants: deps-test $(VENV)/.test  ## change the package at MUTANTS random places of each room; tests must notice 90 %
	rm -rf build/mutants
	$(pip) --no-build-isolation --no-deps --target build/mutants/site \
	  --config-settings=cmake.define.TIDEGATE_BUILD_TESTS=ON .
	$(pip) -c scripts/mutants-requirements.txt --target build/mutants/cosmic-ray cosmic-ray
	$(pip) -c scripts/mutants-requirements.txt --no-deps --target build/mutants/tools coverage pytest-cov
	PYTHONPATH=build/mutants/cosmic-ray $(python) scripts/mutants.py --site build/mutants/site \
	  --tools build/mutants/tools --sample $(MUTANTS) --seed $(SEED) --jobs $(JOBS)

chaos: deps-test $(VENV)/.test $(VENV)/.tested  ## some 150 faults of servers, networks and processes, in at most 20 minutes
	@mkdir -p build
	$(python) tests/faults/chaos_campaign.py --minutes 20 --json build/chaos.json

# Go builds it from the version that is named, with the newest of what it needs.
conformance: $(VENV)/.test $(VENV)/.tested  ## h2spec against HTTP/2 of the server; needs go
	GOBIN=$(abspath build/h2spec) go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
	$(python) scripts/h2spec.py build/h2spec/h2spec

starts: deps-test $(VENV)/.test $(VENV)/.tested  ## 40 processes that start at once, and ask one Redis at once
	$(python) tests/faults/start_campaign.py

handovers: deps-test $(VENV)/.test $(VENV)/.tested  ## replace a running service again and again, under 300 requests a second, for HANDOVER_SECONDS
	$(python) tests/faults/handover_campaign.py --seconds $(HANDOVER_SECONDS)

invented: deps-test $(VENV)/.test $(VENV)/.tested  ## checks of invented users at full speed for INVENTED_SECONDS, beside known ones and an operator
	$(python) tests/faults/invented_campaign.py --seconds $(INVENTED_SECONDS)

soak: deps-test $(VENV)/.test $(VENV)/.tested  ## a running service in floods, cuts and faults of its servers, for SOAK_SECONDS
	@mkdir -p build
	$(python) tests/faults/soak_campaign.py --seconds $(SOAK_SECONDS) --json build/soak.json --picture build/soak.png

campaign: deps-test $(VENV)/.test $(VENV)/.tested  ## slow tests: five million calls, outages of 10 s, 1,000 kills
	TIDEGATE_LONG=1 $(python) -m pytest tests/redis/test_redis_clocks.py tests/redis/test_redis_refusals.py
	$(python) tests/faults/crash_campaign.py --kills 1000

# ----------------------------------------------------------------------- linters

lint: lint-python lint-cpp  ## ruff, mypy, clang-format, clang-tidy

lint-python: $(VENV)/.test
	$(VENV)/bin/ruff check $(python_files)
	$(VENV)/bin/ruff format --check $(python_files)
	$(VENV)/bin/mypy

lint-cpp: deps-test build/tidy/.formatted $(cpp_sources:%=build/tidy/%.ok)

build/tidy/.formatted: .clang-format $(cpp_sources) $(cpp_headers) $(cpp_others)
	clang-format-$(CLANG) --dry-run --Werror $(filter %.cc %.h,$^)
	@mkdir -p $(@D) && touch $@

build/tidy/compile_commands.json: CMakePresets.json CMakeLists.txt $(shell find cmake cpp -name 'CMakeLists.txt' \
    -o -name '*.cmake') $(VENV)/.build | deps-test
	cmake --preset tidy -DCMAKE_CXX_COMPILER=clang++-$(CLANG) \
	  -Dpybind11_DIR=$$($(python) -m pybind11 --cmakedir) -DPython_EXECUTABLE=$(abspath $(python))
	@touch $@

build/tidy/%.ok: % .clang-tidy $(cpp_headers) build/tidy/compile_commands.json
	clang-tidy-$(CLANG) --quiet -p build/tidy $<
	@mkdir -p $(@D) && touch $@

# ------------------------------------------------------- benchmarks, docs, wheels

# Uses an environment of its own, to keep the peers' dependencies out of ours.
bench: deps-test $(VENV)/.build  ## measure, in C++ and against peers from PyPI
	cmake --preset release
	cmake --build --preset release
	set -e; for benchmark in build/release/benchmarks/cpp/*_bench; do $$benchmark; done
	+@$(MAKE) --no-print-directory VENV=build/bench-venv bench-python
	@if command -v cargo >/dev/null; then \
	  cargo run --release --locked --manifest-path benchmarks/governor/Cargo.toml; \
	else echo "governor: skipped, there is no cargo"; fi

benches := call reserve overuse memory import rate rules logs replay recommend sliding_error what_if redis leases \
  shm server stall asgi check web admin_change

.PHONY: bench-python
bench-python: released_and := --config-settings=cmake.define.TIDEGATE_BUILD_BENCHMARKS=ON
bench-python: $(VENV)/.package
	$(pip) -r benchmarks/requirements.txt -r tests/requirements.txt
	set -e; for benchmark in $(benches); do $(python) benchmarks/python/bench_$$benchmark.py; done

# Both are built as they are released, in environments of their own; ONLY="call memory" compares some.
ROUNDS ?= 3
bench-against: deps-test  ## the benchmarks of this tree against COMMIT, in turn, ROUNDS times
	@test -n "$(COMMIT)" || { echo 'make bench-against COMMIT=abc123 [ONLY="call memory"] [ROUNDS=3]'; exit 2; }
	$(PYTHON) benchmarks/compare.py $(COMMIT) --rounds $(ROUNDS) --only $(or $(ONLY),core checks_in_cpp $(benches))

simulate-leases: deps-test  ## print the table of docs/leases-simulation.md
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target simulate_leases >/dev/null
	@build/release/benchmarks/cpp/simulate_leases

# Writes docs/benchmarks.md with its JSON and pictures, and the lines of the README. ONLY="call web" measures
# some, RUNS is how often each of the short ones runs. The benchmarks of the service need what its tests need.
RUNS ?= 3
bench-report: deps-test deps-bench $(VENV)/.build  ## all benchmarks, RUNS times, into docs/benchmarks.md; ONLY="call web" for some
	cmake --preset release
	cmake --build --preset release --target core_bench hit_loop
	+@$(MAKE) --no-print-directory VENV=build/bench-venv bench-report-run

.PHONY: bench-report-run
bench-report-run: released_and := --config-settings=cmake.define.TIDEGATE_BUILD_BENCHMARKS=ON
bench-report-run: $(VENV)/.package
	$(pip) -r benchmarks/requirements.txt -r tests/requirements.txt
	$(python) benchmarks/report.py --runs $(RUNS) $(if $(ONLY),--only $(ONLY))

# Its page gets its figures and pictures from the run; SURGE=--quick only shows that it works, in half a
# minute or two. In an environment of its own, as bench.
SURGE ?= --json docs/surge.json --page docs/surge.md
surge: deps-test  ## a surge at ten times the capacity, without a limiter, with tidegate and with others; 6 minutes
	+@$(MAKE) --no-print-directory VENV=build/surge-venv surge-run

.PHONY: surge-run
surge-run: $(VENV)/.package
	$(pip) -r benchmarks/surge/requirements.txt
	$(python) benchmarks/surge/run.py $(SURGE)

docs: $(VENV)/.docs  ## build the site into docs/_build; a warning is an error
	$(python) -m sphinx -b html --nitpicky --fail-on-warning --keep-going docs docs/_build

wheel: deps-build $(VENV)/.build  ## build, repair and try a wheel, into wheelhouse/
	$(pip) -r scripts/requirements.txt
	scripts/make-wheel.sh $(python)

clean:  ## remove everything that was built
	rm -rf build dist wheelhouse docs/_build .venv .mypy_cache .ruff_cache .hypothesis
