// The communicators between the ranks of tests that run on any device (test_device.h).
#pragma once

#include <string>

#include "computron/comm/communicators.h"
#include "tests/support/test_device.h"

namespace computron::test {

// What carries numbers between the ranks of a test: `on_host` on the CPU; on GPUs host memory, or NCCL where
// COMPUTRON_TEST_TRANSPORT is "direct". NCCL refuses two ranks on one GPU unless each is a host of its own.
inline TransportKind test_transport(TransportKind on_host, int rank) {
  if (on_cpu()) return on_host;
  if (environment("COMPUTRON_TEST_TRANSPORT") != "direct") return TransportKind::kStaged;
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), /*overwrite=*/1);
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  setenv("NCCL_IB_DISABLE", "1", /*overwrite=*/0);
  setenv("NCCL_MAX_CTAS", "1", /*overwrite=*/0);
  return TransportKind::kDirect;
}

// make_communicators(). When they are made the ranks are connected: the emulated NCCL ends a test that has to do it
// later.
inline Communicators make_test_communicators(TransportKind kind, const Mesh& mesh, Device& device, Progress& progress,
                                             const CommunicatorSizes& sizes) {
  setenv("COMPUTRON_EMULATED_CONNECT", "1", /*overwrite=*/1);
  Communicators communicators = make_communicators(kind, mesh, device, progress, sizes);
  setenv("COMPUTRON_EMULATED_CONNECT", "0", /*overwrite=*/1);
  return communicators;
}

}  // namespace computron::test
