// Included before isa_x86.cpp: what it asks the compiler, the processor and Linux, instructions.h answers.
#pragma once

#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/emulated_isa/instructions.h"

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the names of others
#define __builtin_cpu_supports ::computron::emulated_isa::supports
#define __get_cpuid ::computron::emulated_isa::cpuid
#define __get_cpuid_count(leaf, subleaf, ...) ::computron::emulated_isa::cpuid(leaf, __VA_ARGS__)
#define syscall ::computron::emulated_isa::allow_tiles
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
