// read_checkpoint_index: everything that the strict profile allows is read, everything else is refused by name.
//
// The profile exists because libhdf5 must not be trusted with hostile files: an external dataset reads another file's
// bytes, 4 KB can declare 2^60 elements, and most random damage opens without an error. So nothing is opened before
// its link is known to be hard, and nothing is believed before it is held against the file's real size.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "computron/base/printable.h"
#include "computron/checkpoint/reader.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/file_types.h"
#include "src/checkpoint/format.h"
#include "src/checkpoint/hdf5.h"
#include "src/checkpoint/index_check.h"

namespace computron {
namespace {

using hdf5::Id;

// Where a superblock version keeps its fields (HDF5 File Format Specification, II.A). Addresses are 8 bytes.
struct SuperblockLayout {
  std::size_t offset_size;  // position of the byte that holds the size of addresses
  std::size_t base;         // position of the base address
  std::size_t end;          // position of the end-of-file address
};

constexpr std::size_t kSuperblockBytes = 56;  // as much of it as is looked at
constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

SuperblockLayout superblock_layout(std::byte version, const Subject& subject) {
  switch (std::to_integer<int>(version)) {
    case 0:
      return {.offset_size = 13, .base = 24, .end = 40};
    case 1:
      return {.offset_size = 13, .base = 28, .end = 44};
    case 2:
    case 3:
      return {.offset_size = 9, .base = 12, .end = 28};
    default:
      subject.fail(fmt::format("HDF5 superblock of unknown version {}", std::to_integer<int>(version)));
  }
}

std::uint64_t address_at(std::span<const std::byte> bytes, std::size_t position) {
  std::uint64_t value;
  std::memcpy(&value, bytes.data() + position, sizeof value);
  return value;
}

// The superblock must begin the file and name exactly the file's size: HDF5 itself accepts longer files.
void check_superblock(int fd, std::size_t bytes, const Subject& subject) {
  std::byte head[kSuperblockBytes] = {};
  const std::size_t got = read_at(fd, 0, head, subject.text);
  if (got < sizeof head || std::memcmp(head, kSignature, sizeof kSignature) != 0) subject.fail("not an HDF5 file");
  const SuperblockLayout layout = superblock_layout(head[8], subject);
  if (head[layout.offset_size] != std::byte{8}) subject.fail("HDF5 addresses are not of 8 bytes");
  if (address_at(head, layout.base) != 0) subject.fail("HDF5 base address is not zero");
  const std::uint64_t end = address_at(head, layout.end);
  if (end == bytes) return;
  subject.fail(
      fmt::format("{}: the file has {} bytes, its header says {}", bytes < end ? "truncated" : "too long", bytes, end));
}

Id open_attribute(hid_t object, const char* name, const Subject& subject) {
  if (H5_CHECK(subject, H5Aexists, object, name) == 0) subject.fail("missing");
  return {H5_CHECK(subject, H5Aopen, object, name, H5P_DEFAULT), H5Aclose};
}

// The extents of a simple or scalar (no extents) dataspace.
std::vector<hsize_t> extents_of(hid_t space, const Subject& subject) {
  const H5S_class_t kind = H5Sget_simple_extent_type(space);
  if (kind != H5S_SIMPLE && kind != H5S_SCALAR) subject.fail("no simple dataspace");
  const int rank = H5_CHECK(subject, H5Sget_simple_extent_ndims, space);
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  H5_CHECK(subject, H5Sget_simple_extent_dims, space, extents.data(), nullptr);
  return extents;
}

void require_scalar(hid_t attribute, const Subject& subject) {
  const Id space(H5_CHECK(subject, H5Aget_space, attribute), H5Sclose);
  if (H5Sget_simple_extent_type(space) != H5S_SCALAR) subject.fail("not a scalar");
}

std::int64_t read_int(hid_t object, const char* name, const Subject& parent) {
  const Subject subject = parent.with(fmt::format("attribute '{}'", name));
  const Id attribute = open_attribute(object, name, subject);
  require_scalar(attribute, subject);
  const Id type(H5_CHECK(subject, H5Aget_type, attribute), H5Tclose);
  const bool known = H5Tequal(type, H5T_STD_I32LE) > 0 || H5Tequal(type, H5T_STD_I64LE) > 0;
  if (!known) subject.fail("not a little-endian signed integer of 32 or 64 bits");
  std::int64_t value = 0;
  H5_CHECK(subject, H5Aread, attribute, H5T_NATIVE_INT64, &value);
  return value;
}

double read_double(hid_t object, const char* name, const Subject& parent) {
  const Subject subject = parent.with(fmt::format("attribute '{}'", name));
  const Id attribute = open_attribute(object, name, subject);
  require_scalar(attribute, subject);
  const Id type(H5_CHECK(subject, H5Aget_type, attribute), H5Tclose);
  if (H5Tequal(type, H5T_IEEE_F64LE) <= 0) subject.fail("not a little-endian float of 64 bits");
  double value = 0;
  H5_CHECK(subject, H5Aread, attribute, H5T_NATIVE_DOUBLE, &value);
  return value;
}

std::string read_string(hid_t object, const char* name, const Subject& parent) {
  const Subject subject = parent.with(fmt::format("attribute '{}'", name));
  const Id attribute = open_attribute(object, name, subject);
  require_scalar(attribute, subject);
  const Id type(H5_CHECK(subject, H5Aget_type, attribute), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0) subject.fail("not a fixed-length string");
  const std::size_t bytes = H5Tget_size(type);
  if (bytes == 0 || bytes > format::kMaxStringBytes) {
    subject.fail(fmt::format("{} bytes (limit {})", bytes, format::kMaxStringBytes));
  }
  std::string text(bytes, '\0');
  H5_CHECK(subject, H5Aread, attribute, type, text.data());
  text.resize(std::min(text.find('\0'), bytes));
  return text;
}

std::vector<Digest128> read_digests(hid_t dataset, std::size_t tensor_bytes, const Subject& parent) {
  const Subject subject = parent.with(fmt::format("attribute '{}'", format::kDigests));
  const Id attribute = open_attribute(dataset, format::kDigests, subject);
  const Id type(H5_CHECK(subject, H5Aget_type, attribute), H5Tclose);
  if (H5Tequal(type, H5T_STD_U8LE) <= 0) subject.fail("not of bytes");
  const Id space(H5_CHECK(subject, H5Aget_space, attribute), H5Sclose);
  const hsize_t chunks = ceil_div(tensor_bytes, kDigestChunkBytes);
  if (extents_of(space, subject) != std::vector<hsize_t>{chunks, sizeof(Digest128)}) {
    subject.fail(fmt::format("not {} digests of {} bytes", chunks, sizeof(Digest128)));
  }
  std::vector<Digest128> digests(chunks);
  H5_CHECK(subject, H5Aread, attribute, H5T_STD_U8LE, digests.data());
  return digests;
}

// Names of a group's links, all of them hard.
struct Links {
  std::vector<std::string> names;
  std::string fault;
};

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* data) try {
  auto& links = *static_cast<Links*>(data);
  if (info->type != H5L_TYPE_HARD) links.fault = fmt::format("'{}' is a soft or external link", name);
  if (links.names.size() >= format::kMaxTensors) links.fault = "too many objects";
  links.names.emplace_back(name);
  return links.fault.empty() ? 0 : 1;
} catch (...) {
  return -1;  // out of memory; must not unwind through C
}

std::vector<std::string> list_links(hid_t group, const Subject& subject) {
  Links links;
  H5_CHECK(subject, H5Literate, group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect_link, &links);
  if (!links.fault.empty()) subject.fail(links.fault);
  return links.names;
}

// Opens `name`, a hard link of `group`, which must lead to an object of this type.
Id open_object(hid_t group, const std::string& name, H5I_type_t type, const Subject& subject) {
  Id object(H5_CHECK(subject, H5Oopen, group, name.c_str(), H5P_DEFAULT), H5Oclose);
  if (H5Iget_type(object) != type) subject.fail(type == H5I_GROUP ? "not a group" : "not a dataset");
  return object;
}

// Contiguous, unfiltered, in this file.
void check_storage(hid_t dataset, const Subject& subject) {
  const Id creation(H5_CHECK(subject, H5Dget_create_plist, dataset), H5Pclose);
  if (H5Pget_layout(creation) != H5D_CONTIGUOUS) subject.fail("not stored contiguously");
  if (H5_CHECK(subject, H5Pget_nfilters, creation) != 0) subject.fail("stored through a filter");
  if (H5_CHECK(subject, H5Pget_external_count, creation) != 0) subject.fail("stored in another file");
}

// What the attribute "codes" says that the bytes are; their dataset must be of bytes for it.
DType read_codes(hid_t dataset, hid_t type, const Subject& subject) {
  const std::string name = read_string(dataset, format::kCodes, subject);
  for (const DType dtype : kAllDTypes) {
    if (is_plain(dtype) || name != name_of(dtype)) continue;
    if (H5_CHECK(subject, H5Tequal, type, format::file_type(dtype, subject)) > 0) return dtype;
    subject.fail(fmt::format("{} that are not stored as {}", name, dtype == DType::kInt8 ? "int8" : "uint8"));
  }
  subject.fail(fmt::format("attribute 'codes' is '{}', neither int8, fp8, int4, fp4, e8m0 nor e4m3", printable(name)));
}

bool has_attribute(hid_t dataset, const char* name, const Subject& subject) {
  return H5_CHECK(subject, H5Aexists, dataset, name) > 0;
}

DType read_dtype(hid_t dataset, const Subject& subject) {
  const Id type(H5_CHECK(subject, H5Dget_type, dataset), H5Tclose);
  if (has_attribute(dataset, format::kCodes, subject)) return read_codes(dataset, type, subject);
  const auto dtype = format::dtype_of(type, subject);
  if (!dtype) subject.fail("neither f32, f16 nor bf16, little-endian");
  return *dtype;
}

// 0 of what has none.
int read_group(hid_t dataset, DType dtype, const Subject& subject) {
  if (!is_code(dtype)) {
    if (has_attribute(dataset, format::kGroup, subject)) subject.fail("attribute 'group' of what is no codes");
    return 0;
  }
  const std::int64_t group = read_int(dataset, format::kGroup, subject);
  if (group < 0 || group >= WeightType::kWholeRow) subject.fail(fmt::format("attribute 'group' is {}", group));
  return group == 0 ? WeightType::kWholeRow : static_cast<int>(group);
}

// 1 of what has none.
double read_factor(hid_t dataset, DType dtype, const Subject& subject) {
  if (dtype == DType::kE4M3) return read_double(dataset, format::kFactor, subject);
  if (has_attribute(dataset, format::kFactor, subject)) subject.fail("attribute 'factor' of what is no e4m3");
  return 1;
}

std::vector<std::size_t> read_shape(hid_t dataset, const Subject& subject) {
  const Id space(H5_CHECK(subject, H5Dget_space, dataset), H5Sclose);
  const std::vector<hsize_t> extents = extents_of(space, subject);
  return {extents.begin(), extents.end()};
}

// Where the dataset's bytes lie; they must be as many as its shape says and inside the file.
std::size_t read_offset(hid_t dataset, std::size_t bytes, std::size_t file_bytes, const Subject& subject) {
  const hsize_t stored = H5Dget_storage_size(dataset);
  if (stored != bytes) subject.fail(fmt::format("{} bytes stored, its shape needs {}", stored, bytes));
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) subject.fail("no storage");
  if (offset > file_bytes || bytes > file_bytes - offset) {
    subject.fail(
        fmt::format("bytes {} to {} + {} are outside the file of {} bytes", offset, offset, bytes, file_bytes));
  }
  return offset;
}

TensorEntry read_tensor(hid_t group, const std::string& name, std::size_t file_bytes, const Subject& subject) {
  const Id dataset = open_object(group, name, H5I_DATASET, subject);
  check_storage(dataset, subject);
  TensorEntry entry;
  entry.name = name;
  entry.dtype = read_dtype(dataset, subject);
  entry.shape = format::tensor_shape(read_shape(dataset, subject), entry.dtype, subject);
  entry.group = read_group(dataset, entry.dtype, subject);
  entry.factor = read_factor(dataset, entry.dtype, subject);
  entry.bytes = format::tensor_bytes(entry.shape, entry.dtype, subject);
  entry.offset = read_offset(dataset, entry.bytes, file_bytes, subject);
  const std::int64_t transposed = read_int(dataset, format::kTransposed, subject);
  if (transposed != 0 && transposed != 1) subject.fail(fmt::format("attribute 'transposed' is {}", transposed));
  entry.transposed = transposed == 1;
  entry.digests = read_digests(dataset, entry.bytes, subject);
  return entry;
}

FileEntry read_file(hid_t group, const std::string& name, std::size_t file_bytes, const Subject& subject) {
  const Id dataset = open_object(group, name, H5I_DATASET, subject);
  check_storage(dataset, subject);
  const Id type(H5_CHECK(subject, H5Dget_type, dataset), H5Tclose);
  if (H5_CHECK(subject, H5Tequal, type, H5T_STD_U8LE) == 0) subject.fail("not of bytes");
  const std::vector<std::size_t> shape = read_shape(dataset, subject);
  if (shape.size() != 1 || shape[0] == 0 || shape[0] > kMaxCarriedFileBytes) {
    subject.fail(fmt::format("not one dimension of 1 to {} bytes", kMaxCarriedFileBytes));
  }
  FileEntry entry;
  entry.name = name;
  entry.bytes = shape[0];
  entry.offset = read_offset(dataset, entry.bytes, file_bytes, subject);
  entry.digests = read_digests(dataset, entry.bytes, subject);
  return entry;
}

// Names of what a group holds, fit to be repeated in messages.
std::vector<std::string> list_names(hid_t group, const Subject& subject) {
  std::vector<std::string> names = list_links(group, subject);
  for (const std::string& name : names) {
    if (const auto fault = format::fault_of_name(name)) subject.fail(*fault);
  }
  return names;
}

void read_tensors(hid_t root, CheckpointIndex& index, const Subject& file) {
  const Id group = open_object(root, format::kTensors, H5I_GROUP, file.with("'/tensors'"));
  for (const std::string& name : list_names(group, file.with("'/tensors'"))) {
    const Subject subject = file.with(fmt::format("tensor '{}'", name));
    index.tensors.emplace(name, read_tensor(group, name, index.file_bytes, subject));
  }
}

void read_tokenizer(hid_t root, CheckpointIndex& index, const Subject& file) {
  const Subject all = file.with("'/tokenizer'");
  const Id group = open_object(root, format::kTokenizer, H5I_GROUP, all);
  const std::vector<std::string> names = list_names(group, all);
  if (names.size() > kMaxCarriedFiles) all.fail(fmt::format("{} files (limit {})", names.size(), kMaxCarriedFiles));
  for (const std::string& name : names) {
    const Subject subject = file.with(fmt::format("tokenizer file '{}'", name));
    index.tokenizer.emplace(name, read_file(group, name, index.file_bytes, subject));
  }
}

// True if there is a tokenizer beside the tensors.
bool check_root_links(hid_t root, const Subject& file) {
  bool has_tensors = false, has_tokenizer = false;
  for (const std::string& name : list_links(root, file)) {
    has_tensors = has_tensors || name == format::kTensors;
    has_tokenizer = has_tokenizer || name == format::kTokenizer;
    const bool known = name == format::kTensors || name == format::kTokenizer;
    if (!known) file.fail("an object beside '/tensors' and '/tokenizer' that is no part of the format");
  }
  if (!has_tensors) file.fail("not a checkpoint: no group '/tensors'");
  return has_tokenizer;
}

void read_metadata(hid_t file, CheckpointIndex& index, const Subject& subject) {
  const Id root(H5_CHECK(subject, H5Gopen2, file, "/", H5P_DEFAULT), H5Gclose);
  const bool has_tokenizer = check_root_links(root, subject);
  const std::int64_t version = read_int(root, format::kVersion, subject);
  if (version != kCheckpointFormatVersion) {
    subject.fail(fmt::format("format version {} (this program reads {})", version, kCheckpointFormatVersion));
  }
  index.architecture = read_string(root, format::kArchitecture, subject);
  index.config_json = read_string(root, format::kConfig, subject);
  read_tensors(root, index, subject);
  if (has_tokenizer) read_tokenizer(root, index, subject);
}

}  // namespace

CheckpointIndex read_checkpoint_index(const std::string& path) {
  const FileDescriptor fd = open_input(path);
  CheckpointIndex index;
  index.path = path;
  index.file_bytes = file_bytes(fd.get(), path);
  const Subject subject{path};
  check_superblock(fd.get(), index.file_bytes, subject);
  const hdf5::Session session;
  const Id access = hdf5::file_access(subject, /*alignment=*/1);
  const Id file(H5_CHECK(subject, H5Fopen, path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  read_metadata(file, index, subject);
  check_index(index, subject);
  return index;
}

}  // namespace computron
