"""Stands in for a rank that a zygote forks: ``python -I -S zygote_rank.py SOCKET`` and what follows ``python``."""

import json
import os
import socket
import sys
from array import array

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
answer = connection.recv(16)
assert answer, "the zygote is gone"
status = int(answer)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
