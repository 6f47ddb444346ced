// CUDA device memory, by the driver API found at run time (libcuda.so.1): nothing of CUDA is needed to build this, and
// nothing is loaded before the first device buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace ulfm {

// CUDA is missing, or refused a call.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How device memory reaches the network.
enum class Transport {
  none,     // no CUDA device here
  mpi,      // straight from device memory, by a CUDA-aware MPI
  staging,  // through pinned host memory
};
Transport device_transport();

// One CUDA device in its primary context, which is the one the CUDA runtime and torch use. Lives until the process ends.
//
// Two streams, neither of which waits for the application's: `arrivals` is handed to producers, who make it wait for
// what they have enqueued (DLPack's `stream`) and carries nothing else; `copies` does the copying. A mark on `arrivals`
// is therefore reached when the producers called so far have finished, and a copy never waits for a later one.
class Device {
 public:
  using Mark = std::shared_ptr<void>;

  static Device& at(int index);
  static Device& of(const void* pointer);

  std::uintptr_t arrivals() const noexcept;
  void follow(std::uintptr_t stream);  // as a producer would: `arrivals` waits for what is in `stream`
  Mark mark();

  // For the communication thread only. They block, and drive MPI's progress meanwhile.
  void await(const Mark& mark);
  void to_host(void* to, const void* from, std::size_t bytes);
  void to_device(void* to, const void* from, std::size_t bytes);
  void within_device(void* to, const void* from, std::size_t bytes);
  void clear(void* data, std::size_t bytes);

 private:
  explicit Device(int index);
  void enter();
  void settle();

  const int index_;
  void* context_ = nullptr;
  void* arrivals_ = nullptr;
  void* copies_ = nullptr;
};

// Pinned host memory of at least `bytes`, for the communication thread after an await(): one block, reused, that grows
// with demand. Its content is lost at the next call.
void* pinned(std::size_t bytes);

}  // namespace ulfm
