#include "src/checkpoint/hdf5.h"

#include <fmt/format.h>

#include <cstdlib>

#include "computron/checkpoint/reader.h"

namespace computron::hdf5 {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

// H5E_walk2_t: keeps the first entry of an upward walk, the place where the error arose.
herr_t keep_innermost(unsigned depth, const H5E_error2_t* entry, void* text) {
  if (depth == 0) *static_cast<std::string*>(text) = fmt::format("{} ({})", entry->desc, entry->func_name);
  return 0;
}

std::string innermost_message() {
  std::string text = "no message";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  return text;
}

// HDF5 reads these when it is initialised. HDF5_USE_FILE_LOCKING would override H5Pset_file_locking.
void forget_environment() {
  for (const char* name :
       {"HDF5_PLUGIN_PATH", "HDF5_PLUGIN_PRELOAD", "HDF5_VOL_CONNECTOR", "HDF5_DRIVER", "HDF5_DRIVER_CONFIG",
        "HDF5_EXTFILE_PREFIX", "HDF5_VDS_PREFIX", "HDF5_EXT_PREFIX", "HDF5_USE_FILE_LOCKING"}) {
    unsetenv(name);
  }
}

void prepare_library() {
  const Subject subject{"HDF5 library", ExitCode::kInternal};
  forget_environment();
  // After a damaged file the library's own clean-up at exit loops or crashes, which would replace our exit code.
  // There is nothing to clean up: every id here has an owner.
  H5dont_atexit();
  H5_CHECK(subject, H5open);
  H5_CHECK(subject, H5PLset_loading_state, 0);
  if (H5_CHECK(subject, H5Lis_registered, H5L_TYPE_EXTERNAL) > 0) {
    H5_CHECK(subject, H5Lunregister, H5L_TYPE_EXTERNAL);
  }
}

}  // namespace

void fail_call(const Subject& subject, const char* call) {
  subject.fail(fmt::format("HDF5 {}: {}", call, innermost_message()));
}

Session::Session() : lock_(library_mutex()) {
  static const bool prepared = (prepare_library(), true);
  (void)prepared;
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Session::~Session() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }

Id file_access(const Subject& subject, hsize_t alignment) {
  Id access(H5_CHECK(subject, H5Pcreate, H5P_FILE_ACCESS), H5Pclose);
  H5_CHECK(subject, H5Pset_fapl_sec2, access);
  H5_CHECK(subject, H5Pset_file_locking, access, /*use_file_locking=*/false, /*ignore_when_disabled=*/true);
  H5_CHECK(subject, H5Pset_libver_bounds, access, H5F_LIBVER_V18, H5F_LIBVER_V18);
  H5_CHECK(subject, H5Pset_alignment, access, alignment, alignment);
  return access;
}

}  // namespace computron::hdf5

namespace computron {

std::string hdf5_library() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

}  // namespace computron
