#!/usr/bin/env bash
# Install into a virtual environment, with Python and MPI of the site, on a login node:
#     bash slurm/install/modules.sh ~/mpigraph-venv PACKAGE
# PACKAGE is what pip takes: the wheel, or a name and version on an index of your site; in a checkout leave it out.
set -euo pipefail

# ==== settings =======================================================================================================
modules() {
  # module load python/3.12 openmpi/5.0 # those of your site
  :
}
BUILD_MPI4PY=no # yes: build mpi4py with the mpicc in PATH, for an MPI that its wheel does not find
# ==== end of settings ================================================================================================

target=${1:?usage: modules.sh FOLDER [PACKAGE]}
package=${2:-$(dirname "$0")/../..}
if [ "$#" -lt 2 ] && [ ! -f "$package/pyproject.toml" ]; then
  echo "this is no checkout: give the wheel, modules.sh $target mpigraph-VERSION-py3-none-any.whl" >&2
  exit 2
fi
modules
python3 -m venv "$target"
if [ "$BUILD_MPI4PY" = yes ]; then
  "$target/bin/pip" install --no-binary mpi4py mpi4py
fi
"$target/bin/pip" install "$package"
"$target/bin/python" - <<'PY'
from mpi4py import MPI
import mpigraph
print(f"mpigraph {mpigraph.__version__} with {MPI.Get_library_version().splitlines()[0]}")
PY
echo "in the settings of *.sbatch: setup() { module load ...; source $target/bin/activate; }"
