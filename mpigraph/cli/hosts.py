"""``ip_config.txt``, DGL's list of machines: one ``ADDRESS [PORT]`` on each line; and the options of ssh.

Only addresses and host names pass: the names end up in host lists, where a comma or a colon has a meaning, and beside
options, where a leading dash has one.
"""

import argparse
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from mpigraph.config import slurm_allocation
from mpigraph.errors import InvalidArgumentError

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")


class Host(NamedTuple):
    """A host name or address as it was written, and its file and line, for messages."""

    name: str
    where: str


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--ip_config``, ``--ssh_port`` and ``--ssh_username``."""
    text = "the hosts, one 'ADDRESS [PORT]' on each line; in Slurm only their number"
    parser.add_argument("--ip_config", metavar="FILE", help=text)
    parser.add_argument("--ssh_port", type=int, metavar="PORT", help="where ssh is used (default: ssh's own)")
    parser.add_argument("--ssh_username", default="", metavar="NAME", help="where ssh is used (default: ssh's own)")


def ssh_options(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of ssh for the two options; raise InvalidArgumentError if they are malformed."""
    port = arguments.ssh_port
    user = arguments.ssh_username
    if port is not None and not 1 <= port <= 65535:
        raise InvalidArgumentError(f"--ssh_port must be 1 to 65535 (got {port})")
    if user and not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]*", user):
        raise InvalidArgumentError(f"--ssh_username is no user name (got {user!r})")
    return [*(["-p", str(port)] if port is not None else []), *(["-l", user] if user else [])]


def slurm_nodes(hosts: Sequence[Host]) -> int:
    """Return the number of nodes of the allocation to use: one for each host, or all where no host is named.

    Slurm has its own names of nodes, so ``ip_config.txt`` only gives their number. Raises InvalidArgumentError if there
    are fewer.
    """
    allocation = slurm_allocation()
    available = allocation.nodes if allocation else 1
    if len(hosts) > available:
        too_many = f"{len(hosts)} hosts, but the Slurm allocation has {available} node(s)"
        raise InvalidArgumentError(f"{hosts[-1].where}: {too_many}")
    return len(hosts) or available


def read_hosts(path: Path) -> list[Host]:
    """Read the machines of a job; ``#`` begins a comment. Ports are checked, but MPI chooses its own.

    Raises InvalidArgumentError: the file cannot be read, names no machine, or has a bad line; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not a text file: {error}"
        raise InvalidArgumentError(f"{path}: cannot read the list of hosts: {reason}") from error
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        where = f"{path}:{number}"
        if not words:
            continue
        if len(words) > 2:
            raise InvalidArgumentError(f"{where}: expected 'ADDRESS [PORT]' (got {line.strip()!r})")
        key = _normalized(where, words[0])
        if len(words) == 2 and not (re.fullmatch("[0-9]{1,5}", words[1]) and 1 <= int(words[1]) <= 65535):
            raise InvalidArgumentError(f"{where}: a port is a number from 1 to 65535 (got {words[1]!r})")
        if key in hosts:
            raise InvalidArgumentError(f"{where}: {words[0]} is already on {hosts[key].where}")
        hosts[key] = Host(words[0], where)
    if not hosts:
        raise InvalidArgumentError(f"{path}: names no host")
    return [*hosts.values()]


def _normalized(where: str, name: str) -> str:
    """Check an address or name; return one spelling for all spellings of it."""
    if _ADDRESS.fullmatch(name):
        try:
            return str(ip_address(name))
        except ValueError:
            raise InvalidArgumentError(f"{where}: not an IP address: {name!r}") from None
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{where}: neither an IP address nor a host name: {name!r}")
    return name.lower()
