# The original's verbs, thin over cargo.

CARGO  ?= cargo
# The Rust version for the formatter and the lints, because versions differ. `make check` skips both
# if $(CARGO) is of another version and rustup does not have this one.
LINT_RUST = 1.95
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DOCDIR ?= $(PREFIX)/share/doc/beanstalkd

TRY = yes
SHOTS = target/page
# Cargo's build directory.
BUILT = $(or $(CARGO_TARGET_DIR),target)
# Not by `abspath`, which splits a name at spaces.
ABSOLUTE = $(if $(filter /%,$(BUILT)),,$(CURDIR)/)$(BUILT)
DAEMON = $(BUILT)/release/beanstalkd
CTL = $(BUILT)/release/beanstalkctl
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
DEB = target/deb/beanstalkd-$(VERSION)
UNITS = beanstalkd.service beanstalkd@.service beanstalkd.socket beanstalkd-metrics.service beanstalkd-metrics.socket \
    beanstalkd-web.service beanstalkd-web.socket
# Release 1.13 of the original if `make original` has fetched it; otherwise the installed release.
FETCHED = $(ABSOLUTE)/original/1.13/usr/bin/beanstalkd
ORIGINAL ?= $(if $(shell test -x '$(FETCHED)' && echo yes),$(FETCHED),/usr/bin/beanstalkd)
# The skipped checks, for the end of `make check`. Its name and ORIGINAL may contain spaces, so
# recipes read both as the shell's.
SKIPPED ?= $(ABSOLUTE)/skipped
# The names of the tests that fail, for its very end.
FAILED ?= $(ABSOLUTE)/failed
export ORIGINAL RIVAL SKIPPED FAILED

.PHONY: all daemon ctl run check checks lacking fmt clippy doc test golden quick release-check sim turns memory kills acts abuse soak diff mutants fuzz corpus bench \
    bench-quick crowd original both-originals clients failover power-cuts metrics promtool page \
    install install-daemon install-ctl install-units uninstall vendor deb rpm targets packages scripts dist clean \
    tools

all: daemon ctl

# Each is built alone, so that the needs of beanstalkctl do not change the daemon.
daemon: tools
	$(CARGO) build --release --locked -p beanstalkd-server

ctl: tools
	$(CARGO) build --release --locked -p beanstalkctl

# Starts the daemon for the README's tour: on loopback, with everything in memory.
run: tools
	$(CARGO) build --profile quick --locked -p beanstalkd-server
	@printf '\nEvery job stays in memory; Ctrl-C ends the daemon. In another terminal, see a job go through:\n\n'
	@awk '/^```$$/ && tour { exit } tour { print "    " $$0 } /^```console/ { tour = 1 }' README.md
	@echo
	@'$(BUILT)/quick/beanstalkd' -l 127.0.0.1 -p 11300

# Everything that can be checked here. Skipped checks and failed tests are listed at the end.
check: lacking
	@mkdir -p "$${SKIPPED%/*}" && rm -f "$$SKIPPED" "$$FAILED"
	@$(MAKE) --no-print-directory checks; status=$$?; \
	    ct/skipped "$$SKIPPED" >&2; \
	    test ! -s "$$FAILED" || { printf '\nFAILED tests:\n'; sed 's/^/  /' "$$FAILED"; } >&2; \
	    exit $$status

checks: fmt clippy doc test

# Lists missing tools that are easy to get and avoid skipped tests.
lacking: tools
	@packages=$$(ct/lacking); test -z "$$packages" || \
	    echo "*** Fewer tests will be skipped after: apt install $$packages" >&2
	@test -x "$$ORIGINAL" || echo '*** Fewer tests will be skipped after: make original' >&2
	@test -n "$$PROMTOOL" || test -x '$(BUILT)/prometheus/usr/bin/promtool' || \
	    command -v promtool > /dev/null || \
	    echo '*** Fewer tests will be skipped after: make promtool' >&2

# Checks that need no daemon, within a minute of a change.
quick: fmt clippy doc
	$(CARGO) test --locked --lib --bins --test core --test docs --test figures -- \
	    --skip sim:: --skip crash:: --skip takeover::

fmt: tools
	@$(call lint,fmt,--all --check)

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

doc: tools
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked
	$(CARGO) test --quiet --doc --locked -p beanstalkd-server

test: tools
	CARGO='$(CARGO)' ct/test

# Every stage of CI, the long ones included, before a release. Takes some hours, as a user of Debian
# who may become root.
release-check:
	.ci/run --all

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

# Keeps the inputs that fuzzing has found, in as few files as possible; `make check` replays them.
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

mutants: original
	ct/mutants $(or $(SEED),1) $(or $(COUNT),50) $(FOLDERS)

# Compares with the original in interleaved runs, in about fourteen minutes, or in one; and with a
# rival if one is given: `make bench RIVAL='PROGRAM FLAGS'`.
bench: all original
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- \
	    compare --json target/bench.json --plots target/plots $(DAEMON) "$$ORIGINAL" $${RIVAL:+"$$RIVAL"}
	$(BUILT)/release/ct-bench goals target/bench.json ct/goals

bench-quick: all original
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- compare --quick $(DAEMON) "$$ORIGINAL" \
	    $${RIVAL:+"$$RIVAL"}

# Whether a command costs more with 10,000 tubes, 10,000 blocked workers and a million jobs.
crowd: all
	$(CARGO) run -q --release --locked -p ct --bin ct-bench -- crowd $(DAEMON)

# The original to compare with: release 1.13 from Debian 13, unpacked below target, or the one that
# ORIGINAL names.
original:
	@if test '$(origin ORIGINAL)' = file; then ct/get-original 1.13 > /dev/null; \
	else test -x "$$ORIGINAL" || { echo "there is no $$ORIGINAL" >&2; exit 1; }; fi

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

# Runs real client libraries, unmodified from their registries, against this daemon and the
# original: the transcripts must be equal.
clients: all
	ct/clients/run $(DAEMON)

# A second machine that takes over, while daemons, machines and storage fail: as root on Debian, more
# than an hour. STAGE=cephfs, glusterfs, drbd, nfs or cephfs-kernel, ONLY=kill,cut and ROUNDS=n choose;
# SEED=n is another load; PLANT=no-fencing and protocol-a are defects that must be found.
failover: all
	tests/system/failover/try --install $(if $(STAGE),--stage $(STAGE)) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(PLANT),--plant $(PLANT)) --seed $(or $(SEED),1) --rounds $(or $(ROUNDS),2) $(DAEMON)

# Power cuts of a machine in QEMU under load, on ext4, XFS and btrfs: as root on Debian, some fifteen
# minutes. SEED=n is another load and other cuts; ONLY=ext4,btrfs, MODES=-f0,-F and IMAGES=n choose;
# PLANT=no-sync is a defect that must be found.
power-cuts: daemon
	tests/system/vm/power-cuts --install --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(MODES),--modes=$(MODES)) $(if $(IMAGES),--images $(IMAGES)) \
	    $(if $(PLANT),--plant $(PLANT)) $(DAEMON)

# A real Prometheus scrapes `beanstalkctl metrics` for MINUTES, under a load with known counts.
metrics: all promtool
	tests/system/prometheus/try --minutes $(or $(MINUTES),2) $(DAEMON) $(CTL)

# Debian's prometheus and promtool, unpacked below target, for that run and for the tests.
promtool:
	@ct/get-promtool > /dev/null

# Tests the page of `beanstalkctl web` in a real browser, and then takes its pictures, in
# target/page. TRY= skips the tests, and SHOTS= the pictures.
page: all
	$(if $(TRY),tests/system/web/try-page $(DAEMON) $(CTL))
	$(if $(SHOTS),tests/system/web/try-page --shots $(SHOTS) $(DAEMON) $(CTL))

# Programs are stripped, except those for another processor. Packages strip them themselves.
install: STRIPPED = $(if $(EMULATOR)$(filter yes,$(FOREIGN)),,$(if $(shell command -v strip),-s))
# The units need the user beanstalkd, and systemd looks for none below a home directory.
AT_HOME = $(filter $(HOME)/%,$(PREFIX))
install: install-daemon install-ctl $(if $(AT_HOME),,install-units)
	@test -n '$(DESTDIR)' || { \
	    echo 'Installed. Next:'; \
	    if test -n '$(AT_HOME)' || test "$$(id -u)" != 0; then echo '    $(BINDIR)/beanstalkd -l 127.0.0.1'; exit; fi; \
	    id -u beanstalkd >/dev/null 2>&1 || \
	        echo '    useradd --system --home-dir /var/lib/beanstalkd beanstalkd'; \
	    if command -v systemctl >/dev/null; then \
	        echo '    systemctl daemon-reload'; \
	        echo '    systemctl enable --now $(UNITDIR)/beanstalkd.service'; \
	    else echo '    $(BINDIR)/beanstalkd -l 127.0.0.1 -u beanstalkd'; fi; }

install-daemon: paths daemon
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(MANDIR)/man1
	install -m 755 $(STRIPPED) $(DAEMON) $(DESTDIR)$(BINDIR)/beanstalkd
	install -m 644 beanstalkd.1 $(DESTDIR)$(MANDIR)/man1/beanstalkd.1
	$(call completions,bash,$(BASHDIR),beanstalkd)
	$(call completions,zsh,$(ZSHDIR),_beanstalkd)
	$(call completions,fish,$(FISHDIR),beanstalkd.fish)
	pkg/pages $(DESTDIR)$(DOCDIR)

# The daemon prints the completions of its flags.
completions = $(call printed,$(DAEMON) --completions $(1),$(2),$(3))

# Installs the output of the program $(1) as the file $(3) in the folder $(2). EMULATOR starts programs
# for another processor; FOREIGN=yes omits their output.
printed = $(if $(filter yes,$(FOREIGN)),@echo '*** SKIPPED: $(3): $(firstword $(1)) does not run here' >&2,\
    install -d $(DESTDIR)$(2) && $(EMULATOR) $(1) > $(DESTDIR)$(2)/$(3) && chmod 644 $(DESTDIR)$(2)/$(3) || \
    { rm -f $(DESTDIR)$(2)/$(3); exit 1; })

install-ctl: paths ctl
	install -d $(DESTDIR)$(BINDIR)
	install -m 755 $(STRIPPED) $(CTL) $(DESTDIR)$(BINDIR)/beanstalkctl
	$(call printed,$(CTL) manual,$(MANDIR)/man1,beanstalkctl.1)
	$(call printed,$(CTL) completions bash,$(BASHDIR),beanstalkctl)
	$(call printed,$(CTL) completions zsh,$(ZSHDIR),_beanstalkctl)
	$(call printed,$(CTL) completions fish,$(FISHDIR),beanstalkctl.fish)

install-units: paths
	install -d $(DESTDIR)$(UNITDIR)
	for unit in $(UNITS); do \
	    sed -e 's|/usr/bin/|$(BINDIR)/|' \
	        -e '/inserts pkg.systemd.sandbox here/ { r pkg/systemd/sandbox' -e 'd; }' \
	        pkg/systemd/$$unit* > $(DESTDIR)$(UNITDIR)/$$unit || exit 1; \
	    chmod 644 $(DESTDIR)$(UNITDIR)/$$unit; \
	done

# Paths that the shell or sed would split are refused: an uninstall would remove other files.
DIRECTORIES = PREFIX BINDIR MANDIR UNITDIR BASHDIR ZSHDIR FISHDIR DOCDIR
.PHONY: paths
paths:
	@for setting in $(foreach name,DESTDIR $(DIRECTORIES),'$(name)=$($(name))'); do \
	    case $$setting in DESTDIR=-*) false ;; DESTDIR=* | *=/*) ;; *) false ;; esac || { \
	        echo "it must begin with /: $$setting" >&2; exit 1; }; \
	    if printf "%s\n" "$$setting" | grep -q '[][:space:]"$$`|&;<>()*?{}\\!#]'; then \
	        echo "a character is not possible: $$setting" >&2; exit 1; fi; \
	done
	@for directory in $(foreach name,$(filter-out PREFIX,$(DIRECTORIES)),$(DESTDIR)$($(name))); do \
	    until test -e "$$directory"; do \
	        case $$directory in /*/*|*[!/]/*) directory=$${directory%/*} ;; /*) directory=/ ;; *) directory=. ;; esac; \
	    done; \
	    test -w "$$directory" || { \
	        echo "cannot write to $$directory: use 'sudo make $(MAKECMDGOALS) CARGO=true'," \
	            "or a directory of yours, such as PREFIX=\$$HOME/.local" >&2; exit 1; }; \
	done

uninstall: paths
	rm -f $(DESTDIR)$(BINDIR)/beanstalkd $(DESTDIR)$(MANDIR)/man1/beanstalkd.1
	rm -f $(DESTDIR)$(BASHDIR)/beanstalkd $(DESTDIR)$(ZSHDIR)/_beanstalkd $(DESTDIR)$(FISHDIR)/beanstalkd.fish
	rm -f $(DESTDIR)$(BINDIR)/beanstalkctl $(DESTDIR)$(MANDIR)/man1/beanstalkctl.1 \
	    $(DESTDIR)$(BASHDIR)/beanstalkctl $(DESTDIR)$(ZSHDIR)/_beanstalkctl \
	    $(DESTDIR)$(FISHDIR)/beanstalkctl.fish
	rm -f $(addprefix $(DESTDIR)$(UNITDIR)/,$(UNITS))
	files=$$(pkg/pages) && ! cd $(DESTDIR)$(DOCDIR) 2>/dev/null || { \
	    rm -f $$files && { rmdir examples/* examples "$$PWD" 2>/dev/null || :; }; }

# Sources of all libraries, in the versions of Cargo.lock. The last step that may need a network.
vendor: tools
	$(CARGO) vendor --quiet --locked target/vendor > /dev/null

# A Debian package, built without a network: target/deb/*.deb. DEB_BUILD_OPTIONS=nocheck skips its
# tests.
deb: vendor
	@command -v dh >/dev/null || { \
	    echo 'debhelper is missing: apt install debhelper' >&2; exit 1; }
	rm -rf target/deb
	mkdir -p $(DEB)/.cargo
	tar -c --exclude-vcs --exclude=./target --exclude=./ct/fuzz/target . | tar -x -C $(DEB)
	pkg/fill
	cp -r pkg/debian $(DEB)/debian
	rm $(DEB)/debian/*.in
	cp target/pkg/debian/* $(DEB)/debian
	cp -rl target/vendor $(DEB)/vendor
	printf '[source.crates-io]\nreplace-with = "vendor"\n[source.vendor]\ndirectory = "vendor"\n' \
	    > $(DEB)/.cargo/config.toml
	cd $(DEB) && dpkg-buildpackage -b -d --no-sign
	@ls target/deb/*.deb

# An rpm, built without a network: target/rpm/RPMS/*/*.rpm.
rpm: vendor
	@command -v rpmbuild >/dev/null || { \
	    echo 'rpmbuild is missing: apt install rpm, or: dnf install rpm-build' >&2; exit 1; }
	pkg/rpm-build

# Whether it compiles for every system that we name, and its tests on 32 bits and in emulators, in a
# fresh Debian 13. ONLY='TARGET...' chooses, COMPILE_ONLY=1 runs nothing.
targets:
	COMPILE_ONLY=$(COMPILE_ONLY) tests/system/targets $(ONLY)

# The image, built and seen at work on Debian.
packages:
	tests/system/container-test

# Linters on the scripts and the packages.
scripts:
	pkg/scripts

# All files of a release, their sums and its notes: target/dist.
dist:
	pkg/dist

clean:
	$(CARGO) clean

# One clear line where something is missing or too old.
tools: RUST = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
tools:
	@command -v $(CARGO) >/dev/null || { \
	    echo 'cargo is missing: install Rust $(RUST) or later (https://rustup.rs, or from Debian 13 on:' \
	        'apt install cargo)' >&2; exit 1; }
	@test $(CARGO) = true || $(CARGO) --version | awk -F '[ .]' -v oldest=$(RUST) '{ \
	    split(oldest, least, "."); \
	    if ($$2 > least[1] || $$2 == least[1] && $$3 >= least[2]) exit; \
	    print $$0 " is too old: install Rust " oldest " or later (https://rustup.rs)"; exit 1 }' >&2
	@test $(CARGO) = true || command -v cc >/dev/null || { \
	    echo 'a linker is missing: install a C compiler (apt install gcc, or: dnf install gcc)' >&2; exit 1; }
