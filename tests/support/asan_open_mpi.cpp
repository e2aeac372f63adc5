// Linked into programs under AddressSanitizer (sanitizers.cmake), so that it reports what they do wrong and nothing
// that Open MPI does: Open MPI never frees much of what it and its plug-ins allocate while it starts and ends.
#include <mpi.h>
#include <sanitizer/lsan_interface.h>

// Takes the place of libc's and unloads nothing: a plug-in that is gone at the end has no name in a leak's stack.
extern "C" int dlclose(void* /*handle*/) { return 0; }

// What is allocated meanwhile is no leak. MPI's profiling interface is made for such wrappers.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  __lsan_disable();
  const int status = PMPI_Init_thread(argc, argv, required, provided);
  __lsan_enable();
  return status;
}

extern "C" int MPI_Finalize() {
  __lsan_disable();
  const int status = PMPI_Finalize();
  __lsan_enable();
  return status;
}
