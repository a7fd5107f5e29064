# The trials of whole systems. The Makefile at the top includes this, so all paths begin there.
.PHONY: failover power-cuts metrics page targets packages

# A second machine that takes over, while daemons, machines and storage fail: as root on Debian, more
# than an hour. STAGE=cephfs, glusterfs, drbd, nfs, cephfs-kernel or rbd, ONLY=kill,cut and ROUNDS=n
# choose; SEED=n is another load; PLANT=no-fencing, protocol-a and no-lock are defects that must be
# found.
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

# Tests the page of `beanstalkctl web` in a real browser, and then takes its pictures, in
# target/page. TRY= skips the tests, and SHOTS= the pictures.
page: TRY = yes
page: SHOTS = target/page
page: all
	$(if $(TRY),tests/system/web/try-page $(DAEMON) $(CTL))
	$(if $(SHOTS),tests/system/web/try-page --shots $(SHOTS) $(DAEMON) $(CTL))

# Compiles for every system that we name, and runs tests on 32 bits and in emulators, in a
# fresh Debian 13. ONLY='TARGET...' chooses, COMPILE_ONLY=1 runs nothing.
targets:
	COMPILE_ONLY=$(COMPILE_ONLY) tests/system/targets $(ONLY)

# Builds the image of a container on Debian, and tests it with a job.
packages:
	tests/system/container-test
