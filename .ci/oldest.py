"""Print the oldest versions that pyproject.toml allows, for ``pip install -r``.

Without torch, of which the oldest has no wheel for the CPU alone, and mpi4py, of which it has none.
"""

import re
from pathlib import Path

text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', text))
names = "numpy h5py pymetis numba lazy-loader tqdm pyarrow PyYAML scipy networkx".split()
print("\n".join(f"{name}=={bounds[name]}.*" for name in names))
