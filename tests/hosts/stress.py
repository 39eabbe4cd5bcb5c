"""Start the example's job again and again on two hosts, and say when one does not end well.

    python tests/hosts/stress.py CONFIG --graph_name S --jobs 15                # as root

A wait that lasts 25 s counts as a hang: the watchdog then prints every rank's stacks, and so does this.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
