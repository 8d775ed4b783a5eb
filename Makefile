# `make` alone lists the targets. Each target does the set-up that it needs, once.

PYTHON ?= python3

# The version of Spark that programs and tests run on. Each but the newest has an environment of its own over .venv.
SPARK  ?= 4.2
VENV   := .venv$(addprefix -,$(filter-out 4.2,$(SPARK)))
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# What `make test` and `make long` run.
TESTS  ?= flushtracker tests/unit tests/spark tests/integration

# One more than two cores: most tests wait at times, and whole loops bear no more. The longest begin first.
WORKERS  ?= 3
TOGETHER := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# `test_azure_session.py` runs it in a process of its own.
AZURE := tests/verify/test_azure.py

# How much `make soak` plays.
HISTORIES ?= 1000000
INPUTS    ?= 10000000
KILLS     ?= 100
STEPS     ?= 10000

# The release before, as a tag or commit, from which `make soak` upgrades, and to which it goes back.
FROM      ?=

# How many mutants `make mutants` judges. SEED='11 12' repeats two samples, LONG=1 adds the tests
# marked long, and FILES='flushtracker/capture/*.py' limits the files.
SAMPLE    ?= 1000

# Images of Python set this. The tests start hundreds of programs, and each would compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test long fixtures verify soak unit mutants model bench bench-long check docs ci prepared oldestspark format jars brokerjars connectjars serverjars s3jars s3server helm classes pins sums release warmup clean distclean python java verifytools

help: ## print this help
	@echo "flushtracker needs Python 3.10 or newer, Java 17 or 21, and make; it installs the rest into $(VENV) and .jars."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: java $(READY) jars ## replay the recorded WAL, write and track its shapes side by side, one of them slow, verify and report; writes to data/
	@rm -rf data/fragments data/flushes data/shape_changes data/shapes data/checkpoints data/acks data/dead_letters
	@rm -rf data/log data/log_shapes
	@mkdir -p data/flushes
	$(BIN)/flushtracker replay --recording tests/recording --shapes conf/shapes.yaml --out data
	@jobs=; trap 'kill $$jobs 2> /dev/null; wait' EXIT; trap 'exit 130' INT TERM; \
	for job in write track; do \
	  echo "$(BIN)/flushtracker $$job --config conf/replay.yaml &"; \
	  $(BIN)/flushtracker $$job --config conf/replay.yaml & jobs="$$jobs $$!"; \
	done; \
	looks=0; until $(BIN)/flushtracker report --config conf/replay.yaml > data/report.log 2>&1; do \
	  for job in $$jobs; do kill -0 $$job || exit 1; done; \
	  looks=$$((looks + 1)); [ $$looks -lt 200 ] || { \
	    cat data/report.log; echo "not everything was acknowledged in ten minutes or more; the last report is above" >&2; exit 1; }; \
	  sleep 3; \
	done
	$(BIN)/flushtracker verify --log data/log --recording tests/recording --shapes conf/shapes.yaml
	$(BIN)/flushtracker report --config conf/replay.yaml

demo: java $(READY) jars brokerjars warmup ## run PostgreSQL, Kafka, capture, tracker and writers here, with a live view; Ctrl-C stops and verifies
	@$(BIN)/flushtracker demo

test: java $(READY) jars brokerjars serverjars s3jars s3server warmup ## run the tests, three at a time, all but the long ones; SPARK=4.0 or 4.1 on that Spark
	$(BIN)/python -m pytest $(TOGETHER) -m "not soak and not long" $(TESTS)

long: java $(READY) jars brokerjars serverjars s3jars s3server warmup ## run the tests of minutes: whole lives of the loop under kills, further histories
	$(BIN)/python -m pytest $(TOGETHER) -m long $(TESTS)

fixtures: ## at a release: write what its jobs leave amid their work, which later releases continue in the tests
	$(MAKE) SPARK=4.0 java .venv-4.0/.ready jars
	.venv-4.0/bin/python -m tests.support.release_fixture \
	  tests/fixtures/$$(.venv/bin/python -c 'import flushtracker; print(flushtracker.__version__)')-spark-4.0.zip

verify: verifytools java $(READY) jars brokerjars connectjars s3jars helm warmup oldestspark ## try alerts, pages, clients and the chart in a real Prometheus, Chromium, Node and Helm, tables on Azurite, and the oldest Spark
	$(BIN)/python -m pytest -m "not soak" --ignore=$(AZURE) tests/verify

# One session, so that servers, brokers and Spark start once for each worker, and no worker waits for a phase to end.
ci: ## all that a change must pass: the checks, every test but the soak, and the models if they have changed
	$(MAKE) verifytools $(READY)
	$(MAKE) -j 2 check prepared
	$(BIN)/python -m pytest $(TOGETHER) -m "not soak" --ignore=$(AZURE) $(TESTS) tests/verify
	$(BIN)/python -m tests.model --if-changed
	@mkdir -p data; git describe --always --abbrev=40 --dirty --exclude '*' > data/ci-passed
	@echo "passed: $$(cat data/ci-passed)"

# Ends with the modules of the tests compiled: each worker would do that, if they began at once.
prepared: $(READY)
	@$(MAKE) -j 1 java jars brokerjars connectjars serverjars s3jars s3server helm classes oldestspark
	-@$(BIN)/python -m pytest --collect-only --quiet $(TESTS) tests/verify > /dev/null

oldestspark: $(READY)
	@$(MAKE) SPARK=4.0 java .venv-4.0/.ready jars s3jars

soak: verifytools java $(READY) jars brokerjars connectjars serverjars s3jars s3server warmup oldestspark ## a million simulated histories, ten million mutated inputs, then hundreds of kills under load; takes hours
	$(BIN)/python -m tests.integration.soak_simulation --histories $(HISTORIES)
	$(BIN)/python -m tests.integration.soak_small_scope
	$(BIN)/python -m tests.integration.soak_fuzzing --inputs $(INPUTS)
	$(BIN)/python -m tests.integration.soak_where
	$(BIN)/python -m tests.integration.soak_schema --steps $(STEPS)
	FLUSHTRACKER_SNAPSHOT_SEEDS=100 $(BIN)/python -m pytest -n 2 tests/integration/test_snapshot_history.py
	FLUSHTRACKER_JOINED_HISTORIES=1000 $(BIN)/python -m pytest -n 2 tests/unit/shapes/test_joined_shapes.py
	FLUSHTRACKER_JOINED_SEEDS=100 $(BIN)/python -m pytest -n 2 tests/integration/test_joined_snapshots.py tests/integration/test_joined_history.py tests/spark/test_joined_rows.py
	FLUSHTRACKER_HISTORY_SEEDS=100 $(BIN)/python -m pytest -n 2 tests/integration/test_source_history.py
	FLUSHTRACKER_SEED=$$(date +%s) $(BIN)/python -m pytest -m "soak or long" $(TESTS)
	$(BIN)/python -m pytest -m soak tests/verify
	$(BIN)/python -m tests.integration.soak_loop --kills $(KILLS)
	$(BIN)/python -m tests.integration.soak_loop --kills-on-s3 $(KILLS)
	$(BIN)/python -m tests.integration.soak_loop --promotions $(KILLS)
	$(BIN)/python -m tests.integration.soak_conformance --kills $(KILLS)
	$(if $(FROM),$(BIN)/python -m tests.integration.soak_upgrade --from $(FROM))

unit: $(READY) ## run the fast tests, which need no Java
	$(BIN)/python -m pytest -m "not long and not soak" flushtracker tests/unit

mutants: $(READY) ## change the code in a thousand ways, one at a time, and list the changes that no fast test notices
	$(BIN)/python -m tests.mutants --sample $(SAMPLE) $(if $(SEED),--seeds $(SEED)) $(if $(LONG),--long) -- $(FILES)

model: java $(READY) ## search all states of the models in docs/model, and check that each of their mutants is found; takes minutes
	$(BIN)/python -m tests.model

bench: java $(READY) jars brokerjars warmup ## run the benchmarks; ONLY=name runs one, BASE=commit compares it with that commit
ifdef BASE
	$(BIN)/python -m tests.bench.pair --base $(BASE) $(ONLY)
else
	$(BIN)/python -m tests.bench --json data/bench.json $(ONLY)
endif

bench-long: java $(READY) jars brokerjars s3jars s3server warmup ## run the benchmarks that take long: latency, capture, snapshots, the whole loop, the tail
	$(BIN)/python -m tests.bench --long --json data/bench_long.json
	$(BIN)/python -m tests.bench.bench_capture
	$(BIN)/python -m tests.bench.bench_snapshot
	$(BIN)/python -m tests.bench.bench_loop --rates 300 1000 0
	$(BIN)/python -m tests.bench.bench_tail

check: $(READY) ## run ruff and mypy, in their strict settings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY) ## build the site of the documentation into data/site, without a network; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "look at it: $(BIN)/python -m http.server --directory data/site --bind 127.0.0.1"

format: $(READY) ## fix and format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

jars: java $(READY) ## fetch Spark's extra jars into .jars; other targets do this when needed
	@$(BIN)/python -m flushtracker.jvm.jars spark

brokerjars: java $(READY) ## fetch the local broker's jars into .jars/kafka; other targets do this when needed
	@$(BIN)/python -m flushtracker.jvm.jars broker

connectjars: java $(READY) ## fetch Kafka Connect with Debezium for the tests into .jars/connect; other targets do this when needed
	@$(BIN)/python -m tests.support.connect_worker

s3jars: java $(READY) ## fetch what Spark needs for checkpoints on S3 into .jars/s3
	@$(BIN)/python -m flushtracker.jvm.jars s3

serverjars: java $(READY) ## fetch a PostgreSQL server of each version, an old Kafka broker and Hadoop for the tests into .jars; other targets do this when needed
	@$(BIN)/python -m tests.support.server_versions && $(BIN)/python -m tests.support.oldest_servers
	@$(BIN)/python -m tests.support.hadoop_cluster

s3server: $(READY) ## build a server with the API of S3 for the tests into .jars/store, with Go; other targets do this when needed
	@$(BIN)/python -m tests.support.go_programs s3

helm: $(READY) ## build Helm for the tests of the chart into .jars/helm, with Go; other targets do this when needed
	@$(BIN)/python -m tests.support.go_programs helm

classes: java $(READY) jars brokerjars ## archive Spark's and the broker's classes, for a faster start, into .jars; other targets do this when needed
	@$(BIN)/python -m flushtracker.trials.warmup.program

# Without the archive everything works, too.
warmup: java $(READY) jars brokerjars
	-@$(BIN)/python -m flushtracker.trials.warmup.program

pins: $(READY) ## pin in constraints.txt all that pyproject.toml needs, for every Python; a version stays where it can
	$(BIN)/python -m tests.pins

sums: java $(READY) ## add the SHA-256 of jars that are new in a lock, beside the lock
	$(BIN)/python -m tests.jar_sums

release: java $(READY) ## build what a release consists of from the commit, twice, into dist/release, and try its wheel by itself; takes minutes
	rm -rf dist/release
	$(BIN)/python -m tests.release dist/release
	$(BIN)/python -m tests.installed_wheel dist/release

clean: ## remove data/, build output and tool caches
	rm -rf data build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log

distclean: clean ## also remove .venv and .jars
	rm -rf .venv .venv-* .jars flushtracker.egg-info

# Check this machine before downloading half a gigabyte.
python:
	@command -v "$(PYTHON)" > /dev/null || { \
	  echo "$(PYTHON) was not found: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1), but flushtracker needs 3.10 or newer:" >&2; \
	  echo "name a newer one, as in: make PYTHON=python3.12" >&2; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || { \
	  echo "$(PYTHON) cannot create a virtual environment, because its venv or ensurepip is missing:" >&2; \
	  echo "install it (on Debian or Ubuntu: apt install python3-venv), or name another: make PYTHON=python3.12" >&2; exit 2; }

verifytools: | python
	@"$(PYTHON)" -m tests.verify.tools > /dev/null

java: | python
	@"$(PYTHON)" -m flushtracker.jvm.java

.venv/.ready: pyproject.toml constraints.txt | python
	@.venv/bin/python -m pip --version > /dev/null 2>&1 || { \
	  echo "creating .venv ..."; "$(PYTHON)" -m venv --clear .venv; }
	@echo "installing the Python packages into .venv; Spark alone is half a gigabyte, so this takes a few minutes ..."
	@.venv/bin/python -m pip install --quiet --use-pep517 --disable-pip-version-check -c constraints.txt -e '.[dev]' || { \
	  echo "The Python packages could not be installed; pip's error is above." >&2; \
	  echo "If its index is unreachable, set PIP_INDEX_URL to another one and run make again." >&2; exit 2; }
	@touch $@
	@echo "the Python packages are installed"

# Another pyspark, and all else from .venv, whose packages the new environment finds after its own.
.venv-%/.ready: flushtracker/jvm/spark_version.py | .venv/.ready
	@version=$$(.venv/bin/python -m flushtracker.jvm.spark_version $*) || exit 2; \
	echo "installing pyspark $$version into .venv-$* ..."; \
	.venv/bin/python -m venv --clear --without-pip .venv-$* && \
	.venv/bin/python -m pip --python .venv-$* install --quiet --no-deps --ignore-installed -e . "pyspark==$$version" && \
	.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth
	@touch $@
