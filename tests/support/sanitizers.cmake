# Sets COMPUTRON_TEST_ENVIRONMENT, the environment of every test, so that a build with COMPUTRON_SANITIZE reports what
# this program does wrong and nothing that Open MPI does.
set(COMPUTRON_TEST_ENVIRONMENT)

if(COMPUTRON_SANITIZE STREQUAL "address")
  # asan_open_mpi.cpp says what it does about Open MPI.
  add_library(computron_asan_open_mpi STATIC ${CMAKE_CURRENT_LIST_DIR}/asan_open_mpi.cpp)
  target_link_libraries(computron_asan_open_mpi PRIVATE MPI::MPI_CXX)
  target_link_libraries(computron_flags INTERFACE computron_asan_open_mpi)
  foreach(symbol dlclose MPI_Init_thread MPI_Finalize)
    target_link_options(computron_flags INTERFACE LINKER:-u,${symbol})
  endforeach()
  target_link_options(computron_flags INTERFACE LINKER:--export-dynamic-symbol=dlclose)
  list(APPEND COMPUTRON_TEST_ENVIRONMENT
    ASAN_OPTIONS=detect_stack_use_after_return=1
    LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/leaks_of_others.txt:print_suppressions=0
    UBSAN_OPTIONS=print_stacktrace=1)
elseif(COMPUTRON_SANITIZE STREQUAL "thread")
  # What libraries that were built without it do to each other is not seen and would be reported at random.
  list(APPEND COMPUTRON_TEST_ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1)
endif()
