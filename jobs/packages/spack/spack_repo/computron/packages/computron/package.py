# Spack recipe, from the top of a checkout, for Spack 1.0 or newer with its builtin repository (spack-packages):
#   spack repo add jobs/packages/spack/spack_repo/computron
#   spack dev-build computron@main +cuda cuda_arch=90
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Computron(CMakePackage, CudaPackage):
    """Serves many large transformer models from one MPI job: every rank keeps its shard of all of them in host memory
    and one device's worth in the device, and all ranks swap at the same time."""

    license("Apache-2.0")

    version("main")  # no release is published: dev-build takes the checkout

    variant("nccl", default=True, when="+cuda", description="Sums between GPUs by NCCL; otherwise through host memory")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10: ~mpi")
    # What stands above the upper bounds has another interface, or nobody has built Computron with it.
    depends_on("cli11@2.1:")
    depends_on("nlohmann-json@3.11:")
    depends_on("spdlog@1.10:1.12")
    depends_on("fmt@9")
    depends_on("xxhash@0.8:")
    depends_on("pcre2@10.42:")
    depends_on("utf8proc@2.8:")
    depends_on("libpng")
    depends_on("jpeg")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.18:", when="+nccl")
    depends_on("googletest@1.12: +gmock", type="test")

    conflicts("cuda_arch=none", when="+cuda", msg="say for which GPUs: cuda_arch=80,90")
    conflicts("%gcc@:11", msg="C++20 needs GCC 12 or newer")
    conflicts("target=aarch64:", msg="needs SIMDe, which the builtin repository lacks; jobs/build.sh builds it there")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("COMPUTRON_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("BUILD_TESTING", self.run_tests),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        if self.spec.satisfies("+cuda ~nccl"):
            args.append(self.define("CMAKE_DISABLE_FIND_PACKAGE_NCCL", True))
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(join_path(self.prefix.bin, "computron"))("--version")
