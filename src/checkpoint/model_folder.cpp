#include "computron/checkpoint/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "computron/base/printable.h"
#include "src/checkpoint/file.h"

namespace computron {
namespace {

namespace fs = std::filesystem;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = 32 << 20;

// `path` without links; Error{kNoInput} if it does not exist.
fs::path real_path_of(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  if (error) throw Error(ExitCode::kNoInput, fmt::format("{}: {}", path.string(), error.message()));
  return real;
}

// REPO/blobs if `folder` is REPO/snapshots/REVISION of the hub's cache.
std::string blobs_of(const fs::path& folder) {
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" ? (snapshots.parent_path() / "blobs").string() : "";
}

// What to do about weights that are in another format; empty if `name` is not the name of such.
std::string advice_on(const std::string& name) {
  const auto ends_with = [&](std::string_view end) { return name.ends_with(end); };
  if (name.starts_with("adapter_model."))
    return "an adapter without its model; convert that, then --adapter FOLDER, and merge it with --merge";
  if (ends_with(".bin") || ends_with(".pt") || ends_with(".pth") || ends_with(".ckpt")) {
    return "a Python pickle, which can run code when it is read; convert it to safetensors with transformers: "
           "AutoModel...from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, safe_serialization=True)";
  }
  if (ends_with(".gguf") || ends_with(".ggml")) {
    return "quantised weights of llama.cpp; take the model's original safetensors";
  }
  if (ends_with(".h5") || ends_with(".msgpack") || ends_with(".onnx")) {
    return "weights of another framework; take the model's safetensors, or convert it with transformers";
  }
  return "";
}

[[noreturn]] void refuse_without_safetensors(const ModelFolder& folder) {
  for (const std::string& name : folder.names()) {
    const std::string advice = advice_on(name);
    if (advice.empty()) continue;
    throw Error(ExitCode::kData, fmt::format("{}: no {} and no {}, but {} is {}", folder.path(), kSingleFile,
                                             kIndexFile, printable(name), advice));
  }
  throw Error(ExitCode::kNoInput, fmt::format("{}: no {} and no {}", folder.path(), kSingleFile, kIndexFile));
}

}  // namespace

ModelFolder::ModelFolder(const std::string& path) : path_(path) {
  const fs::path real = real_path_of(path);
  if (!fs::is_directory(real)) throw Error(ExitCode::kNoInput, path + ": not a folder");
  real_path_ = real.string();
  blobs_ = blobs_of(real);
}

ModelFolder ModelFolder::subfolder(const std::string& name) const {
  ensure(name.find('/') == std::string::npos, "a folder of a folder by a path");
  ModelFolder inner((fs::path(path_) / name).string());
  if (inner.real_path_ != (fs::path(real_path_) / name).string()) {
    throw CheckpointError(fmt::format("{}/{}: a symbolic link that leads out of the folder, to {}", path_,
                                      printable(name), printable(inner.real_path_)));
  }
  inner.blobs_ = blobs_;
  return inner;
}

bool ModelFolder::has(const std::string& name) const {
  std::error_code error;
  return fs::exists(fs::symlink_status(fs::path(path_) / name, error));
}

std::string ModelFolder::resolve(const std::string& name) const {
  ensure(name.find('/') == std::string::npos, "a file of a folder by a path");
  const fs::path real = real_path_of(fs::path(path_) / name);
  const std::string home = real.parent_path().string();
  if (home == real_path_ || (!blobs_.empty() && home == blobs_)) return real.string();
  throw CheckpointError(
      fmt::format("{}/{}: a symbolic link that leads out of the folder, to {}; put the file itself there "
                  "(cp --dereference)",
                  path_, printable(name), printable(real.string())));
}

std::string ModelFolder::read(const std::string& name, std::size_t max_bytes) const {
  const std::string path = resolve(name);
  const FileDescriptor fd = open_input(path);
  const std::size_t bytes = file_bytes(fd.get(), path);
  if (bytes > max_bytes) {
    throw CheckpointError(fmt::format("{}/{}: {} bytes (limit {})", path_, name, bytes, max_bytes));
  }
  std::string text(bytes, '\0');
  text.resize(read_at(fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
  return text;
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

SafetensorsFolder::SafetensorsFolder(const ModelFolder& folder) {
  if (folder.has(kSingleFile)) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder.resolve(kSingleFile)));
    add(*files_.back(), /*index=*/nullptr, kSingleFile);
  } else if (folder.has(kIndexFile)) {
    open_shards(folder);
  } else {
    refuse_without_safetensors(folder);
  }
}

void SafetensorsFolder::open_shards(const ModelFolder& folder) {
  const auto index = parse_safetensors_index(folder.read(kIndexFile, kMaxIndexBytes), folder.path() + "/" + kIndexFile);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder.resolve(name)));
    add(*files_.back(), &index, name);
  }
  for (const auto& [tensor, file] : index) {
    if (tensors_.contains(tensor)) continue;
    throw CheckpointError(fmt::format("{}/{}: the tensor '{}' is not in {}, where {} says it is", folder.path(), file,
                                      printable(tensor), file, kIndexFile));
  }
}

void SafetensorsFolder::add(const SafetensorsFile& file, const std::map<std::string, std::string>* index,
                            const std::string& name) {
  for (const auto& [tensor, entry] : file.entries()) {
    const auto listed = index == nullptr ? decltype(index->end()){} : index->find(tensor);
    if (index != nullptr && listed == index->end()) {
      unlisted_.push_back(tensor);
    } else if (index != nullptr && listed->second != name) {
      throw CheckpointError(fmt::format("{}: holds the tensor '{}' too, which {} says is in {}", file.path(),
                                        printable(tensor), kIndexFile, listed->second));
    } else {
      tensors_[tensor] = {&file, &entry};
    }
  }
}

}  // namespace computron
