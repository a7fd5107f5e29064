"""Network file systems that the kernel mounts, which is a guest's: NFSv4 with a server in a guest of
its own, and CephFS."""

from guests import Guest, Virtual
from nodes import CANDIDATES, run
from storage import SESSION_SECONDS, Ceph, Storage

SBIN = ("exportfs", "nfsdcld", "rpc.mountd", "rpc.nfsd")
SERVER = "s1"
# As in /etc/nfs.conf: how long the server keeps the locks of a silent client, and after its start
# waits for clients that had locks.
START_SERVER = f"""
modprobe nfsd
mount -t ext4 /dev/vda /srv/beanstalkd
mkdir -p /var/lib/nfs/rpc_pipefs /srv/beanstalkd/nfsdcld
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
for kind in lease grace; do echo {SESSION_SECONDS} > /proc/fs/nfsd/nfsv4${{kind}}time; done
nfsdcld -s /srv/beanstalkd/nfsdcld
sleep 3
exportfs -r
rpc.mountd -N 3
rpc.nfsd -N 3 4
""".strip().replace("\n", " && ")  # fmt: skip


class Mounted(Virtual):
    """The candidates mount it when they have booted."""

    modules, files = (), {}
    guest_names = CANDIDATES

    def up(self):
        self.build(self.guest_names, dict(self.files), self.modules)

    def prepare(self, folder):
        self.guests = {name: Guest(self, name) for name in self.guest_names}
        self.make_directory(folder)
        for name in CANDIDATES:
            guest = self.guests[name]
            run("truncate", "-s", "1M", guest.disk)
            guest.boot()
            guest.ask(f"modprobe -a {' '.join(self.modules)}; {self.mount_line}")


class Nfs(Mounted):
    name = "NFSv4"
    packages = (*Virtual.packages, "nfs-common", "nfs-kernel-server")
    programs = (*Virtual.programs, "mount.nfs4", "rpc.nfsd")
    modules = ("nfsv4", "nfsd")
    guest_names = (*CANDIDATES, SERVER)
    files = {
        **{f"usr/sbin/{name}": f"/usr/sbin/{name}" for name in SBIN},
        "sbin/mount.nfs4": "/sbin/mount.nfs4",
        "etc/netconfig": "/etc/netconfig",
        "etc/services": "nfs 2049/tcp\nnfs 2049/udp\n",
        "etc/exports": "/srv/beanstalkd *(rw,sync,fsid=0,no_root_squash,no_subtree_check)\n",
    }
    mount_line = "mount.nfs4 -n 10.77.0.11:/ /srv/beanstalkd -o vers=4.2"

    def make_directory(self, folder):
        server = self.guests[SERVER]
        self.make_disk(server.disk, folder, "64M")
        self.start_server()

    def start_server(self):
        self.guests[SERVER].boot()
        self.guests[SERVER].ask(START_SERVER)

    def copies(self):
        """The server's disk, beside all caches."""
        server = self.guests[SERVER]
        server.ask("sync")
        server.stop()
        self.mount_disk(SERVER)
        return (SERVER,)


class KernelCeph(Mounted, Ceph):
    name = "CephFS with the kernel's client"
    packages = (*Virtual.packages, *Ceph.packages)
    programs = (*Virtual.programs, *Ceph.programs)
    devices = (*Virtual.devices, *Ceph.devices)
    modules = ("ceph",)
    # The judge's directory, mounted with FUSE.
    mounted = ("cl",)
    mount_line = "mount -t ceph -o name=admin,ms_mode=crc 10.77.0.11:3300:/ /srv/beanstalkd"

    def up(self):
        Ceph.up(self)
        Mounted.up(self)

    def make_directory(self, folder):
        self.wait_until_healthy()
        self.nodes["cl"].run("mkdir", self.nodes["cl"].mount / folder)

    def copies(self):
        return self.mounted

    def clear(self, folder):
        Virtual.clear(self, folder)
        Storage.clear(self, folder)
