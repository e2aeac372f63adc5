# Every library the program links, found once. All are Debian packages; jobs/build.sh installs them.

set(CMAKE_THREAD_PREFER_PTHREAD ON)
find_package(Threads REQUIRED)

set(MPI_CXX_SKIP_MPICXX TRUE)  # Open MPI's removed C++ bindings would break the link
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)

find_package(PCRE2 REQUIRED)
find_package(utf8proc REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  find_path(SIMDE_INCLUDE_DIR simde/x86/avx2.h REQUIRED)  # headers only; include/computron/base/vectors.h
endif()

# CUDA: AUTO takes it when a compiler is there; ON insists.
set(COMPUTRON_HAVE_CUDA OFF)
if(NOT COMPUTRON_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # A variable of the environment, since CMake's own, CUDAARCHS, would stay in the cache.
    if(DEFINED ENV{COMPUTRON_CUDA_ARCHS})
      set(CMAKE_CUDA_ARCHITECTURES $ENV{COMPUTRON_CUDA_ARCHS})
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime for kernels and callers
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(COMPUTRON_HAVE_CUDA ON)
  elseif(COMPUTRON_CUDA STREQUAL "ON")
    message(FATAL_ERROR "COMPUTRON_CUDA=ON, but no CUDA compiler was found")
  endif()
endif()
message(STATUS "CUDA device: ${COMPUTRON_HAVE_CUDA}")

# NCCL from 2.18 on, which splits communicators. Without it MPI does its work.
set(COMPUTRON_HAVE_NCCL OFF)
if(COMPUTRON_HAVE_CUDA)
  find_package(NCCL 2.18)
  set(COMPUTRON_HAVE_NCCL ${NCCL_FOUND})
endif()
message(STATUS "NCCL: ${COMPUTRON_HAVE_NCCL} ${NCCL_VERSION}")
