#!/usr/bin/env bash
# Install on nodes without a network, with wheels that were collected on a machine like them (same CPU, same Python):
#     bash slurm/install/wheelhouse.sh collect wheelhouse          # in a checkout, with a network
#     bash wheelhouse/wheelhouse.sh install ~/mpigraph-venv        # copied to the cluster, without one
# PACKAGES adds others: PACKAGES="mpich torch_geometric". Those of PyTorch's own index (CUDA, CPU):
#     PIP_EXTRA_INDEX_URL=... bash slurm/install/wheelhouse.sh collect wheelhouse
set -euo pipefail

usage() {
  echo "usage: wheelhouse.sh collect FOLDER | install FOLDER" >&2
  exit 2
}
[ "$#" -eq 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
  collect)
    mkdir -p "$2"
    # shellcheck disable=SC2086 # words
    python3 -m pip wheel --wheel-dir "$2" "$here/../.." ${PACKAGES:-}
    cp "$here/wheelhouse.sh" "$2"
    echo "${PACKAGES:-}" >"$2/packages"
    ;;
  install)
    python3 -m venv "$2"
    # shellcheck disable=SC2046 # words
    "$2/bin/python" -m pip install --no-index --find-links "$here" mpigraph $(cat "$here/packages")
    ;;
  *) usage ;;
esac
