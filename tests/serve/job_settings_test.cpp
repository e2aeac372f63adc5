// What results depend on, and what they do not.
#include "computron/serve/job_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/ops/cpu_probe.h"
#include "tests/serve/two_models.h"

namespace computron {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Key;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAreArray;

Settings settings_of(const JobOptions& options, int ranks) {
  return job_settings(options, std::vector<CheckpointIndex>(2), job_groups(options, ranks));
}

// As 938ce46 and its predecessors wrote them.
Settings of_one_mesh(int ranks, int tp, int pp) {
  Settings settings = {
      {"number of ranks", std::to_string(ranks)}, {"--tp", std::to_string(tp)}, {"--pp", std::to_string(pp)}};
  for (const auto& setting : settings_of(models_a_and_b(), 1)) {
    if (!setting.first.starts_with("tp of model")) settings.push_back(setting);
  }
  return settings;
}

TEST(JobSettings, TpOfEachModelCounts) {
  JobOptions options = models_a_and_b();
  options.placement = {{.tp = 2, .pp = 1, .models = {"a"}, .layers = {}}, {.models = {"b"}, .layers = {}}};
  EXPECT_THAT(settings_of(options, 3), IsSupersetOf({Pair("tp of model a", "2"), Pair("tp of model b", "1")}));
  options.reproducible = true;
  EXPECT_THAT(settings_of(options, 3), Not(Contains(Key("tp of model a"))));
}

TEST(JobSettings, GroupsAndStagesDoNotCount) {
  JobOptions placed = models_a_and_b();
  placed.placement = {{.tp = 2, .pp = 1, .models = {"a"}, .layers = {}},
                      {.tp = 2, .pp = 2, .models = {"b"}, .layers = {}}};
  JobOptions alone = models_a_and_b();
  alone.tp = 2;
  EXPECT_EQ(settings_of(placed, 6), settings_of(alone, 2));
}

// What an adapter's file holds, wherever it lies.
TEST(JobSettings, AnAdapterCounts) {
  const JobOptions options = models_a_and_b();
  const auto of = [&](const std::string& path, std::uint8_t digest) {
    std::vector<CheckpointIndex> indices(2);
    indices[0].second_path = path;
    TensorEntry& tensor = indices[0].tensors["m.lora_a"];
    tensor.in_second_file = !path.empty();
    tensor.digests = {Digest128{digest}};
    return job_settings(options, indices, job_groups(options, 1));
  };
  EXPECT_EQ(of("a.h5", 1), of("b/c.h5", 1));
  EXPECT_NE(of("a.h5", 1), of("a.h5", 2));
  EXPECT_NE(of("a.h5", 1), of("", 1));
}

TEST(JobSettings, StagesCountOnGpus) {
  JobOptions options = models_a_and_b();
  options.device = DeviceChoice::kGpu;
  options.tp = 1;
  options.pp = 2;
  EXPECT_THAT(settings_of(options, 2), IsSupersetOf({Pair("tp of model a", "1"), Pair("pp of model a", "2")}));
}

// The pieces of products follow pages there. An automatic size follows from the models and their meshes.
TEST(JobSettings, PageSizeCountsOnGpus) {
  JobOptions options = models_a_and_b();
  options.page_bytes = std::size_t{32} << 20;
  EXPECT_THAT(settings_of(options, 1), Not(Contains(Key("--page-size"))));
  options.device = DeviceChoice::kGpu;
  const Settings now = settings_of(options, 1);
  EXPECT_THAT(now, Contains(Pair("--page-size", "33554432 bytes")));
  options.page_bytes = 0;
  EXPECT_THAT(settings_of(options, 1), Contains(Pair("--page-size", "automatic")));
  EXPECT_EQ(upgraded(options, settings_of(options, 1), now), now) << "another size is not taken for that of now";
  Settings unnamed = settings_of(options, 1);
  std::erase_if(unnamed, [](const auto& setting) { return setting.first == "--page-size"; });
  EXPECT_EQ(upgraded(options, settings_of(options, 1), unnamed), settings_of(options, 1))
      << "earlier versions did not say";
}

// What --page-size auto chose is kept beside the settings; another measurement is no other setting.
TEST(JobSettings, ThePageSizeThatWasChosenIsNotCompared) {
  JobOptions options = models_a_and_b();
  options.device = DeviceChoice::kGpu;
  options.measure_page_size = true;
  const Settings now = settings_of(options, 1);
  EXPECT_THAT(now, Contains(Pair("--page-size", "auto")));
  options.page_bytes = 1 << 20;
  EXPECT_EQ(settings_of(options, 1), now);
  Settings before = now;
  before.emplace_back(kKeptPageSize, "1048576");
  EXPECT_EQ(upgraded(options, now, before), now);
}

// A model of one matrix.
std::vector<CheckpointIndex> indices_of(DType dtype, int group = 0) {
  std::vector<CheckpointIndex> indices(2);
  TensorEntry& matrix = indices[0].tensors["m.weight"];
  matrix.dtype = dtype;
  matrix.shape = {64, 64};
  matrix.group = group;
  TensorEntry& norm = indices[0].tensors["m.norm"];
  norm.dtype = DType::kF32;
  norm.shape = {64};
  return indices;
}

// On this machine; cpu_probe_test.cpp has which instructions make which difference.
TEST(JobSettings, WhatMultipliesCountsOnTheCpu) {
  JobOptions options = models_a_and_b();
  options.device = DeviceChoice::kCpu;
  const auto of = [&](DType dtype, int group) {
    return job_settings(options, indices_of(dtype, group), job_groups(options, 1));
  };
  const std::string integers = arithmetic_of(WeightType(DType::kBF16, DType::kInt8, DType::kF32, 32));
  EXPECT_THAT(of(DType::kF32, 0), Contains(Pair("arithmetic of model a", arithmetic_of(DType::kF32))));
  EXPECT_THAT(of(DType::kBF16, 0), Contains(Pair("arithmetic of model a", arithmetic_of(DType::kBF16))));
  const Settings now = of(DType::kInt8, 32);
  EXPECT_THAT(now, Contains(Pair("arithmetic of model a", integers)));
  options.tf32 = true;
  EXPECT_EQ(of(DType::kInt8, 32), now);
  Settings unnamed = now, other = now;
  std::erase_if(unnamed, [](const auto& setting) { return setting.first.starts_with("arithmetic"); });
  EXPECT_THAT(upgraded(options, now, unnamed), UnorderedElementsAreArray(now)) << "earlier versions did not say";
  for (auto& [name, value] : other) value = name.starts_with("arithmetic") ? "otherwise" : value;
  EXPECT_EQ(upgraded(options, now, other), other);
}

TEST(JobSettings, Tf32CountsOnGpusWhereThereAreFloat32Weights) {
  JobOptions options = models_a_and_b();
  options.device = DeviceChoice::kGpu;
  const auto of = [&](DType dtype) { return job_settings(options, indices_of(dtype), job_groups(options, 1)); };
  EXPECT_THAT(of(DType::kF32), Contains(Pair("arithmetic of model a", "float32")));
  const Settings bf16 = of(DType::kBF16);
  EXPECT_THAT(bf16, Not(Contains(Key("arithmetic of model a"))));
  options.tf32 = true;
  EXPECT_THAT(of(DType::kF32), Contains(Pair("arithmetic of model a", "tf32")));
  EXPECT_EQ(of(DType::kBF16), bf16);
}

// Two numbers have one sum.
TEST(JobSettings, TheTransportCountsWhereMoreThanTwoGpusAdd) {
  JobOptions options = models_a_and_b();
  options.transport = TransportChoice::kStaged;
  options.tp = 4;
  EXPECT_THAT(settings_of(options, 4), Not(Contains(Key("--transport"))));
  options.device = DeviceChoice::kGpu;
  EXPECT_THAT(settings_of(options, 4), Contains(Pair("--transport", "mpi")));
  options.tp = 2;
  EXPECT_THAT(settings_of(options, 2), Not(Contains(Key("--transport"))));
}

// A journal that was written before there were groups says the same in other words.
TEST(JobSettings, JournalsOfOneMeshStillResume) {
  const struct { int ranks, tp, pp, tp_now; } meshes[] = {{4, 2, 2, 2}, {4, 0, 0, 4}, {4, 0, 2, 2}, {2, 1, 0, 1}};
  for (const auto& mesh : meshes) {
    JobOptions now = models_a_and_b();
    now.tp = mesh.tp_now;
    EXPECT_THAT(upgraded(now, settings_of(now, mesh.tp_now), of_one_mesh(mesh.ranks, mesh.tp, mesh.pp)),
                UnorderedElementsAreArray(settings_of(now, mesh.tp_now)))
        << mesh.ranks << " ranks, --tp " << mesh.tp << " --pp " << mesh.pp;
  }
  const Settings today = settings_of(models_a_and_b(), 1);
  EXPECT_EQ(upgraded(models_a_and_b(), today, today), today);
}

}  // namespace
}  // namespace computron
