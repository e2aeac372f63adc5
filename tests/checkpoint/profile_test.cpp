// The strict profile: files made with HDF5 itself that are well formed but not ours are refused, and the message says
// which thing is at fault and why.
#include <gmock/gmock.h>

#include <cmath>
#define H5_USE_110_API
#include <hdf5.h>

#include <functional>
#include <optional>

#include "tests/checkpoint/sample.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

// As the library under test does: HDF5's clean-up at exit fails after the damaged files of other tests.
const herr_t kNoCleanUpAtExit = H5dont_atexit();

constexpr hsize_t kExtents[5] = {8, 16, 1, 1, 1};

hid_t scalar() { return H5Screate(H5S_SCALAR); }

void put_int(hid_t object, const char* name, int value, hid_t type = H5T_STD_I32LE) {
  const hid_t attribute = H5Acreate2(object, name, type, scalar(), H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, H5T_NATIVE_INT, &value);
  H5Aclose(attribute);
}

void put_string(hid_t object, const char* name, const std::string& text) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, text.size());
  const hid_t attribute = H5Acreate2(object, name, type, scalar(), H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, type, text.data());
  H5Aclose(attribute);
}

void put_digests(hid_t dataset, hsize_t chunks, hsize_t bytes = 16) {
  const hsize_t extents[2] = {chunks, bytes};
  const hid_t space = H5Screate_simple(2, extents, nullptr);
  const hid_t attribute = H5Acreate2(dataset, "xxh3_128", H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT);
  const std::vector<unsigned char> zeros(chunks * bytes);
  H5Awrite(attribute, H5T_STD_U8LE, zeros.data());
  H5Aclose(attribute);
}

hid_t early() {
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  return properties;
}

hid_t plain_space() { return H5Screate_simple(2, kExtents, nullptr); }

// A dataset "w" with sound attributes; the parameters are what a test makes unsound.
hid_t put_dataset(hid_t group, hid_t type = H5T_IEEE_F32LE, hid_t space = plain_space(), hid_t properties = early(),
                  const char* name = "w") {
  const hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  EXPECT_GE(dataset, 0) << "the test's own file could not be made";
  put_int(dataset, "transposed", 0);
  put_digests(dataset, 1);
  return dataset;
}

void put_root_attributes(hid_t file) {
  put_int(file, "format_version", 1);
  put_string(file, "architecture", "opt");
  put_string(file, "config", "{}");
}

// Makes a file and says why it is refused; empty if it is not. STRONG closing lets tests leave ids open.
std::string refusal(const std::function<void(hid_t file)>& fill, hid_t creation = H5P_DEFAULT,
                    H5F_libver_t oldest = H5F_LIBVER_EARLIEST) {
  const Folder folder;
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  H5Pset_libver_bounds(access, oldest, H5F_LIBVER_LATEST);
  const hid_t file = H5Fcreate(folder.file("m.h5").c_str(), H5F_ACC_TRUNC, creation, access);
  fill(file);
  H5Fclose(file);
  ExitCode code = ExitCode::kData;
  const std::string message = message_of([&] { read_checkpoint_index(folder.file("m.h5")); }, &code);
  EXPECT_EQ(code, ExitCode::kData) << message;
  EXPECT_THAT(message, AnyOf("", StartsWith(folder.file("m.h5"))));
  return message;
}

std::string refusal_of_tensors(const std::function<void(hid_t tensors)>& fill) {
  return refusal([&](hid_t file) {
    put_root_attributes(file);
    fill(H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
}

std::string refusal_of_storage(const std::function<void(hid_t properties)>& set) {
  return refusal_of_tensors([&](hid_t tensors) {
    const hid_t properties = early();
    set(properties);
    put_dataset(tensors, H5T_IEEE_F32LE, plain_space(), properties);
  });
}

std::string refusal_of_type(hid_t type) {
  return refusal_of_tensors([&](hid_t tensors) { put_dataset(tensors, type); });
}

// The control: made the same way and nothing wrong, also with the oldest superblock, which the others use too.
TEST(Profile, TakesAPlainFileOfAnotherWriter) {
  EXPECT_EQ(refusal_of_tensors([](hid_t tensors) { put_dataset(tensors); }), "");
}

TEST(Profile, Storage) {
  EXPECT_THAT(refusal_of_storage([](hid_t p) { H5Pset_chunk(p, 2, kExtents); }),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("contiguously")));
  EXPECT_THAT(refusal_of_storage([](hid_t p) { H5Pset_layout(p, H5D_COMPACT); }), HasSubstr("contiguously"));
  EXPECT_THAT(refusal_of_storage([](hid_t p) {
                H5Pset_chunk(p, 2, kExtents);
                H5Pset_fletcher32(p);
              }),
              HasSubstr("tensor 'w'"));
  EXPECT_THAT(refusal_of_storage([](hid_t p) { H5Pset_external(p, "/etc/hostname", 0, 8 * 16 * 4); }),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("another file")));
  EXPECT_THAT(refusal_of_storage([](hid_t p) { H5Pset_virtual(p, plain_space(), "x.h5", "d", plain_space()); }),
              HasSubstr("contiguously"));
  EXPECT_THAT(refusal_of_storage([](hid_t p) { H5Pset_alloc_time(p, H5D_ALLOC_TIME_LATE); }),
              HasSubstr("0 bytes stored"));
}

TEST(Profile, Types) {
  for (const hid_t type :
       {H5T_IEEE_F32BE, H5T_IEEE_F64LE, H5T_STD_I32LE, H5T_STD_U16LE, H5T_STD_REF_OBJ, H5T_STD_REF_DSETREG}) {
    EXPECT_THAT(refusal_of_type(type), AllOf(HasSubstr("tensor 'w'"), HasSubstr("neither f32, f16 nor bf16")));
  }
  const hid_t compound = H5Tcreate(H5T_COMPOUND, 4);
  H5Tinsert(compound, "x", 0, H5T_IEEE_F32LE);
  EXPECT_THAT(refusal_of_type(compound), HasSubstr("neither"));
  EXPECT_THAT(refusal_of_type(H5Tvlen_create(H5T_IEEE_F32LE)), HasSubstr("neither"));
  // bfloat16 with half's exponent bias, a mistake seen in the wild.
  const hid_t wrong_bias = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(wrong_bias, 15, 7, 8, 0, 7);
  H5Tset_precision(wrong_bias, 16);
  H5Tset_size(wrong_bias, 2);
  H5Tset_ebias(wrong_bias, 15);
  EXPECT_THAT(refusal_of_type(wrong_bias), HasSubstr("neither"));
}

TEST(Profile, Shapes) {
  const auto shaped = [](hid_t space) {
    return refusal_of_tensors([&](hid_t tensors) { put_dataset(tensors, H5T_IEEE_F32LE, space); });
  };
  EXPECT_EQ(shaped(H5Screate_simple(4, kExtents, nullptr)), "");
  EXPECT_THAT(shaped(H5Screate_simple(5, kExtents, nullptr)), HasSubstr("5 dimensions"));
  EXPECT_THAT(shaped(scalar()), HasSubstr("0 dimensions"));
  EXPECT_THAT(shaped(H5Screate(H5S_NULL)), HasSubstr("dataspace"));
  const hsize_t empty[2] = {4, 0};
  EXPECT_THAT(shaped(H5Screate_simple(2, empty, nullptr)), HasSubstr("zero"));
}

// 2^60 elements in a file of 4 KB: storage is never allocated, only declared.
TEST(Profile, HugeDeclarations) {
  const hsize_t huge[2] = {hsize_t{1} << 30, hsize_t{1} << 30};
  EXPECT_THAT(refusal_of_tensors([&](hid_t tensors) {
                put_dataset(tensors, H5T_IEEE_F32LE, H5Screate_simple(2, huge, nullptr), H5P_DEFAULT);
              }),
              HasSubstr("tensor 'w'"));
}

TEST(Profile, Links) {
  EXPECT_THAT(refusal_of_tensors([](hid_t tensors) {
                put_dataset(tensors);
                H5Lcreate_soft("/tensors/w", tensors, "s", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("'s' is a soft or external link"));
  EXPECT_THAT(refusal_of_tensors([](hid_t tensors) {
                put_dataset(tensors);
                H5Lcreate_hard(tensors, "w", tensors, "again", H5P_DEFAULT, H5P_DEFAULT);
              }),
              AllOf(HasSubstr("'w'"), HasSubstr("'again'"), HasSubstr("overlap")));
  EXPECT_THAT(
      refusal_of_tensors([](hid_t tensors) { H5Gcreate2(tensors, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT); }),
      HasSubstr("'inner': not a dataset"));
  EXPECT_THAT(
      refusal_of_tensors([](hid_t tensors) { put_dataset(tensors, H5T_IEEE_F32LE, plain_space(), early(), "a b"); }),
      HasSubstr("character 0x20"));
}

// A kind of link that a program has made up, and a group that holds itself.
TEST(Profile, LinksOfOtherKinds) {
  constexpr auto kOwnKind = static_cast<H5L_type_t>(H5L_TYPE_UD_MIN + 7);
  const H5L_class_t own = {H5L_LINK_CLASS_T_VERS,
                           kOwnKind,
                           "test",
                           nullptr,
                           nullptr,
                           nullptr,
                           [](const char*, hid_t, const void*, size_t, hid_t, hid_t) -> hid_t { return -1; },
                           nullptr,
                           nullptr};
  EXPECT_THAT(refusal_of_tensors([&](hid_t tensors) {
                H5Lregister(&own);
                EXPECT_GE(H5Lcreate_ud(tensors, "u", kOwnKind, "x", 1, H5P_DEFAULT, H5P_DEFAULT), 0);
                H5Lunregister(kOwnKind);
              }),
              HasSubstr("'u' is a soft or external link"));
  EXPECT_THAT(refusal_of_tensors(
                  [](hid_t tensors) { H5Lcreate_hard(tensors, ".", tensors, "itself", H5P_DEFAULT, H5P_DEFAULT); }),
              HasSubstr("'itself': not a dataset"));
  EXPECT_THAT(refusal([](hid_t file) {
                put_root_attributes(file);
                H5Lcreate_hard(file, ".", file, "tensors", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("tensor 'tensors': not a dataset"));
  EXPECT_THAT(refusal_of_tensors([](hid_t tensors) {
                H5Tcommit2(tensors, "type", H5Tcopy(H5T_IEEE_F32LE), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("'type': not a dataset"));
}

TEST(Profile, LinkAsTheGroupOfTensors) {
  EXPECT_THAT(refusal([](hid_t file) {
                put_root_attributes(file);
                put_dataset(H5Gcreate2(file, "tokenizer", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
                H5Lcreate_soft("/tokenizer", file, "tensors", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("'tensors' is a soft or external link"));
}

// Reading any checkpoint takes external links out of this process's HDF5; the test puts a class of its own back.
TEST(Profile, ExternalLinks) {
  const H5L_class_t external = {H5L_LINK_CLASS_T_VERS,
                                H5L_TYPE_EXTERNAL,
                                "test",
                                nullptr,
                                nullptr,
                                nullptr,
                                [](const char*, hid_t, const void*, size_t, hid_t, hid_t) -> hid_t { return -1; },
                                nullptr,
                                nullptr};
  EXPECT_THAT(refusal_of_tensors([&](hid_t tensors) {
                if (H5Lis_registered(H5L_TYPE_EXTERNAL) == 0) H5Lregister(&external);
                EXPECT_GE(H5Lcreate_external("other.h5", "/w", tensors, "x", H5P_DEFAULT, H5P_DEFAULT), 0);
                H5Lunregister(H5L_TYPE_EXTERNAL);
              }),
              HasSubstr("'x' is a soft or external link"));
}

TEST(Profile, LibraryLoadsNothing) {
  const Folder folder;
  write_sample(folder.file("m.h5"));
  unsigned loading = ~0u;
  H5PLget_loading_state(&loading);
  EXPECT_EQ(loading, 0u);
  EXPECT_EQ(H5Lis_registered(H5L_TYPE_EXTERNAL), 0);
}

TEST(Profile, TensorAttributes) {
  const auto attributed = [](const std::function<void(hid_t dataset)>& put) {
    return refusal_of_tensors([&](hid_t tensors) {
      put(H5Dcreate2(tensors, "w", H5T_IEEE_F32LE, plain_space(), H5P_DEFAULT, early(), H5P_DEFAULT));
    });
  };
  EXPECT_THAT(attributed([](hid_t d) { put_digests(d, 1); }), HasSubstr("tensor 'w': attribute 'transposed': missing"));
  EXPECT_THAT(attributed([](hid_t d) { put_int(d, "transposed", 0); }), HasSubstr("attribute 'xxh3_128': missing"));
  EXPECT_THAT(attributed([](hid_t d) { put_int(d, "transposed", 0), put_digests(d, 2); }), HasSubstr("not 1 digests"));
  EXPECT_THAT(attributed([](hid_t d) { put_int(d, "transposed", 0), put_digests(d, 1, 8); }),
              HasSubstr("not 1 digests of 16"));
  EXPECT_THAT(attributed([](hid_t d) { put_int(d, "transposed", 2), put_digests(d, 1); }),
              HasSubstr("'transposed' is 2"));
  EXPECT_THAT(attributed([](hid_t d) { put_int(d, "transposed", 0, H5T_STD_I32BE), put_digests(d, 1); }),
              HasSubstr("little-endian"));
  EXPECT_EQ(attributed([](hid_t d) { put_int(d, "transposed", 1, H5T_STD_I64LE), put_digests(d, 1); }), "");
}

TEST(Profile, RootAttributes) {
  const auto rooted = [](const std::function<void(hid_t file)>& put) {
    return refusal([&](hid_t file) {
      H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      put(file);
    });
  };
  EXPECT_THAT(rooted([](hid_t) {}), HasSubstr("attribute 'format_version': missing"));
  EXPECT_THAT(rooted([](hid_t f) { put_int(f, "format_version", 2); }), HasSubstr("format version 2"));
  EXPECT_THAT(rooted([](hid_t f) { put_int(f, "format_version", 1), put_int(f, "architecture", 1); }),
              HasSubstr("'architecture': not a fixed-length string"));
  EXPECT_THAT(rooted([](hid_t f) {
                put_int(f, "format_version", 1);
                put_string(f, "architecture", "opt");
                const hid_t two = H5Screate_simple(1, &kExtents[0], nullptr), type = H5Tcopy(H5T_C_S1);
                H5Acreate2(f, "config", type, two, H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("'config': not a scalar"));
  EXPECT_THAT(rooted([](hid_t f) {
                put_int(f, "format_version", 1);
                const hid_t type = H5Tcopy(H5T_C_S1);
                H5Tset_size(type, H5T_VARIABLE);
                const char* text = "opt";
                H5Awrite(H5Acreate2(f, "architecture", type, scalar(), H5P_DEFAULT, H5P_DEFAULT), type, &text);
              }),
              HasSubstr("not a fixed-length string"));
}

TEST(Profile, RootAttributesThatAreTooLong) {
  const auto too_long = [](hid_t file) {
    H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    put_int(file, "format_version", 1);
    put_string(file, "architecture", std::string(70000, 'x'));
  };
  EXPECT_THAT(refusal(too_long, H5P_DEFAULT, H5F_LIBVER_V18), HasSubstr("70000 bytes (limit 65536)"));
}

TEST(Profile, RootObjects) {
  EXPECT_THAT(refusal([](hid_t file) { put_root_attributes(file); }), HasSubstr("no group '/tensors'"));
  EXPECT_THAT(refusal([](hid_t file) {
                put_root_attributes(file);
                H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                H5Gcreate2(file, "other", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("no part of the format"));
  EXPECT_THAT(refusal([](hid_t file) {
                put_root_attributes(file);
                put_dataset(file, H5T_IEEE_F32LE, plain_space(), early(), "tensors");
              }),
              HasSubstr("'/tensors': not a group"));
}

std::string refusal_of_tokenizer(const std::function<void(hid_t tokenizer)>& fill) {
  return refusal([&](hid_t file) {
    put_root_attributes(file);
    H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    fill(H5Gcreate2(file, "tokenizer", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
}

// A dataset of bytes, as the tokenizer's files are.
void put_file(hid_t group, const char* name, int dimensions = 1, hid_t type = H5T_STD_U8LE,
              hid_t properties = early()) {
  const hid_t space = H5Screate_simple(dimensions, kExtents, nullptr);
  const hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  EXPECT_GE(dataset, 0) << "the test's own file could not be made";
  put_digests(dataset, 1);
}

TEST(Profile, FilesOfTheTokenizer) {
  EXPECT_EQ(refusal_of_tokenizer([](hid_t group) { put_file(group, "vocab.json"); }), "");
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) { put_file(group, "f", 2); }),
              HasSubstr("tokenizer file 'f': not one dimension"));
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) { put_file(group, "f", 1, H5T_STD_I8LE); }),
              HasSubstr("tokenizer file 'f': not of bytes"));
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) { put_file(group, "a b"); }), HasSubstr("character 0x20"));
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) {
                const hid_t properties = early();
                H5Pset_layout(properties, H5D_COMPACT);
                put_file(group, "f", 1, H5T_STD_U8LE, properties);
              }),
              HasSubstr("not stored contiguously"));
  EXPECT_THAT(
      refusal_of_tokenizer([](hid_t group) { H5Gcreate2(group, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT); }),
      HasSubstr("'inner': not a dataset"));
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) {
                put_file(group, "f");
                H5Lcreate_hard(group, "f", group, "g", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal_of_tokenizer([](hid_t group) {
                for (int i = 0; i <= 32; ++i) put_file(group, ("f" + std::to_string(i)).c_str());
              }),
              HasSubstr("33 files (limit 32)"));
}

TEST(Profile, UserBlock) {
  const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(creation, 512);
  EXPECT_THAT(refusal([](hid_t file) { put_root_attributes(file); }, creation), HasSubstr("not an HDF5 file"));
}

void put_double(hid_t object, const char* name, double value) {
  const hid_t attribute = H5Acreate2(object, name, H5T_IEEE_F64LE, scalar(), H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, H5T_NATIVE_DOUBLE, &value);
  H5Aclose(attribute);
}

// A dataset "w" [8, 16] of codes with its attributes; empty: left out.
std::string refusal_of_codes(hid_t type, const std::string& codes, std::optional<int> group,
                             std::vector<hsize_t> extents = {8, 16}, std::optional<double> factor = {}) {
  return refusal_of_tensors([&](hid_t tensors) {
    const hid_t space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
    const hid_t dataset = put_dataset(tensors, type, space);
    if (!codes.empty()) put_string(dataset, "codes", codes);
    if (group) put_int(dataset, "group", *group);
    if (factor) put_double(dataset, "factor", *factor);
  });
}

TEST(Profile, Codes) {
  EXPECT_EQ(refusal_of_codes(H5T_STD_I8LE, "int8", 16), "");
  EXPECT_EQ(refusal_of_codes(H5T_STD_U8LE, "fp8", 0), "");
  EXPECT_EQ(refusal_of_codes(H5T_STD_U8LE, "int4", 32), "");
  EXPECT_EQ(refusal_of_codes(H5T_STD_U8LE, "fp4", 16), "");
  EXPECT_EQ(refusal_of_codes(H5T_STD_U8LE, "e8m0", std::nullopt), "");
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8\x1b", 16),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("'codes' is 'int8\\x1b'"), HasSubstr("neither int8")));
  EXPECT_THAT(refusal_of_codes(H5T_STD_U8LE, "nf4", 16), HasSubstr("'codes' is 'nf4'"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_U8LE, "bf16", 16), HasSubstr("'codes' is 'bf16'"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_U8LE, "", 16), HasSubstr("neither f32, f16 nor bf16"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_U8LE, "int8", 16), HasSubstr("int8 that are not stored as int8"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int4", 16), HasSubstr("int4 that are not stored as uint8"));
  EXPECT_THAT(refusal_of_codes(H5T_IEEE_F32LE, "fp8", 16), HasSubstr("fp8 that are not stored as uint8"));
}

TEST(Profile, FactorsOfScales) {
  const auto refused = [](const char* codes, std::optional<double> factor) {
    return refusal_of_codes(H5T_STD_U8LE, codes, std::nullopt, {8, 16}, factor);
  };
  EXPECT_EQ(refused("e4m3", 0.37), "");
  EXPECT_EQ(refused("e4m3", 0), "");
  EXPECT_THAT(refused("e4m3", std::nullopt), AllOf(HasSubstr("attribute 'factor'"), HasSubstr("missing")));
  EXPECT_THAT(refused("e8m0", 1), HasSubstr("attribute 'factor' of what is no e4m3"));
  for (const double factor : {-0.37, std::nan(""), HUGE_VAL, 1e36}) {
    EXPECT_THAT(refused("e4m3", factor), AllOf(HasSubstr("tensor 'w'"), HasSubstr("negative or not finite")));
  }
  EXPECT_THAT(refusal_of_tensors([](hid_t tensors) {
                const hid_t dataset = put_dataset(tensors, H5T_STD_U8LE);
                put_string(dataset, "codes", "e4m3");
                put_int(dataset, "factor", 1);
              }),
              HasSubstr("not a little-endian float of 64 bits"));
}

TEST(Profile, GroupsOfCodes) {
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", std::nullopt),
              AllOf(HasSubstr("attribute 'group'"), HasSubstr("missing")));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", -32), HasSubstr("attribute 'group' is -32"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", 1 << 30), HasSubstr("attribute 'group' is 1073741824"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", 17), HasSubstr("groups of 17 of 16 values"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", 8), HasSubstr("groups of 8 of 16 values"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", 32), HasSubstr("groups of 32 of 16 values"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_I8LE, "int8", 16, {128}), HasSubstr("codes of 1 dimensions"));
  EXPECT_THAT(refusal_of_codes(H5T_STD_U8LE, "e8m0", 16), HasSubstr("attribute 'group' of what is no codes"));
  EXPECT_THAT(refusal_of_codes(H5T_IEEE_F32LE, "", 16), HasSubstr("attribute 'group' of what is no codes"));
}

}  // namespace
}  // namespace computron::test
