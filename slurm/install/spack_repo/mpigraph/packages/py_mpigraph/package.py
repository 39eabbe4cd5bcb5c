# In a checkout:
#     spack repo add slurm/install/spack_repo/mpigraph
#     spack dev-build --source-path . py-mpigraph@0.1.0
# For Spack 1.0 and newer.

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMpigraph(PythonPackage):
    """Distributed training of graph neural networks on MPI, with DGL's API."""

    homepage = "https://pypi.org/project/mpigraph"  # once it is there
    pypi = "mpigraph/mpigraph-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    variant("arrow", default=False, description="read tables of Parquet, ORC and csv")
    variant("pyg", default=False, description="minibatches for PyTorch Geometric")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-torch@2.3:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-h5py@3.11:", type=("build", "run"))
    depends_on("py-numba@0.60:", type=("build", "run"))
    depends_on("py-pymetis@2025.2.1:", type=("build", "run"))
    depends_on("py-lazy-loader@0.4:", type=("build", "run"))
    depends_on("py-tqdm@4.60:", type=("build", "run"))
    depends_on("py-pyarrow@14:", when="+arrow", type=("build", "run"))
    depends_on("py-torch-geometric@2.5:", when="+pyg", type=("build", "run"))
