"""Hosts on this machine: network namespaces whose cables end at one bridge."""

import os
import shutil
import subprocess
from contextlib import contextmanager, suppress

import psutil

from tests.fleet.cable import SlowCable
from tests.support.servers import Unavailable

#: The address of a network device that does not exist.
NOBODY = "02:00:00:00:00:01"


class Host:
    """A host with one address. A process ``within`` it is on this host."""

    def __init__(self, network, number):
        self._network = network
        self._slow_cable = None
        self.name = f"{network.name}-{number}"
        self.address = f"{network.subnet}.{10 + number}"
        self.within = ("ip", "netns", "exec", self.name)
        self._cable = f"{network.name}v{number}"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "inside", "netns", self.name)
        _run("ip", "link", "set", self._cable, "master", network.name, "up")
        _run(*self.within, "ip", "address", "add", f"{self.address}/24", "dev", "inside")
        for device in ("lo", "inside"):
            _run(*self.within, "ip", "link", "set", device, "up")

    def cut(self):
        """Unplug the cable: no packet arrives or leaves, and nobody is notified."""
        _run("ip", "link", "set", self._cable, "nomaster")

    def cut_outgoing(self):
        """Let what this host sends to the machine vanish. It still receives."""
        _run(*self.within, "ip", "neigh", "replace", self._network.address, *_unreachable("inside"))

    def cut_incoming(self):
        """Let what the machine sends to this host vanish. It still sends."""
        _run("ip", "neigh", "replace", self.address, *_unreachable(self._network.name))

    def slow_down(self, delay, loss):
        """Replace the cable by one that delays packets in each direction, and loses a share of them."""
        spare, end = f"{self._cable}a", f"{self._cable}b"
        _run("ip", "link", "add", spare, "type", "veth", "peer", "name", end)
        _run("ip", "link", "set", spare, "master", self._network.name, "up")
        _run("ip", "link", "set", end, "up")
        self.cut()
        self._slow_cable = SlowCable((self._cable, end), delay, loss)

    def mend(self):
        """Undo all of the above."""
        if self._slow_cable:
            self._slow_cable.close()
            self._slow_cable = None
            _run("ip", "link", "delete", f"{self._cable}a")
        _run("ip", "link", "set", self._cable, "master", self._network.name)
        with suppress(subprocess.CalledProcessError):  # there is no such entry
            _run(*self.within, "ip", "neigh", "delete", self._network.address, "dev", "inside")
        with suppress(subprocess.CalledProcessError):
            _run("ip", "neigh", "delete", self.address, "dev", self._network.name)

    def kill(self, title=""):
        """Kill the processes whose command contains this text, all at once."""
        for process in self._processes(title):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def suspend(self, title):
        """Suspend the processes whose command contains this text."""
        for process in self._processes(title):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def _processes(self, title):
        for pid in _run("ip", "netns", "pids", self.name).split():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if title in " ".join(process.cmdline()):
                    yield process

    def remove(self):
        self.kill()
        self.mend()
        _run("ip", "netns", "delete", self.name)


class Network:
    def __init__(self):
        self.name = f"jf{os.getpid()}"
        self.subnet = f"10.214.{os.getpid() % 250}"
        #: The address of this machine.
        self.address = f"{self.subnet}.1"
        self.hosts = []
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "address", "add", f"{self.address}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")

    def add_host(self):
        self.hosts.append(Host(self, len(self.hosts) + 1))
        return self.hosts[-1]

    def remove(self):
        for host in self.hosts:
            host.remove()
        _run("ip", "link", "delete", self.name)


@contextmanager
def network():
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Unavailable("hosts need root and the program ip")
    try:
        made = Network()
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"network namespaces are not allowed here: {error.stderr!r}") from error
    try:
        yield made
    finally:
        made.remove()


def _unreachable(device):
    return ("lladdr", NOBODY, "dev", device, "nud", "permanent")


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
