"""The log of a disk's writes, and the images that a power cut may leave.

The log is in the format of dm-log-writes: sectors of 512 bytes, the first one a super-block, then
for each write, flush or discard a sector that describes it, and its data."""

import os
import random
import struct
from dataclasses import dataclass

SECTOR = 512
SUPERBLOCK_END = 4096
MAGIC = 0x6A736677736872
FLUSH, DISCARD = 1, 4
# The shares of the writes not yet flushed that an image has.
SHARES = (0.1, 0.5, 0.9)
TEAR_SHARE = 0.3


@dataclass
class Write:
    at: int  # the place on the disk, in bytes
    size: int
    data: int  # the place in the log, in bytes


@dataclass
class Entry:
    end: int  # the length of the log with this entry
    write: Write | None
    is_flush: bool


def read_log(path):
    """All entries of a log. QEMU may have been killed within the last one, which is left out."""
    entries = []
    with open(path, "rb") as log:
        magic, version, _, sector = struct.unpack("<QQQI", log.read(28))
        if (magic, version, sector) != (MAGIC, 1, SECTOR):
            raise ValueError(f"{path} is no log of writes: {magic:x} {version} {sector}")
        size = os.fstat(log.fileno()).st_size
        place = SECTOR
        while place + SECTOR <= size:
            log.seek(place)
            at, count, flags = struct.unpack("<QQQ", log.read(24))
            data = place + SECTOR
            place = data + (0 if flags & DISCARD else count * SECTOR)
            if place > size:
                break
            if flags & ~(FLUSH | DISCARD):
                raise ValueError(f"{path}: an entry with the unexpected flags {flags:x}")
            has_data = count and not flags & DISCARD
            write = Write(at * SECTOR, count * SECTOR, data) if has_data else None
            entries.append(Entry(place, write, bool(flags & FLUSH)))
    return entries


@dataclass
class Cut:
    """A power cut right after the entry `last`: all writes up to the entry `flush` are on the disk,
    and a random part of the others. Of two writes to one sector the later one wins, because a disk
    never goes back. So its order of writing matters only as a choice of writes."""

    last: int
    flush: int
    seed: str
    is_torn: bool


def choose(entries, begin, count, chance):
    """Chooses cuts from the entry `begin` on, in the order of the log: up to half of `count` after
    flushes, and the rest between flushes. Returns the number of flushes as well."""
    flushes, between, last = [], [], None
    has_written = False
    for number, entry in enumerate(entries):
        has_written = has_written or entry.write is not None
        if entry.is_flush:
            if number >= begin and has_written:
                flushes.append((number, number))
            last, has_written = number, False
        elif number >= begin and entry.write and last is not None:
            between.append((number, last))
    some = chance.sample(flushes, min(len(flushes), count // 2))
    cuts = [Cut(*place, "", False) for place in some]
    for place in chance.choices(between, k=count - len(cuts)):
        cuts.append(Cut(*place, f"{chance.random()}", chance.random() < TEAR_SHARE))
    return sorted(cuts, key=lambda cut: (cut.last, cut.seed)), len(flushes)


class Images:
    """Makes the images of cuts, which must come in their order."""

    def __init__(self, disk, log, entries, folder, tear_bytes):
        self.log = os.open(log, os.O_RDONLY)
        self.entries, self.next, self.tear_bytes = entries, 0, tear_bytes
        self.base, self.image = folder / "base", folder / "image"
        copy_data(disk, self.base)

    def make(self, cut):
        """Returns the path of the image. The next call replaces it."""
        with open(self.base, "r+b") as base:
            while self.next <= cut.flush:
                self.carry_out(base, self.entries[self.next].write)
                self.next += 1
        copy_data(self.base, self.image)
        if cut.seed:
            chance = random.Random(cut.seed)
            share = chance.choice(SHARES)
            entries = self.entries[cut.flush : cut.last + 1]
            writes = [entry.write for entry in entries if entry.write]
            kept = [write for write in writes if chance.random() < share]
            # ext4 cannot be mounted if the 1 KiB of its superblock, which has a checksum, is torn.
            may_tear = [write for write in kept if write.at >= SUPERBLOCK_END]
            torn = chance.choice(may_tear) if may_tear and cut.is_torn else None
            with open(self.image, "r+b") as image:
                for write in kept:
                    if write is not torn:
                        self.carry_out(image, write)
                        continue
                    for skip in range(0, write.size, self.tear_bytes):
                        if chance.random() < 0.5:
                            size = min(self.tear_bytes, write.size - skip)
                            part = Write(write.at + skip, size, write.data + skip)
                            self.carry_out(image, part)
        return self.image

    def carry_out(self, file, write):
        if write:
            os.pwrite(file.fileno(), os.pread(self.log, write.size, write.data), write.at)


def copy_data(source, target):
    """Copies a file with its holes."""
    target.unlink(missing_ok=True)
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        place = 0
        while place < size:
            try:
                place = os.lseek(old.fileno(), place, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(old.fileno(), place, os.SEEK_HOLE)
            os.lseek(new.fileno(), place, os.SEEK_SET)
            while place < end:
                place += os.sendfile(new.fileno(), old.fileno(), place, end - place)
