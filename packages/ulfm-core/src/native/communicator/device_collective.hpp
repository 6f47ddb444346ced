// The collectives on CUDA device memory, by whichever transport there is.
#pragma once

#include "collective.hpp"
#include "device.hpp"

namespace ulfm {

// Memory of `device`, ready to be touched when `ready` is reached.
struct DeviceSpan {
  Device* device = nullptr;
  Device::Mark ready;
  void* data = nullptr;
};

// As the functions of collective.hpp: in and out hold `count` elements. Throws DeviceError besides Fault. The outputs of
// a failed operation are whole with host staging, garbage with a CUDA-aware MPI.
void all_reduce(Ring& ring, Op op, DType dtype, const DeviceSpan& in, const DeviceSpan& out, std::size_t count,
                bool contribute);
void broadcast(Ring& ring, const DeviceSpan& data, std::size_t bytes, int root);
void all_gather(Ring& ring, const DeviceSpan& in, const DeviceSpan& out, std::size_t bytes);

}  // namespace ulfm
