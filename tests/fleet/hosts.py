"""Hosts on this machine: network namespaces whose cables end at one bridge."""

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress

import psutil

from tests.support.servers import Unavailable


class Host:
    """A host with one address. A process ``within`` it is on this host."""

    def __init__(self, network, number):
        self._network = network.name
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

    def mend(self):
        _run("ip", "link", "set", self._cable, "master", self._network)

    def kill(self):
        """Kill everything on this host at once."""
        for pid in _run("ip", "netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def suspend(self, title):
        """Suspend the processes whose command contains this text."""
        for pid in _run("ip", "netns", "pids", self.name).split():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if title in " ".join(process.cmdline()):
                    process.suspend()

    def remove(self):
        self.kill()
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


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
