// A Python object's memory: the buffer protocol, DLPack or __cuda_array_interface__.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>

#include "device_collective.hpp"
#include "dtype.hpp"

namespace ulfm {

struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  Device* device = nullptr;     // the CUDA device it is on; null for host memory
  Device::Mark ready;           // on a device: what its producer had enqueued is done
  std::shared_ptr<void> owner;  // keeps the memory alive, releasable without the GIL

  std::size_t bytes() const { return count * size_of(dtype); }
  DeviceSpan span() const { return DeviceSpan{device, ready, data}; }
};

// Device memory is ordered after its producer's stream, as DLPack and __cuda_array_interface__ lay down. Throws
// DeviceError when CUDA fails; raises TypeError (no such protocol, dtype, or read-only) or ValueError (not contiguous), naming `role`.
Buffer buffer_of(const pybind11::object& object, const char* role, bool writable);

}  // namespace ulfm
