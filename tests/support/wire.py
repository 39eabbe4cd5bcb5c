"""A slow network in user space, which needs no netem in the kernel: a switch that delivers every frame late.

    python wire.py DELAY RATE PID ...

Each process id names a network namespace, which gets a TAP device ``mpig`` with the hardware address of :func:`mac`. A
frame leaves its sender at RATE bits per second, behind those before it, and arrives DELAY seconds later. Large TCP
frames pass whole, as they do between virtual machines, so one process keeps up with gigabits. Prints "ready".
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import struct
import sys
import time
from contextlib import suppress

INTERFACE = "mpig"  # inside every host
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_HEADER, _WITH_OFFLOAD_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _LARGE_FRAMES = 0x01, 0x02
_OFFLOAD_HEADER = 10  # bytes in front of a frame that say what the kernel has left to do with it
_QUEUE = 0.02  # seconds that a sender may be ahead of the wire; the rest waits in its kernel
_NEW_NETWORK = 0x40000000


def mac(host):
    """The hardware address of a host's end of the wire; the last byte says which host it is."""
    return f"02:00:00:00:00:{host:02x}"


def missing():
    """What keeps the switch from running here, in words; an empty string if nothing does."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun: {error.strerror}"
    return ""


def open_ports(pids):
    """One TAP device in the network namespace of each process; this process stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    ports = []
    for namespace in [*(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in pids), home]:
        if libc.setns(namespace, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
        if namespace != home:
            port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            flags = _TAP | _NO_HEADER | _WITH_OFFLOAD_HEADER
            fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), flags))
            fcntl.ioctl(port, _TUNSETOFFLOAD, _CHECKSUMS | _LARGE_FRAMES)
            ports.append(port)
        os.close(namespace)
    return ports


def carry(ports, delay, rate):
    """Carry frames for ever."""
    flying, numbers = [], itertools.count()  # (when it arrives, tie break, port it is from, frame)
    free_at = dict.fromkeys(ports, 0.0)  # when each sender's last frame has left it
    while True:
        now = time.monotonic()
        while flying and flying[0][0] <= now:
            deliver(ports, *heapq.heappop(flying)[2:])
        open_now = [port for port in ports if free_at[port] < now + _QUEUE]
        events = [first[0] for first in flying[:1]] + [free_at[port] - _QUEUE for port in ports if port not in open_now]
        for port in select.select(open_now, [], [], max(0.0, min(events) - now) if events else None)[0]:
            with suppress(BlockingIOError):
                frame = os.read(port, 1 << 17)
                now, takes = time.monotonic(), 8 * (len(frame) - _OFFLOAD_HEADER) / rate
                free_at[port] = max(now, free_at[port]) + takes
                heapq.heappush(flying, (free_at[port] + delay, next(numbers), port, frame))


def deliver(ports, sender, frame):
    """Write a frame to the port that its address names, or to all others."""
    group, host = frame[_OFFLOAD_HEADER] & 1, frame[_OFFLOAD_HEADER + 5]
    for port in ports if group else ports[host : host + 1]:
        if port != sender:
            with suppress(OSError):  # a full queue drops frames, as anywhere
                os.write(port, frame)


def main():
    delay, rate, *pids = sys.argv[1:]
    ports = open_ports(pids)
    print("ready", flush=True)
    carry(ports, float(delay), float(rate))


if __name__ == "__main__":
    main()
