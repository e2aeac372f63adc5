# Sets COMPUTRON_TEST_ENVIRONMENT, the environment of every test, so that a build with COMPUTRON_SANITIZE reports what
# this program does wrong and nothing that Open MPI does. No test measures kernels unless it says so.
set(COMPUTRON_TEST_ENVIRONMENT COMPUTRON_TUNING=off)

if(COMPUTRON_SANITIZE STREQUAL "address")
  # asan_open_mpi.cpp says what it does about Open MPI.
  add_library(computron_asan_open_mpi STATIC ${CMAKE_CURRENT_LIST_DIR}/asan_open_mpi.cpp)
  target_link_libraries(computron_asan_open_mpi PRIVATE MPI::MPI_CXX)
  target_link_libraries(computron_flags INTERFACE computron_asan_open_mpi)
  foreach(symbol dlclose MPI_Init_thread MPI_Finalize)
    target_link_options(computron_flags INTERFACE LINKER:-u,${symbol})
  endforeach()
  target_link_options(computron_flags INTERFACE LINKER:--export-dynamic-symbol=dlclose)
  # intercept_tls_get_addr=0: the runtime of GCC up to 13 takes a thread-local block that happens to lie 16 bytes into a
  # memory page for one of glibc 2.19, reads its bounds from the bytes before it, and LeakSanitizer dies of them now and
  # then, after all tests have passed (github.com/google/sanitizers/issues/1322). Our own thread-local variables lie in
  # the program's static block, which it scans all the same.
  # Without the search for uses of stacks that have been left, which takes a third of the time, and with less than whole
  # stacks of every allocation, which take a tenth.
  list(APPEND COMPUTRON_TEST_ENVIRONMENT
    ASAN_OPTIONS=detect_stack_use_after_return=0:intercept_tls_get_addr=0:malloc_context_size=12
    LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/leaks_of_others.txt:print_suppressions=0
    UBSAN_OPTIONS=print_stacktrace=1)
elseif(COMPUTRON_SANITIZE STREQUAL "thread")
  # What libraries that were built without it do to each other is not seen and would be reported at random.
  list(APPEND COMPUTRON_TEST_ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1)
endif()
