# Sets COMPUTRON_TEST_ENVIRONMENT, the environment of every test, so that a build with COMPUTRON_SANITIZE reports what
# this program does wrong and nothing that Open MPI does.
set(COMPUTRON_TEST_ENVIRONMENT)

if(COMPUTRON_SANITIZE STREQUAL "address")
  # Open MPI never frees much of what its plug-ins allocate, and unloads them before the leak check, which can then
  # no longer tell by name whose memory it was. So plug-ins stay loaded in these builds, the suppressions name them,
  # and stacks are unwound the slow way, through code without frame pointers.
  add_library(computron_keep_modules STATIC ${CMAKE_CURRENT_LIST_DIR}/keep_modules.c)
  target_link_libraries(computron_flags INTERFACE computron_keep_modules)
  target_link_options(computron_flags INTERFACE LINKER:-u,dlclose LINKER:--export-dynamic-symbol=dlclose)
  list(APPEND COMPUTRON_TEST_ENVIRONMENT
    ASAN_OPTIONS=fast_unwind_on_malloc=0:detect_stack_use_after_return=1
    LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/leaks_of_others.txt:print_suppressions=0
    UBSAN_OPTIONS=print_stacktrace=1)
  # Tests that start no MPI allocate 20 times faster without that.
  set(COMPUTRON_PLAIN_TEST_ENVIRONMENT ${COMPUTRON_TEST_ENVIRONMENT})
  list(TRANSFORM COMPUTRON_PLAIN_TEST_ENVIRONMENT REPLACE "fast_unwind_on_malloc=0:" "")
elseif(COMPUTRON_SANITIZE STREQUAL "thread")
  # What libraries that were built without it do to each other is not seen and would be reported at random.
  list(APPEND COMPUTRON_TEST_ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1)
endif()
if(NOT DEFINED COMPUTRON_PLAIN_TEST_ENVIRONMENT)
  set(COMPUTRON_PLAIN_TEST_ENVIRONMENT ${COMPUTRON_TEST_ENVIRONMENT})
endif()
