"""How a process ends its job."""

import select
import subprocess
import sys
import time

from jobs import clean_environment

PATIENT = """
from mpigraph.mpi import abort
abort._READING_TIME = 600.0
abort.abort(3, "the text of an error\\n")
"""


def test_what_was_printed_is_read_before_the_launcher_hears_of_the_end() -> None:
    """MPICH's mpiexec drops what it has not read by then."""
    with subprocess.Popen([sys.executable, "-c", PATIENT], stderr=subprocess.PIPE, env=clean_environment()) as process:
        assert process.stderr is not None
        select.select([process.stderr], [], [])
        time.sleep(0.5)
        assert process.poll() is None
        assert b"the text of an error\n" in process.stderr.read()
    assert process.returncode == 3
