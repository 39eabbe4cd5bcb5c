"""Stands in for a rank that a zygote forks: ``python -I -S zygote_rank.py SOCKET`` and what follows ``python``.

It passes on signals, and ends as the rank does.
"""

import json
import os
import signal
import socket
import sys
from array import array
from contextlib import suppress

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
files = []
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        os.fstat(number)
    except OSError:
        continue  # the listing's own
    if number != connection.fileno():
        files.append(number)
job = {"arguments": sys.argv[2:], "environment": dict(os.environ), "directory": os.getcwd(), "files": files}
text = json.dumps(job).encode()
data = b"%d\n%s" % (len(text), text)
sent = connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))])
connection.sendall(data[sent:])
answers = connection.makefile()
rank = int(answers.readline() or sys.exit("the zygote is gone"))


def pass_on(number: int, _: object) -> None:
    with suppress(ProcessLookupError):
        os.kill(rank, number)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
for number in SIGNALS:
    signal.signal(number, pass_on)
status = int(answers.readline())
for number in SIGNALS:
    signal.signal(number, signal.SIG_DFL)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
