"""This host's addresses, as others see them."""

from __future__ import annotations

import ipaddress
import socket

SOMEWHERE = ("192.0.2.1", 9)  # an address of no host, kept for documentation; nothing is sent there


def is_wildcard(address: str) -> bool:
    """Whether it means "all addresses of this host"."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def towards(host: str, port: int) -> str:
    """The address of this host from which packets to `host` leave; loopback when there is no way."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: asks the routing table, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def reachable(listen: str) -> str:
    """What others put into their connection to something that listens on `listen` here."""
    return towards(*SOMEWHERE) if is_wildcard(listen) else listen
