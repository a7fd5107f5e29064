# What users and packagers need, listed by `make help`. Longer tests, measurements and trials are in
# ct/rules.mk and tests/system/rules.mk.

CARGO  ?= cargo
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DOCDIR ?= $(PREFIX)/share/doc/beanstalkd

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

.PHONY: all daemon ctl run quick check test release-check install install-daemon install-ctl \
    install-units uninstall paths vendor deb rpm dist clean help tools

all: daemon ctl ## builds both programs in target/release; the default

include ct/rules.mk tests/system/rules.mk

# Each is built alone, so that the needs of beanstalkctl do not change the daemon.
daemon: tools ## builds beanstalkd alone
	$(CARGO) build --release --locked -p beanstalkd-server

ctl: tools ## builds beanstalkctl alone
	$(CARGO) build --release --locked -p beanstalkctl

run: tools ## starts the daemon on loopback for the tour in README, with everything in memory
	$(CARGO) build --profile quick --locked -p beanstalkd-server
	@printf '\nEvery job stays in memory; Ctrl-C ends the daemon. In another terminal, see a job go through:\n\n'
	@awk '/^```$$/ && tour { exit } tour { print "    " $$0 } /^```console/ { tour = 1 }' README.md
	@echo
	@'$(BUILT)/quick/beanstalkd' -l 127.0.0.1 -p 11300

check: lacking ## runs all checks possible here, and lists those skipped or failed
	@mkdir -p "$${SKIPPED%/*}" && rm -f "$$SKIPPED" "$$FAILED"
	@$(MAKE) --no-print-directory checks; status=$$?; \
	    ct/skipped "$$SKIPPED" >&2; \
	    test ! -s "$$FAILED" || { printf '\nFAILED tests:\n'; sed 's/^/  /' "$$FAILED"; } >&2; \
	    exit $$status

quick: fmt clippy doc ## checks what needs no daemon, within a minute of a change
	$(CARGO) test --locked --lib --bins --test core --test docs --test figures -- \
	    --skip sim:: --skip crash:: --skip takeover::

test: tools ## runs all quick tests
	CARGO='$(CARGO)' ct/test

# Takes some hours, as a user of Debian who may become root.
release-check: ## runs every stage of CI
	.ci/run --all

# Programs are stripped, except those for another processor. Packages strip them themselves.
install: STRIPPED = $(if $(EMULATOR)$(filter yes,$(FOREIGN)),,$(if $(shell command -v strip),-s))
# The units need the user beanstalkd, and systemd looks for none below a home directory.
AT_HOME = $(filter $(HOME)/%,$(PREFIX))
install: install-daemon install-ctl $(if $(AT_HOME),,install-units) ## installs programs, pages and units below PREFIX
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
	install -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	install -m 644 pkg/completions/beanstalkd.bash $(DESTDIR)$(BASHDIR)/beanstalkd
	install -m 644 pkg/completions/beanstalkd.zsh $(DESTDIR)$(ZSHDIR)/_beanstalkd
	install -m 644 pkg/completions/beanstalkd.fish $(DESTDIR)$(FISHDIR)/beanstalkd.fish
	pkg/pages $(DESTDIR)$(DOCDIR)

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

uninstall: paths ## removes them
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

# Without a network. DEB_BUILD_OPTIONS=nocheck skips its tests.
deb: vendor ## makes a Debian package, target/deb/*.deb
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

rpm: vendor ## makes an rpm, target/rpm/RPMS/*/*.rpm
	@command -v rpmbuild >/dev/null || { \
	    echo 'rpmbuild is missing: apt install rpm, or: dnf install rpm-build' >&2; exit 1; }
	pkg/rpm-build

dist: ## makes all files of a release, target/dist
	pkg/dist

clean: ## removes all build results
	$(CARGO) clean

help: ## lists these
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' Makefile | awk -F '\t' '{ printf "make %-14s %s\n", $$1, $$2 }'
	@echo 'ct/rules.mk and tests/system/rules.mk have longer tests, measurements and trials.'

# Prints one line where something is missing or too old.
tools: RUST = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
tools: GET = install Rust $(RUST) or later (https://rustup.rs, or: apt install cargo, on Debian 12 cargo-web)
tools:
	@command -v $(CARGO) >/dev/null || { echo 'cargo is missing: $(GET)' >&2; exit 1; }
	@test $(CARGO) = true || $(CARGO) --version | awk -F '[ .]' -v oldest=$(RUST) '{ \
	    split(oldest, least, "."); \
	    if ($$2 > least[1] || $$2 == least[1] && $$3 >= least[2]) exit; \
	    print $$0 " is too old: $(GET)"; exit 1 }' >&2
	@test $(CARGO) = true || command -v cc >/dev/null || { \
	    echo 'a linker is missing: install a C compiler (apt install gcc, or: dnf install gcc)' >&2; exit 1; }
