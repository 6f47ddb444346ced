#include "device.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "requests.hpp"
#include "runtime.hpp"

namespace ulfm {
namespace {

// The part of cuda.h that is used here. These are ABI: the driver keeps them.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = std::uintptr_t;
using CUcontext = void*;
using CUstream = void*;
using CUevent = void*;
constexpr CUresult success = 0;
constexpr CUresult not_ready = 600;
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_portable = 1;  // pinned for every context
constexpr int attribute_device_ordinal = 9;

constexpr const char* library_variable = "ULFM_CORE_LIBCUDA";

class Driver {
 public:
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  CUresult (*init)(unsigned);
  CUresult (*device_count)(int*);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*primary_context_retain)(CUcontext*, CUdevice);
  CUresult (*context_set)(CUcontext);
  CUresult (*context_push)(CUcontext);
  CUresult (*context_pop)(CUcontext*);
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_wait)(CUstream, CUevent, unsigned);
  CUresult (*event_create)(CUevent*, unsigned);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_query)(CUevent);
  CUresult (*event_destroy)(CUevent);
  CUresult (*copy_to_host)(void*, CUdeviceptr, std::size_t, CUstream);
  CUresult (*copy_to_device)(CUdeviceptr, const void*, std::size_t, CUstream);
  CUresult (*copy_within)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
  CUresult (*fill)(CUdeviceptr, unsigned char, std::size_t, CUstream);
  CUresult (*host_allocate)(void**, std::size_t, unsigned);
  CUresult (*host_free)(void*);
  CUresult (*pointer_attribute)(void*, int, CUdeviceptr);
  CUresult (*error_name)(CUresult, const char**);
  CUresult (*error_text)(CUresult, const char**);

  void check(CUresult result, const std::string& what) const {
    if (result == success) return;
    const char* name = nullptr;
    const char* text = nullptr;
    if (error_name(result, &name) != success || name == nullptr) name = "unknown error";
    if (error_text(result, &text) != success || text == nullptr) text = "no description";
    throw DeviceError("CUDA: could not " + what + ": " + name + " (" + text + ")");
  }

 private:
  Driver() {
    const char* named = std::getenv(library_variable);
    const std::string name = named != nullptr ? named : "libcuda.so.1";
    library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      const char* why = dlerror();
      throw DeviceError("CUDA: the driver's library cannot be loaded (" + std::string(why != nullptr ? why : name) +
                        "): device memory needs NVIDIA's driver on this machine");
    }
    load(init, "cuInit");
    load(device_count, "cuDeviceGetCount");
    load(device_get, "cuDeviceGet");
    load(primary_context_retain, "cuDevicePrimaryCtxRetain");
    load(context_set, "cuCtxSetCurrent");
    load(context_push, "cuCtxPushCurrent_v2");
    load(context_pop, "cuCtxPopCurrent_v2");
    load(stream_create, "cuStreamCreate");
    load(stream_wait, "cuStreamWaitEvent");
    load(event_create, "cuEventCreate");
    load(event_record, "cuEventRecord");
    load(event_query, "cuEventQuery");
    load(event_destroy, "cuEventDestroy_v2");
    load(copy_to_host, "cuMemcpyDtoHAsync_v2");
    load(copy_to_device, "cuMemcpyHtoDAsync_v2");
    load(copy_within, "cuMemcpyDtoDAsync_v2");
    load(fill, "cuMemsetD8Async");
    load(host_allocate, "cuMemHostAlloc");
    load(host_free, "cuMemFreeHost");
    load(pointer_attribute, "cuPointerGetAttribute");
    load(error_name, "cuGetErrorName");
    load(error_text, "cuGetErrorString");
    check(init(0), "initialise the driver");
  }

  template <typename Function>
  void load(Function& function, const char* name) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) throw DeviceError(std::string("CUDA: the driver has no ") + name + ": update it");
    std::memcpy(&function, &symbol, sizeof symbol);
  }

  void* library_ = nullptr;
};

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Makes a context current for a while, on a thread that belongs to the application.
class Visit {
 public:
  explicit Visit(CUcontext context) { Driver::get().check(Driver::get().context_push(context), "enter the context"); }
  ~Visit() {
    CUcontext left = nullptr;
    Driver::get().context_pop(&left);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
};

// In the current context.
Device::Mark record(CUstream stream) {
  const Driver& driver = Driver::get();
  CUevent event = nullptr;
  driver.check(driver.event_create(&event, event_disable_timing), "create an event");
  Device::Mark mark(event, [](void* held) { Driver::get().event_destroy(held); });
  driver.check(driver.event_record(event, stream), "record an event");
  return mark;
}

bool excludes_cuda(const char* components) {
  if (components == nullptr || components[0] != '^') return false;
  const std::string list = "," + std::string(components + 1) + ",";
  return list.find(",cuda,") != std::string::npos;
}

Transport find_transport() {
  try {
    const Driver& driver = Driver::get();
    int count = 0;
    driver.check(driver.device_count(&count), "count the devices");
    if (count == 0) return Transport::none;
  } catch (const DeviceError&) {
    return Transport::none;
  }
  // Without its collective component for CUDA, Open MPI would add up device memory with host instructions.
  return cuda_aware() && !excludes_cuda(std::getenv("OMPI_MCA_coll")) ? Transport::mpi : Transport::staging;
}

}  // namespace

Transport device_transport() {
  static const Transport transport = find_transport();
  return transport;
}

Device& Device::at(int index) {
  static std::mutex mutex;
  static std::map<int, Device*> devices;  // never freed: the driver may be gone before static objects are
  const std::lock_guard lock(mutex);
  Device*& device = devices[index];
  if (device == nullptr) device = new Device(index);
  return *device;
}

Device& Device::of(const void* pointer) {
  const Driver& driver = Driver::get();
  int index = 0;
  driver.check(driver.pointer_attribute(&index, attribute_device_ordinal, address(pointer)),
               "find the device that this memory is on");
  return at(index);
}

Device::Device(int index) : index_(index) {
  const Driver& driver = Driver::get();
  CUdevice device = 0;
  driver.check(driver.device_get(&device, index_), "get device " + std::to_string(index_));
  driver.check(driver.primary_context_retain(&context_, device), "get the context of device " + std::to_string(index_));
  const Visit visit(context_);
  driver.check(driver.stream_create(&arrivals_, stream_non_blocking), "create a stream");
  driver.check(driver.stream_create(&copies_, stream_non_blocking), "create a stream");
}

std::uintptr_t Device::arrivals() const noexcept { return reinterpret_cast<std::uintptr_t>(arrivals_); }

void Device::follow(std::uintptr_t stream) {
  const Driver& driver = Driver::get();
  const Visit visit(context_);
  const Mark theirs = record(reinterpret_cast<CUstream>(stream));
  driver.check(driver.stream_wait(arrivals_, theirs.get(), 0), "wait for the producer's stream");
}

Device::Mark Device::mark() {
  const Visit visit(context_);
  return record(arrivals_);
}

void Device::enter() { Driver::get().check(Driver::get().context_set(context_), "enter the context"); }

void Device::await(const Mark& mark) {
  const Driver& driver = Driver::get();
  enter();
  Pause pause;
  for (;;) {
    const CUresult state = driver.event_query(mark.get());
    if (state != not_ready) return driver.check(state, "wait for the device");
    pause();
    // News of a failure arrive only while somebody drives MPI's progress, and producers may take long.
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
  }
}

void Device::settle() { await(record(copies_)); }

void Device::to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Driver& driver = Driver::get();
  enter();
  driver.check(driver.copy_to_host(to, address(from), bytes, copies_),
               "copy " + std::to_string(bytes) + " bytes to the host");
  settle();
}

void Device::to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Driver& driver = Driver::get();
  enter();
  driver.check(driver.copy_to_device(address(to), from, bytes, copies_),
               "copy " + std::to_string(bytes) + " bytes to the device");
  settle();
}

void Device::within_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  const Driver& driver = Driver::get();
  enter();
  driver.check(driver.copy_within(address(to), address(from), bytes, copies_),
               "copy " + std::to_string(bytes) + " bytes on the device");
  settle();
}

void Device::clear(void* data, std::size_t bytes) {
  if (bytes == 0) return;
  const Driver& driver = Driver::get();
  enter();
  driver.check(driver.fill(address(data), 0, bytes, copies_), "clear " + std::to_string(bytes) + " bytes");
  settle();
}

void* pinned(std::size_t bytes) {
  static void* block = nullptr;
  static std::size_t size = 0;
  const Driver& driver = Driver::get();
  if (bytes > size) {
    if (block != nullptr) driver.check(driver.host_free(block), "free pinned memory");
    block = nullptr;
    size = 0;
    driver.check(driver.host_allocate(&block, bytes, host_portable),
                 "allocate " + std::to_string(bytes) + " bytes of pinned host memory");
    size = bytes;
  }
  return block;
}

}  // namespace ulfm
