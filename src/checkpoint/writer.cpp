#include "computron/checkpoint/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "computron/checkpoint/reader.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/file_types.h"
#include "src/checkpoint/format.h"
#include "src/checkpoint/hdf5.h"

namespace computron {
namespace {

using hdf5::Id;

// Data of 1 MiB and more is aligned to 1 MiB (O_DIRECT, GPUDirect Storage, whole pages of parallel file systems);
// aligning smaller tensors too would make a small model's file many times its size.
constexpr hsize_t kAlignment = 1 << 20;

// Properties for creating objects whose bytes depend on their content alone: no time stamps.
Id timeless(hid_t property_class, const Subject& subject) {
  Id properties(H5_CHECK(subject, H5Pcreate, property_class), H5Pclose);
  H5_CHECK(subject, H5Pset_obj_track_times, properties, false);
  return properties;
}

Id dataset_properties(const Subject& subject) {
  Id properties = timeless(H5P_DATASET_CREATE, subject);
  H5_CHECK(subject, H5Pset_layout, properties, H5D_CONTIGUOUS);
  H5_CHECK(subject, H5Pset_alloc_time, properties, H5D_ALLOC_TIME_EARLY);
  H5_CHECK(subject, H5Pset_fill_time, properties, H5D_FILL_TIME_NEVER);
  return properties;
}

Id create_attribute(hid_t object, const char* name, hid_t type, hid_t space, const Subject& subject) {
  return {H5_CHECK(subject, H5Acreate2, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
}

void write_int(hid_t object, const char* name, int value, const Subject& subject) {
  const Id space(H5_CHECK(subject, H5Screate, H5S_SCALAR), H5Sclose);
  const Id attribute = create_attribute(object, name, H5T_STD_I32LE, space, subject);
  H5_CHECK(subject, H5Awrite, attribute, H5T_NATIVE_INT, &value);
}

void write_double(hid_t object, const char* name, double value, const Subject& subject) {
  const Id space(H5_CHECK(subject, H5Screate, H5S_SCALAR), H5Sclose);
  const Id attribute = create_attribute(object, name, H5T_IEEE_F64LE, space, subject);
  H5_CHECK(subject, H5Awrite, attribute, H5T_NATIVE_DOUBLE, &value);
}

void write_string(hid_t object, const char* name, const std::string& text, const Subject& subject) {
  const bool fits = text.size() < format::kMaxStringBytes && text.find('\0') == std::string::npos;
  if (!fits) subject.fail(fmt::format("attribute '{}' of {} bytes is too long or holds a NUL", name, text.size()));
  const Id type(H5_CHECK(subject, H5Tcopy, H5T_C_S1), H5Tclose);
  H5_CHECK(subject, H5Tset_size, type, text.size() + 1);
  H5_CHECK(subject, H5Tset_cset, type, H5T_CSET_UTF8);
  const Id space(H5_CHECK(subject, H5Screate, H5S_SCALAR), H5Sclose);
  const Id attribute = create_attribute(object, name, type, space, subject);
  H5_CHECK(subject, H5Awrite, attribute, type, text.c_str());
}

// Also room for the digests that are not known yet, so that storing them later moves nothing.
void write_digests(hid_t dataset, const std::vector<Digest128>& digests, const Subject& subject) {
  const hsize_t extents[2] = {digests.size(), sizeof(Digest128)};
  const Id space(H5_CHECK(subject, H5Screate_simple, 2, extents, nullptr), H5Sclose);
  const Id attribute = create_attribute(dataset, format::kDigests, H5T_STD_U8LE, space, subject);
  H5_CHECK(subject, H5Awrite, attribute, H5T_STD_U8LE, digests.data());
}

Id create_group(hid_t file, const char* name, const Subject& subject) {
  return {H5_CHECK(subject, H5Gcreate2, file, name, H5P_DEFAULT, timeless(H5P_GROUP_CREATE, subject), H5P_DEFAULT),
          H5Gclose};
}

// Creates the dataset with its digests and notes where its bytes lie.
Id create_dataset(hid_t group, StoredBytes& stored, hid_t type, const std::vector<hsize_t>& extents,
                  const Subject& subject) {
  const Id space(H5_CHECK(subject, H5Screate_simple, static_cast<int>(extents.size()), extents.data(), nullptr),
                 H5Sclose);
  Id dataset(H5_CHECK(subject, H5Dcreate2, group, stored.name.c_str(), type, space, H5P_DEFAULT,
                      dataset_properties(subject), H5P_DEFAULT),
             H5Dclose);
  write_digests(dataset, stored.digests, subject);
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) subject.fail("no storage allocated");
  stored.offset = offset;
  return dataset;
}

void create_tensor(hid_t group, TensorEntry& tensor, const Subject& subject) {
  const Id type = format::file_type(tensor.dtype, subject);
  const std::vector<std::size_t> shape = format::dataset_shape(tensor.shape, tensor.dtype);
  const Id dataset = create_dataset(group, tensor, type, {shape.begin(), shape.end()}, subject);
  write_int(dataset, format::kTransposed, tensor.transposed ? 1 : 0, subject);
  if (!is_plain(tensor.dtype)) write_string(dataset, format::kCodes, std::string(name_of(tensor.dtype)), subject);
  if (tensor.dtype == DType::kE4M3) write_double(dataset, format::kFactor, tensor.factor, subject);
  if (!is_code(tensor.dtype)) return;
  write_int(dataset, format::kGroup, tensor.group == WeightType::kWholeRow ? 0 : tensor.group, subject);
}

ExitCode code_of_open_failure() {
  return errno == EACCES || errno == EPERM || errno == ELOOP ? ExitCode::kPermission : ExitCode::kCannotCreate;
}

// True if `path` still leads to the file that `fd` is: a writer that finished meanwhile has renamed it.
bool still_named(int fd, const std::string& path) {
  struct stat by_fd {
  }, by_name{};
  return fstat(fd, &by_fd) == 0 && stat(path.c_str(), &by_name) == 0 && by_fd.st_ino == by_name.st_ino &&
         by_fd.st_dev == by_name.st_dev;
}

// Opens and locks `path`, creating it if need be; the lock keeps two writers of one checkpoint apart.
FileDescriptor open_output(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) fail_errno(code_of_open_failure(), path, "cannot be created");
  const bool locked_elsewhere = flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (locked_elsewhere || !still_named(fd.get(), path)) {
    throw Error(ExitCode::kCannotCreate, path + ": another process is writing it");
  }
  return fd;
}

// A checkpoint may replace a file and nothing else; said before anything is written.
void check_replaceable(const std::string& path) {
  std::error_code status;
  const auto kind = std::filesystem::symlink_status(path, status).type();
  if (kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found) return;
  throw Error(ExitCode::kCannotCreate, path + ": exists and is not a regular file");
}

TensorEntry entry_of(const TensorDeclaration& tensor, const Subject& file) {
  const Subject subject = file.with(fmt::format("tensor '{}'", tensor.name));
  if (const auto fault = format::fault_of_name(tensor.name)) subject.fail(*fault);
  TensorEntry entry;
  entry.name = tensor.name;
  entry.dtype = tensor.dtype;
  entry.shape = tensor.shape;
  entry.transposed = tensor.transposed;
  entry.group = tensor.group;
  entry.factor = tensor.factor;
  entry.bytes = format::tensor_bytes(tensor.shape, tensor.dtype, subject);
  format::check_group(entry, subject);
  format::check_factor(entry, subject);
  entry.digests.resize(ceil_div(entry.bytes, kDigestChunkBytes));
  return entry;
}

std::vector<TensorEntry> entries_of(const std::vector<TensorDeclaration>& tensors, const Subject& file) {
  std::vector<TensorEntry> entries;
  std::set<std::string> names;
  for (const TensorDeclaration& tensor : tensors) {
    entries.push_back(entry_of(tensor, file));
    if (!names.insert(tensor.name).second) file.fail(fmt::format("tensor '{}' is declared twice", tensor.name));
  }
  return entries;
}

std::vector<Digest128> digests_of(std::span<const std::byte> bytes) {
  std::vector<Digest128> digests;
  for (std::size_t done = 0; done < bytes.size(); done += kDigestChunkBytes) {
    digests.push_back(digest128(bytes.subspan(done, std::min(kDigestChunkBytes, bytes.size() - done))));
  }
  return digests;
}

FileEntry entry_of(const CarriedFile& carried, const Subject& file) {
  const Subject subject = file.with(fmt::format("tokenizer file '{}'", carried.name));
  if (const auto fault = format::fault_of_name(carried.name)) subject.fail(*fault);
  if (carried.content.empty() || carried.content.size() > kMaxCarriedFileBytes) {
    subject.fail(fmt::format("{} bytes (1 to {} are allowed)", carried.content.size(), kMaxCarriedFileBytes));
  }
  FileEntry entry;
  entry.name = carried.name;
  entry.bytes = carried.content.size();
  entry.digests = digests_of(std::as_bytes(std::span(carried.content)));
  return entry;
}

std::vector<FileEntry> entries_of(const std::vector<CarriedFile>& carried, const Subject& file) {
  if (carried.size() > kMaxCarriedFiles) {
    file.fail(fmt::format("{} files of a tokenizer (limit {})", carried.size(), kMaxCarriedFiles));
  }
  std::vector<FileEntry> entries;
  std::set<std::string> names;
  for (const CarriedFile& one : carried) {
    entries.push_back(entry_of(one, file));
    if (!names.insert(one.name).second) file.fail(fmt::format("tokenizer file '{}' is given twice", one.name));
  }
  return entries;
}

void sync_directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const FileDescriptor fd(open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) fail_errno(ExitCode::kIo, path, "its directory cannot be synced");
}

}  // namespace

TensorDeclaration scales_of(const TensorDeclaration& codes) {
  return {scales_name(codes.name), DType::kBF16, scales_shape(codes.shape, codes.transposed, codes.group),
          codes.transposed};
}

struct CheckpointWriter::State {
  std::string path;
  std::string partial_path;
  std::vector<TensorEntry> tensors;
  std::vector<std::vector<char>> written;  // [tensor][chunk]; bytes, since threads set neighbours at the same time
  FileDescriptor fd;
  bool finished = false;

  State(const std::string& final_path, std::vector<TensorEntry> entries)
      : path(final_path),
        partial_path(final_path + ".partial"),
        tensors(std::move(entries)),
        fd(open_output(partial_path)) {
    for (const TensorEntry& tensor : tensors) written.emplace_back(tensor.digests.size(), 0);
  }
  ~State() {
    if (!finished) unlink(partial_path.c_str());
  }

  Subject subject() const { return {partial_path, ExitCode::kIo}; }
  void create(const std::string& architecture, const std::string& config_json, std::vector<FileEntry>& files);
  void create_tensors(hid_t file);
  void create_files(hid_t file, std::vector<FileEntry>& files) const;
  void reserve_space() const;
  void store_digests() const;
  void check_written() const;
};

void CheckpointWriter::State::create(const std::string& architecture, const std::string& config_json,
                                     std::vector<FileEntry>& files) {
  const hdf5::Session session;
  const Id access = hdf5::file_access(subject(), kAlignment);
  const Id creation = timeless(H5P_FILE_CREATE, subject());
  Id file(H5_CHECK(subject(), H5Fcreate, partial_path.c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose);
  write_int(file, format::kVersion, kCheckpointFormatVersion, subject());
  write_string(file, format::kArchitecture, architecture, subject());
  write_string(file, format::kConfig, config_json, subject());
  create_tensors(file);
  if (!files.empty()) create_files(file, files);
  file.close(subject());
}

void CheckpointWriter::State::create_tensors(hid_t file) {
  const Id group = create_group(file, format::kTensors, subject());
  for (TensorEntry& tensor : tensors) {
    create_tensor(group, tensor, subject().with(fmt::format("tensor '{}'", tensor.name)));
  }
}

void CheckpointWriter::State::create_files(hid_t file, std::vector<FileEntry>& files) const {
  const Id group = create_group(file, format::kTokenizer, subject());
  for (FileEntry& entry : files) {
    const Subject about = subject().with(fmt::format("tokenizer file '{}'", entry.name));
    create_dataset(group, entry, H5T_STD_U8LE, {entry.bytes}, about);
  }
}

// A full disk is found now and not after an hour of writing. Some file systems cannot reserve; they find it later.
void CheckpointWriter::State::reserve_space() const {
  const std::size_t bytes = file_bytes(fd.get(), partial_path);
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail_errno(ExitCode::kIo, partial_path, fmt::format("no room for {} bytes", bytes));
}

void CheckpointWriter::State::store_digests() const {
  const hdf5::Session session;
  const Id access = hdf5::file_access(subject(), kAlignment);
  Id file(H5_CHECK(subject(), H5Fopen, partial_path.c_str(), H5F_ACC_RDWR, access), H5Fclose);
  {
    const Id group(H5_CHECK(subject(), H5Gopen2, file, format::kTensors, H5P_DEFAULT), H5Gclose);
    for (const TensorEntry& tensor : tensors) {
      const Subject about = subject().with(fmt::format("tensor '{}'", tensor.name));
      const Id dataset(H5_CHECK(about, H5Dopen2, group, tensor.name.c_str(), H5P_DEFAULT), H5Dclose);
      const Id digests(H5_CHECK(about, H5Aopen, dataset, format::kDigests, H5P_DEFAULT), H5Aclose);
      H5_CHECK(about, H5Awrite, digests, H5T_STD_U8LE, tensor.digests.data());
    }
  }
  file.close(subject());
}

void CheckpointWriter::State::check_written() const {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t chunk = 0; chunk < written[t].size(); ++chunk) {
      if (written[t][chunk] != 0) continue;
      throw Error(ExitCode::kInternal,
                  fmt::format("internal: {}: chunk {} of tensor '{}' was never written", path, chunk, tensors[t].name));
    }
  }
}

CheckpointWriter::CheckpointWriter(const std::string& path, const std::string& architecture,
                                   const std::string& config_json, const std::vector<TensorDeclaration>& tensors,
                                   const std::vector<CarriedFile>& tokenizer) {
  check_replaceable(path);
  std::vector<FileEntry> files = entries_of(tokenizer, {path});
  state_ = std::make_unique<State>(path, entries_of(tensors, {path}));
  state_->create(architecture, config_json, files);
  state_->reserve_space();
  for (std::size_t i = 0; i < files.size(); ++i) {
    write_at(state_->fd.get(), files[i].offset, std::as_bytes(std::span(tokenizer[i].content)), state_->partial_path);
  }
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write(std::size_t tensor, std::size_t offset, std::span<const std::byte> bytes) {
  ensure(tensor < state_->tensors.size(), "no such tensor in a checkpoint being written");
  TensorEntry& entry = state_->tensors[tensor];
  const bool inside = offset <= entry.bytes && bytes.size() <= entry.bytes - offset;
  const bool ends_chunk = bytes.size() % kDigestChunkBytes == 0 || offset + bytes.size() == entry.bytes;
  ensure(inside && ends_chunk && offset % kDigestChunkBytes == 0, "a checkpoint is written in whole chunks");
  for (std::size_t done = 0; done < bytes.size(); done += kDigestChunkBytes) {
    const std::size_t chunk = (offset + done) / kDigestChunkBytes;
    entry.digests[chunk] = digest128(bytes.subspan(done, std::min(kDigestChunkBytes, bytes.size() - done)));
  }
  write_at(state_->fd.get(), entry.offset + offset, bytes, state_->partial_path);
  const auto first = state_->written[tensor].begin() + static_cast<std::ptrdiff_t>(offset / kDigestChunkBytes);
  std::fill_n(first, ceil_div(bytes.size(), kDigestChunkBytes), char{1});
}

void CheckpointWriter::finish() {
  ensure(!state_->finished, "a checkpoint is finished once");
  state_->check_written();
  state_->store_digests();
  read_checkpoint_index(state_->partial_path);  // nothing is published that the reader would refuse
  if (fsync(state_->fd.get()) != 0) fail_errno(ExitCode::kIo, state_->partial_path, "cannot be synced");
  if (rename(state_->partial_path.c_str(), state_->path.c_str()) != 0) {
    fail_errno(ExitCode::kIo, state_->path, "cannot be renamed from .partial");
  }
  state_->finished = true;
  sync_directory_of(state_->path);
}

}  // namespace computron
