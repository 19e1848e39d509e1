"""A cable that delays packets and loses some, in the place of the kernel module netem, which many machines lack."""

import random
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress

#: Constants of packet(7).
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ALL_PROTOCOLS = 3
#: A packet that the kernel has not yet cut into parts, with its header.
LARGEST = 70_000
TICK_SECONDS = 0.1


class SlowCable:
    """Connects two network devices. ``delay``: in seconds; ``loss``: the share of packets that get lost."""

    def __init__(self, devices, delay, loss):
        self._ends = [_end(device) for device in devices]
        self._delay = delay
        self._loss = loss
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="slow-cable")
        self._thread.start()

    def close(self):
        self._closing.set()
        self._thread.join()
        for end in self._ends:
            end.close()

    def _forward(self):
        chance = random.Random(7)
        under_way = deque()
        while not self._closing.is_set():
            seconds = under_way[0][0] - time.monotonic() if under_way else TICK_SECONDS
            for end in select.select(self._ends, [], [], max(0, seconds))[0]:
                with suppress(OSError):  # a device that is down
                    packet = end.recv(LARGEST)
                    if chance.random() >= self._loss:
                        other = self._ends[1 - self._ends.index(end)]
                        under_way.append((time.monotonic() + self._delay, other, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, end, packet = under_way.popleft()
                with suppress(OSError):
                    end.send(packet)


def _end(device):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # so that checksums may still be missing
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((device, 0))
    return end
