# The steps of `make check`, longer tests, and measurements. The Makefile at the top includes this,
# so all paths begin there.
.PHONY: checks lacking fmt clippy doc scripts golden both-originals original promtool sim fuzz \
    corpus turns memory kills abuse acts soak diff mutants bench bench-quick crowd clients

# The Rust version for the formatter and the lints, because versions differ. `make check` skips both
# if $(CARGO) is of another version and rustup does not have this one.
LINT_RUST = 1.95

# Release 1.13 of the original if `make original` has fetched it; otherwise the installed release.
FETCHED = $(ABSOLUTE)/original/1.13/usr/bin/beanstalkd
ORIGINAL ?= $(if $(shell test -x '$(FETCHED)' && echo yes),$(FETCHED),/usr/bin/beanstalkd)
# The skipped checks, for the end of `make check`. Its name and ORIGINAL may contain spaces, so
# recipes read both as the shell's.
SKIPPED ?= $(ABSOLUTE)/skipped
# The names of the tests that fail, for its very end.
FAILED ?= $(ABSOLUTE)/failed
export ORIGINAL RIVAL SKIPPED FAILED

# The checks of `make check`, without its lists.
checks: fmt clippy doc test

# Lists missing tools that are easy to get and avoid skipped tests.
lacking: tools
	@packages=$$(ct/lacking); test -z "$$packages" || \
	    echo "*** Fewer tests will be skipped after: apt install $$packages" >&2
	@test -x "$$ORIGINAL" || echo '*** Fewer tests will be skipped after: make original' >&2
	@test -n "$$PROMTOOL" || test -x '$(BUILT)/prometheus/usr/bin/promtool' || \
	    command -v promtool > /dev/null || \
	    echo '*** Fewer tests will be skipped after: make promtool' >&2

# Checks the formatting, if the Rust for lints is installed.
fmt: tools
	@$(call lint,fmt,--all --check)

# The lints, likewise.
clippy: tools
	@$(call lint,clippy,--all-targets --locked -- -D warnings)

# Runs `cargo $(1) $(2)` of the Rust for lints, or prints in one line why it cannot.
define lint
    found=$$($(CARGO) --version | cut -d' ' -f1,2); \
    case $$found in \
    "cargo $(LINT_RUST)" | "cargo $(LINT_RUST)."*) cargo=$(CARGO) ;; \
    *) other=$$(rustup toolchain list 2>/dev/null | grep -o '^$(LINT_RUST)[^ ]*' | head -n 1); \
        cargo=$${other:+cargo +$$other} ;; \
    esac; \
    if test -z "$$cargo"; then \
        missing="we lint with Rust $(LINT_RUST), and this is $$found"; \
    elif ! $$cargo $(1) --version >/dev/null 2>&1; then \
        missing="$$found has no $(1) (rustup component add rustfmt clippy)"; \
    else \
        echo "$$cargo $(1) $(2)"; $$cargo $(1) $(2); exit; \
    fi; \
    echo "*** SKIPPED: make $(1): $$missing" >&2; \
    mkdir -p "$${SKIPPED%/*}" && printf '%s\tmake $(1)\n' "$$missing" >> "$$SKIPPED"
endef

# The documentation of the code, and its examples.
doc: tools
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked
	$(CARGO) test --quiet --doc --locked -p beanstalkd-server

# Linters on the scripts and the packages.
scripts:
	pkg/scripts

# Compiles all tests, and plays the golden scripts in memory, on the daemon and on the original.
golden: tools
	$(CARGO) test --locked --no-run
	$(CARGO) test --locked --test core --test daemon -- golden::

# The golden scripts and the seeded traffic, with the releases 1.13 and 1.12 of the original.
both-originals: tools
	for release in 1.13 1.12; do \
	    original=$$(ct/get-original $$release) && \
	    ORIGINAL=$$original $(CARGO) test --locked --test daemon -- golden:: diff:: || exit 1; \
	done

# The original to compare with: release 1.13 from Debian 13, unpacked below target, or the one that
# ORIGINAL names.
original:
	@if test '$(origin ORIGINAL)' = file; then ct/get-original 1.13 > /dev/null; \
	else test -x "$$ORIGINAL" || { echo "there is no $$ORIGINAL" >&2; exit 1; }; fi

# Debian's prometheus and promtool, unpacked below target, for `make metrics` and for the tests.
promtool:
	@ct/get-promtool > /dev/null

# More seeds than `make check` runs: SEED=n repeats one run; RUNS=n is the number of runs from SEED
# on, and MINUTES=n their duration.
sim: tools
	SEED=$(SEED) RUNS=$(or $(RUNS),$(if $(SEED),1,2000)) MINUTES=$(MINUTES) \
	    $(CARGO) test --release --locked --test core -- --nocapture sim::
	SEED=$(SEED) RUNS=$(or $(RUNS),$(if $(SEED),1,2000)) MINUTES=$(MINUTES) \
	    $(CARGO) test --release --locked --test core -- --nocapture crash:: takeover::

# Fuzzing, for as long as you like: TARGET=server, parse, replay or flags, SECONDS=60. Needs
# cargo-fuzz, but no nightly Rust.
fuzz: tools
	ct/fuzz/run $(or $(TARGET),server) $(or $(SECONDS),60)

# Keeps the inputs that fuzzing has found, as few as possible, in an archive for each target; `make
# check` judges them.
corpus: tools
	ct/fuzz/minimize

# Measures the longest turn while the queue grows to ten million jobs (JOBS) and shrinks again.
# Takes a few minutes, and 2 GB of memory.
turns: tools
	$(CARGO) test --release --locked --test turns -- --ignored --nocapture

# Compares resident memory and the number of jobs that fit with the original's, for mixes of sizes.
# Takes some five minutes.
memory: daemon original
	ct/memory $(DAEMON) "$$ORIGINAL"

# Kills the real daemon RUNS times under load with each sync policy. Then makes a million changes to
# a few jobs, and checks that the binlog stays small.
kills: tools
	RUNS=$(or $(RUNS),200) CYCLES=$(or $(CYCLES),1000000) $(CARGO) test --release --locked --test daemon \
	    -- --nocapture binlog::kills:: binlog::growth::

# Abuse by connections, of this daemon and of the original, and its effect on a well-behaved client:
# some twenty minutes. ONLY=idle,blocked chooses.
abuse: all original
	$(CARGO) build -q --release --locked -p ct
	$(BUILT)/release/ct-abuse $(if $(ONLY),--only $(ONLY)) --rounds $(or $(ROUNDS),3) $(DAEMON) "$$ORIGINAL"

# ACTS runs of destructive commands of beanstalkctl, from run FROM on. Each is ended at a different
# moment by a different signal, during other clients' commands or a restart.
acts: daemon
	ACTS=$(or $(ACTS),100) FROM=$(or $(FROM),0) $(CARGO) test --release --locked -p beanstalkctl \
	    --test commands -- --ignored --nocapture stress::

# Mixed load with a binlog, kills and restarts for MINUTES: nothing may be lost, and nothing may
# grow. PLANT=loss, leak or growth plants a defect that must be found.
soak: all
	$(CARGO) build -q --release --locked -p ct
	$(BUILT)/release/ct-soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1) \
	    $(if $(PLANT),--plant $(PLANT)) $(DAEMON)

# Seeded traffic to this daemon and the original, valid and garbage: RUNS=n runs from SEED=n on.
# Also tests whether ct alone notices planted defects.
diff: all original
	$(CARGO) build -q --release --locked -p ct
	$(BUILT)/release/ct-diff --left $(DAEMON) --right "$$ORIGINAL" --go-on \
	    --seed $(or $(SEED),1) --runs $(or $(RUNS),500)
	$(BUILT)/release/ct-diff --left $(DAEMON) --right "$$ORIGINAL" --go-on --garbage \
	    --seed $(or $(SEED),1) --runs $(or $(RUNS),500)

# Plants COUNT seeded mistakes in the code, and counts the ones that the tests catch.
mutants: original
	ct/mutants $(or $(SEED),1) $(or $(COUNT),50) $(FOLDERS)

# Compares with the original in interleaved runs, in about fourteen minutes; and with a rival if one
# is given: `make bench RIVAL='PROGRAM FLAGS'`.
bench: all original
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- \
	    compare --json target/bench.json --plots target/plots $(DAEMON) "$$ORIGINAL" $${RIVAL:+"$$RIVAL"}
	$(BUILT)/release/ct-bench goals target/bench.json ct/goals

# The same in a minute, without goals.
bench-quick: all original
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- compare --quick $(DAEMON) "$$ORIGINAL" \
	    $${RIVAL:+"$$RIVAL"}

# Whether a command costs more with 10,000 tubes, 10,000 blocked workers and a million jobs.
crowd: all
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- crowd $(DAEMON)

# Runs real client libraries, unmodified from their registries, against this daemon and the
# original: the transcripts must be equal.
clients: all
	ct/clients/run $(DAEMON)
