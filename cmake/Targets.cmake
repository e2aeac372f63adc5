# One static library a floor, with the flags of the house.

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

add_library(computron_flags INTERFACE)
target_compile_features(computron_flags INTERFACE cxx_std_20)
target_include_directories(computron_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
# The program's baseline; wider code is in libraries or files that choose at run time. armv8.2 with half precision and dot
# products is Neoverse N1 and later: Graviton 2, Grace, Ampere.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(COMPUTRON_X86 ON)
  set(COMPUTRON_BASELINE -march=x86-64-v3)
  # Of files that are run where the processor has AVX-512. GCC 12 warns of its own intrinsics (bug 105593).
  set(COMPUTRON_AVX512 -mprfchw -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> -Wno-uninitialized)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(COMPUTRON_X86 OFF)
  set(COMPUTRON_BASELINE -march=armv8.2-a+fp16+dotprod -flax-vector-conversions -fsigned-char)
else()
  message(FATAL_ERROR "Computron is for x86-64 and aarch64, not for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
target_compile_options(computron_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local> -Wno-unused-parameter
  ${COMPUTRON_BASELINE} -ffp-contract=off>)
# The compiler tidies its memory from 0.5 GiB on instead of 0.13: an eighth of its time for a quarter more memory.
target_compile_options(computron_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
# Clang sees std::stable_sort of libstdc++ 12 call a function that it marks as deprecated itself.
target_compile_options(computron_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
# GCC 13 and later see the big integers of fmt 9 (Ubuntu 24.04) copied beyond their end, in headers of the system, wrongly.
target_compile_options(computron_flags INTERFACE
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds>)
if(COMPUTRON_WERROR)
  target_compile_options(computron_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# ASan and UBSan watch the product. Its tests are compiled as they are for the release: ccache has them already, and what
# the product does to their memory on the heap is seen all the same. TSan has to see everything.
set(COMPUTRON_KIND STATIC)  # of the floors' libraries
set(COMPUTRON_SANITIZED)  # compile options of what is not a test
if(COMPUTRON_SANITIZE STREQUAL "address")
  # The checks left out are found by ASan anyway, or of no use here, and a third of the time it takes to compile.
  set(COMPUTRON_SANITIZED -O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr,null,object-size,alignment
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(computron_flags INTERFACE -fsanitize=address,undefined)
  # Eighty tests that each hold every floor with its checks take 5 GB of disk.
  set(COMPUTRON_KIND SHARED)
elseif(COMPUTRON_SANITIZE STREQUAL "thread")
  target_compile_options(computron_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread -fno-omit-frame-pointer>)
  target_link_options(computron_flags INTERFACE -fsanitize=thread)
endif()

# Where little time is spent ASan's checks are calls: the same ones, compiled in four fifths of the time.
set(COMPUTRON_COLD_FLOORS storage checkpoint text requests workload plan serve report)

# computron_library(NAME SOURCES ... PUBLIC ... PRIVATE ...): the static library computron_NAME. PUBLIC names the floors
# below whose headers its own headers include; PRIVATE what only its sources use.
function(computron_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(computron_${NAME} ${COMPUTRON_KIND} ${ARG_SOURCES})
  set_target_properties(computron_${NAME} PROPERTIES DEFINE_SYMBOL "")
  target_compile_options(computron_${NAME} PRIVATE ${COMPUTRON_SANITIZED})
  if(COMPUTRON_SANITIZE STREQUAL "address" AND NAME IN_LIST COMPUTRON_COLD_FLOORS)
    target_compile_options(computron_${NAME} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>)
  endif()
  # The flags are for building Computron; who uses an installed one needs C++20 and no more.
  target_compile_features(computron_${NAME} PUBLIC cxx_std_20)
  target_link_libraries(computron_${NAME} PUBLIC $<BUILD_INTERFACE:computron_flags> ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()
