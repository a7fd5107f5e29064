"""What goes wrong, and what is done about it. In the beginning c1 serves and c2 waits."""

import signal
import time

from scene import LOAD_SECONDS, READY_SECONDS, TAKEOVER_SECONDS
from trial import Failed, wait

# How long a healed machine has to find its storage again before clients come.
HEALED_SECONDS = 8
# How long it takes until an operator, or a program, decides to evict a machine.
DECISION_SECONDS = 3
UNMOUNTED_SECONDS = 3
DEAD_PART_SECONDS = 15
RESTART_PART_SECONDS = 5
STARTED_PART_SECONDS = 15
CLEARED_TIMES = 20
FADING_SECONDS = 1


def kill(scene):
    """the active daemon is killed"""
    scene.begin()
    scene.load()
    time.sleep(LOAD_SECONDS)
    scene.fault("SIGKILL for the active daemon")
    scene.old.kill()
    scene.wait_for_takeover()


def cut(scene):
    """its machine is cut off while clients put, and healed"""
    scene.begin_with_load()
    scene.network.cut("c1")
    scene.fault("c1 is cut off")
    scene.wait_for_takeover()
    scene.heal()
    scene.wait_for_the_old_one()
    time.sleep(HEALED_SECONDS)


def idle(scene):
    """its machine is cut off while nobody puts, and healed; then clients put to it directly"""
    scene.begin()
    inside = scene.load_inside()
    time.sleep(LOAD_SECONDS)
    inside.resumed.clear()
    time.sleep(LOAD_SECONDS)
    scene.network.cut("c1")
    scene.fault("c1 is cut off")
    scene.load()
    scene.wait_for_takeover()
    scene.heal()
    time.sleep(HEALED_SECONDS)
    scene.remarks.append(f"before clients put to it again the old one: {scene.old.story()}")
    inside.resumed.set()
    scene.put_to("cl", scene.nodes["c1"].address, "outside")
    scene.wait_for_the_old_one()
    time.sleep(LOAD_SECONDS)


def early(scene):
    """its machine is cut off just after the start, while the first preallocated file is filled"""
    scene.prepare()
    scene.load_inside()
    scene.start_active()
    scene.start_standby()
    scene.settled_at = time.monotonic()
    wait(lambda: len(scene.ledger.acks) > 2, "it acknowledges", READY_SECONDS)
    scene.network.cut("c1")
    scene.fault("c1 is cut off")
    scene.remarks.append(f"cut {scene.fault_at - scene.old.listens_at:.2f} s after it listened")
    scene.load()
    scene.wait_for_takeover()
    scene.heal()
    scene.wait_for_the_old_one()
    time.sleep(HEALED_SECONDS)


def evict(scene):
    """its machine is cut off, and evicted at the storage as soon as that is decided"""
    scene.begin_with_load()
    scene.network.cut("c1")
    scene.say("c1 is cut off")
    time.sleep(DECISION_SECONDS)
    scene.fault("it is decided to evict c1")
    scene.storage.evict("c1")
    scene.remarks.append(f"the eviction took {scene.since_fault():.1f} s")
    scene.wait_for_takeover()
    scene.heal()
    scene.wait_for_the_old_one()
    time.sleep(HEALED_SECONDS)


def fuse(scene):
    """its FUSE process is killed, and the file system mounted again"""
    scene.begin_with_load()
    scene.fault("SIGKILL for the FUSE process of c1")
    scene.storage.fuse["c1"].kill()
    time.sleep(UNMOUNTED_SECONDS)
    scene.storage.remount("c1")
    scene.say("c1 has mounted again")
    scene.wait_for_takeover()
    scene.wait_for_the_old_one()


def frozen(scene):
    """its machine is frozen until the other has taken over, and thaws"""
    freeze(scene)


def asleep(scene):
    """its machine is frozen and cut off, as a virtual machine that is suspended, and woken up"""
    freeze(scene, is_cut=True)


def freeze(scene, is_cut=False):
    scene.begin_with_load()
    machine = scene.storage.machine("c1", scene.old)
    for process in machine:
        process.send_signal(signal.SIGSTOP)
    if is_cut:
        scene.network.cut("c1")
    scene.fault("c1 is frozen")
    try:
        scene.wait_for_takeover()
    finally:
        if is_cut:
            scene.heal()
        for process in reversed(machine):
            process.send_signal(signal.SIGCONT)
    scene.say("c1 thaws")
    scene.wait_for_the_old_one()
    time.sleep(HEALED_SECONDS)


def power(scene):
    """its machine loses its power"""
    scene.begin_with_load()
    scene.fault("c1 loses its power")
    scene.storage.guests["c1"].stop()
    scene.wait_for_takeover()


def fading(scene):
    """its machine is cut off, and loses its power a second later"""
    scene.begin_with_load()
    scene.network.cut("c1")
    scene.fault("c1 is cut off")
    time.sleep(FADING_SECONDS)
    scene.storage.guests["c1"].stop()
    scene.wait_for_takeover()
    scene.heal()


def link(scene):
    """only the link between the machines is cut; clients reach both"""
    scene.begin_with_load("c1", "c2")
    scene.network.cut("c1", last_port_only=True)
    scene.fault("the link is cut")
    wait(scene.storage.is_decided, "one machine has switched the other off", TAKEOVER_SECONDS)
    time.sleep(STARTED_PART_SECONDS)
    scene.heal()


def again(scene):
    """its machine loses its power, and when it is back, the other one does"""
    power(scene)
    scene.storage.settle(scene)
    first, scene.old = scene.old, scene.storage.guests["c2"].runs[-1]
    scene.fault("c2 loses its power")
    scene.storage.guests["c2"].stop()
    scene.wait_for_takeover()
    scene.old = first


def both(scene):
    """both machines lose their power at once, and start again"""
    scene.begin_with_load()
    scene.fault("both lose their power")
    for guest in scene.storage.guests.values():
        guest.stop()
    scene.storage.settle(scene)
    scene.wait_for_takeover()


def alone(scene):
    """the standby loses its power for long, and meanwhile the active machine for a moment"""
    scene.begin()
    scene.load()
    time.sleep(LOAD_SECONDS)
    first, second = scene.storage.guests.values()
    second.stop()
    scene.say("c2 loses its power")
    time.sleep(STARTED_PART_SECONDS)
    scene.fault("c1 loses its power, and starts again")
    first.stop()
    first.start_again()
    scene.wait_for_takeover()


def moved(scene):
    """an operator moves the service; the machine that leaves is not switched off"""
    scene.begin_with_load()
    scene.fault("the operator stops the service on c1")
    guest = scene.storage.guests["c1"]
    guest.hand_over()
    scene.wait_for_takeover()
    come_back(guest)


def left(scene):
    """the standby leaves, as for a reboot, and is not switched off"""
    scene.begin_with_load()
    scene.fault("the operator stops the service on c2")
    guest = scene.storage.guests["c2"]
    guest.leave()
    come_back(guest)
    time.sleep(LOAD_SECONDS)


def come_back(guest):
    """After as long as it takes to switch off a machine that is lost."""
    time.sleep(HEALED_SECONDS)
    if not guest.is_on():
        raise Failed(f"{guest.name} was switched off")
    guest.start()


def server(scene):
    """the file server loses its power, and starts again"""
    scene.begin()
    scene.load()
    time.sleep(LOAD_SECONDS)
    scene.fault("the server loses its power")
    scene.storage.guests["s1"].stop()
    scene.storage.start_server()
    scene.say("the server is back")
    since = time.monotonic()
    wait(lambda: scene.ledger.acks[-1].at > since, "a daemon acknowledges", TAKEOVER_SECONDS)
    scene.say(f"a daemon acknowledges {scene.since_fault():.1f} s later")
    time.sleep(STARTED_PART_SECONDS)


def store(scene):
    """one storage node is killed"""
    scene.begin()
    scene.load()
    time.sleep(LOAD_SECONDS)
    part = list(scene.storage.parts)[2]
    scene.fault(f"SIGKILL for {part}")
    scene.storage.kill_part(part)
    time.sleep(DEAD_PART_SECONDS)
    scene.storage.start_part(part)
    scene.storage.wait_until_healthy()
    time.sleep(LOAD_SECONDS)


def stores(scene):
    """each part of the storage is killed and started again in turn"""
    scene.begin_with_load("c1", "c2")
    scene.fault("each part of the storage in turn")
    for part in scene.storage.parts:
        scene.say(f"SIGKILL for {part}, and its start")
        since = time.monotonic()
        scene.storage.kill_part(part)
        time.sleep(RESTART_PART_SECONDS)
        scene.storage.start_part(part)
        time.sleep(STARTED_PART_SECONDS)
        pause = scene.longest_pause(since, time.monotonic())
        scene.pauses.append(pause)
        scene.remarks.append(f"{part} {pause:.1f} s")
        scene.say(f"{part}: the longest pause was {pause:.1f} s; c1: {scene.old.story()}")
        # GlusterFS has seldom healed a file to which somebody writes.
        with scene.quiet():
            scene.storage.wait_until_healthy()
        time.sleep(LOAD_SECONDS)


def silent(scene):
    """each part of the storage in turn, while nobody puts; then clients put to both daemons"""
    scene.begin_with_load("c1", "c2")
    with scene.quiet():
        for part in scene.storage.parts:
            scene.say(f"SIGKILL for {part}, and its start")
            scene.storage.kill_part(part)
            time.sleep(RESTART_PART_SECONDS)
            scene.storage.start_part(part)
            time.sleep(RESTART_PART_SECONDS)
            scene.storage.wait_until_healthy()
        took_over = scene.standby.took_over_at is not None
        scene.remarks.append(f"before the puts the old one: {scene.old.story()}")
        scene.remarks.append(f"c2 {'has' if took_over else 'does not have'} the lock then")
        scene.fault("clients put again")
    time.sleep(STARTED_PART_SECONDS)


def cleared(scene):
    """the file system forgets the lock under load, and tells nobody"""
    scene.begin_with_load("c1", "c2")
    for count in range(1, CLEARED_TIMES + 1):
        scene.fault("the lock is cleared")
        scene.storage.clear_lock(scene.folder)
        # The old one may have asked again first, and then has it as before.
        time.sleep(LOAD_SECONDS)
        if scene.old.status is not None:
            break
    scene.remarks.append(f"cleared {count} times")
    scene.wait_for_takeover()


def returned(scene):
    """the lock is forgotten while nobody puts; the other takes over and dies; clients put again"""
    scene.begin()
    first = scene.load_inside("c1")
    time.sleep(LOAD_SECONDS)
    first.resumed.clear()
    time.sleep(LOAD_SECONDS)
    scene.fault("the lock is cleared")
    scene.storage.clear_lock(scene.folder)
    wait(lambda: scene.standby.took_over_at, "c2 takes over", TAKEOVER_SECONDS)
    second = scene.load_inside("c2")
    time.sleep(LOAD_SECONDS)
    second.halt()
    scene.managers["c2"].stop()
    for name, path in (("c1", scene.directory("c1")), ("s1", scene.storage.stored(scene.folder))):
        line = scene.nodes[name].run("cat", path / "lock")[1].strip()
        scene.say(f"c2 is dead; {name} reads of the lock: {line}")
    first.resumed.set()
    # Through the proxy, which still takes the old one for up.
    scene.load()
    time.sleep(LOAD_SECONDS)


DRBD = (
    kill, power, cut, idle, early, fading, link, frozen, asleep, again, both, alone, moved, left,
)  # fmt: skip
EXPERIMENTS = {
    "cephfs": (kill, cut, idle, evict, early, fuse, frozen, asleep, store, stores, silent),
    "drbd": DRBD,
    "nfs": (kill, cut, idle, early, frozen, asleep, server),
    "cephfs-kernel": (kill, cut, idle, evict, early, frozen, asleep),
    "rbd": (kill, power, cut, idle, evict, early, frozen, asleep, moved),
    "glusterfs": (kill, cut, idle, early, fuse, asleep, stores, silent, cleared, returned),
}
# What the first active daemon ends with: 10 if the lock is lost, 11 if a write has failed; or its
# machine is fenced.
LOST = ("10", "11", "switched off")
STATUSES = {
    "kill": ("signal 9",),
    "link": ("runs",),
    "moved": ("0",),
    "left": ("runs",),
    "store": ("runs",),
    "server": ("runs", *LOST),
    "stores": ("runs", *LOST),
    "silent": ("runs", *LOST),
}
