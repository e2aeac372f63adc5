// A folder with a model as the Hugging Face hub stores it: small text files and safetensors.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/checkpoint/safetensors.h"

namespace computron {

// Opens files of one folder by plain names and never a file elsewhere. A name may be a symbolic link if it leads to a
// file of the folder itself, or, in the hub's cache (REPO/snapshots/REVISION), of REPO/blobs; any other link is refused
// with CheckpointError, since a downloaded folder may hold links to whatever its author thought of.
class ModelFolder {
 public:
  // Error{kNoInput} naming `path` unless it is a folder.
  explicit ModelFolder(const std::string& path);
  // A folder in this folder, whose files may be links to the same places as this one's. Error{kNoInput} unless it is a
  // folder, CheckpointError if it is a link that leads elsewhere.
  ModelFolder subfolder(const std::string& name) const;

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;
  // The file behind `name`, to be opened. Error{kNoInput} if there is none.
  std::string resolve(const std::string& name) const;
  // The whole file. CheckpointError if it is longer than `max_bytes`.
  std::string read(const std::string& name, std::size_t max_bytes) const;
  // Names of the folder's files, sorted.
  std::vector<std::string> names() const;

 private:
  std::string path_, real_path_;
  std::string blobs_;  // of the hub's cache, empty elsewhere
};

// A tensor of one of a folder's files; lives as long as its SafetensorsFolder.
struct SafetensorsTensor {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
};

// All tensors of a folder: of model.safetensors or else of the files that model.safetensors.index.json names.
class SafetensorsFolder {
 public:
  // CheckpointError if a tensor of the index is not in the file that it names, or a name is in two files; Error{kData}
  // saying what to do if the folder holds weights in another format only, Error{kNoInput} if it holds none.
  explicit SafetensorsFolder(const ModelFolder& folder);

  // By name.
  const std::map<std::string, SafetensorsTensor>& tensors() const { return tensors_; }
  // Names of tensors that files hold and the index does not know; they are not among tensors().
  const std::vector<std::string>& unlisted() const { return unlisted_; }

 private:
  void open_shards(const ModelFolder& folder);
  void add(const SafetensorsFile& file, const std::map<std::string, std::string>* index, const std::string& name);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, SafetensorsTensor> tensors_;
  std::vector<std::string> unlisted_;
};

}  // namespace computron
