// Types of elements as they lie in files, little-endian. Private to src/checkpoint.
#pragma once

#include <optional>
#include <vector>

#include "computron/base/types.h"
#include "src/checkpoint/hdf5.h"

namespace computron::format {

// bfloat16 has the bit layout of HDF5 2.0's predefined H5T_FLOAT_BFLOAT16LE; older libraries and h5py read both 16-bit
// types as numbers.
hdf5::Id file_type(DType dtype, const Subject& subject);
// The plain type that it is.
std::optional<DType> dtype_of(hid_t file_type, const Subject& subject);
// The extents of a dataset, and those of the tensor that it holds: codes of four bits lie two in a byte.
std::vector<std::size_t> dataset_shape(std::vector<std::size_t> tensor, DType dtype);
std::vector<std::size_t> tensor_shape(std::vector<std::size_t> dataset, DType dtype, const Subject& subject);

}  // namespace computron::format
