// A stand-in for NVIDIA's libcuda.so.1, with host memory in the part of device memory. It keeps the rules that matter:
// work on a stream happens late (a little with every query) and in order, waits included; contexts belong to threads,
// streams and events to contexts; copies want pinned memory; device memory that the host touches is a segmentation fault.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int invalid_value = 1, out_of_memory = 2, not_initialized = 3, invalid_context = 201, invalid_handle = 400,
              not_ready = 600;

struct Context {
  int device;
};
struct Event {
  Context* context;
  int recorded = 0;
  int reached = 0;
};
struct Stream {
  Context* context;
  std::deque<std::function<bool()>> tasks;  // true: done, go on; false: not yet
};
struct Memory {
  std::size_t size;
  char* shadow;  // the same memory, for us
  int device;
};

std::recursive_mutex mutex;
bool initialized = false;
Context contexts[2] = {{0}, {1}};
thread_local std::vector<Context*> current;
std::map<char*, Memory> device_memory;
std::map<char*, std::size_t> pinned;
std::vector<Stream*> streams;
std::map<std::string, int> calls;
std::string failing;
bool gate = false;

using Lock = std::lock_guard<std::recursive_mutex>;

int begin(const char* name) {
  ++calls[name];
  if (!initialized) return not_initialized;
  if (failing == name) {
    failing.clear();
    return out_of_memory;
  }
  return 0;
}

int in_context(const Context* context) {
  if (current.empty() || current.back() == nullptr) return invalid_context;
  return current.back() == context ? 0 : invalid_handle;
}

char* shadow_of(std::uintptr_t address, std::size_t bytes) {
  for (auto& [base, memory] : device_memory) {
    auto start = reinterpret_cast<std::uintptr_t>(base);
    if (address >= start && address + bytes <= start + memory.size) return memory.shadow + (address - start);
  }
  return nullptr;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
  auto* p = static_cast<const char*>(pointer);
  for (auto& [base, size] : pinned) {
    if (p >= base && p + bytes <= base + size) return true;
  }
  return false;
}

void time_passes() {
  for (Stream* stream : streams) {
    if (!stream->tasks.empty() && stream->tasks.front()()) stream->tasks.pop_front();
  }
}

int enqueue(const char* name, void* handle, std::function<bool()> task) {
  if (int error = begin(name)) return error;
  auto* stream = static_cast<Stream*>(handle);
  if (int error = in_context(stream->context)) return error;
  stream->tasks.push_back(std::move(task));
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const Lock lock(mutex);
  initialized = true;
  return begin("cuInit");
}
int cuDeviceGetCount(int* count) {
  const Lock lock(mutex);
  *count = 2;
  return begin("cuDeviceGetCount");
}
int cuDeviceGet(int* device, int index) {
  const Lock lock(mutex);
  *device = index;
  return index < 2 ? begin("cuDeviceGet") : invalid_value;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  const Lock lock(mutex);
  *context = &contexts[device];
  return begin("cuDevicePrimaryCtxRetain");
}
int cuCtxSetCurrent(void* context) {
  const Lock lock(mutex);
  if (current.empty()) current.push_back(nullptr);
  current.back() = static_cast<Context*>(context);
  return begin("cuCtxSetCurrent");
}
int cuCtxPushCurrent_v2(void* context) {
  const Lock lock(mutex);
  current.push_back(static_cast<Context*>(context));
  return begin("cuCtxPushCurrent");
}
int cuCtxPopCurrent_v2(void** context) {
  const Lock lock(mutex);
  *context = current.back();
  current.pop_back();
  return begin("cuCtxPopCurrent");
}
int cuStreamCreate(void** stream, unsigned) {
  const Lock lock(mutex);
  if (int error = begin("cuStreamCreate")) return error;
  if (current.empty() || current.back() == nullptr) return invalid_context;
  streams.push_back(new Stream{current.back(), {}});
  *stream = streams.back();
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  const Lock lock(mutex);
  if (int error = begin("cuEventCreate")) return error;
  if (current.empty() || current.back() == nullptr) return invalid_context;
  *event = new Event{current.back()};
  ++calls["events alive"];
  return 0;
}
int cuEventDestroy_v2(void*) {  // not freed: the driver too keeps it until the device is past it
  const Lock lock(mutex);
  --calls["events alive"];
  return begin("cuEventDestroy");
}
int cuEventRecord(void* handle, void* stream) {
  const Lock lock(mutex);
  auto* event = static_cast<Event*>(handle);
  if (int error = in_context(event->context)) return error;
  const int version = ++event->recorded;
  return enqueue("cuEventRecord", stream, [event, version] {
    event->reached = version;
    return true;
  });
}
int cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  const Lock lock(mutex);
  auto* event = static_cast<Event*>(handle);
  const int version = event->recorded;
  return enqueue("cuStreamWaitEvent", stream, [event, version] { return event->reached >= version; });
}
int cuEventQuery(void* handle) {
  const Lock lock(mutex);
  if (int error = begin("cuEventQuery")) return error;
  time_passes();
  auto* event = static_cast<Event*>(handle);
  return event->reached >= event->recorded ? 0 : not_ready;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uintptr_t from, std::size_t bytes, void* stream) {
  const Lock lock(mutex);
  char* source = shadow_of(from, bytes);
  if (source == nullptr || !is_pinned(to, bytes)) return invalid_value;
  return enqueue("cuMemcpyDtoH", stream, [=] {
    std::memcpy(to, source, bytes);
    return true;
  });
}
int cuMemcpyHtoDAsync_v2(std::uintptr_t to, const void* from, std::size_t bytes, void* stream) {
  const Lock lock(mutex);
  char* target = shadow_of(to, bytes);
  if (target == nullptr || !is_pinned(from, bytes)) return invalid_value;
  return enqueue("cuMemcpyHtoD", stream, [=] {
    std::memcpy(target, from, bytes);
    return true;
  });
}
int cuMemcpyDtoDAsync_v2(std::uintptr_t, std::uintptr_t, std::size_t, void*) { return invalid_value; }
int cuMemsetD8Async(std::uintptr_t, unsigned char, std::size_t, void*) { return invalid_value; }
int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  const Lock lock(mutex);
  if (int error = begin("cuMemHostAlloc")) return error;
  if (current.empty() || current.back() == nullptr) return invalid_context;
  auto* memory = new char[bytes];
  pinned[memory] = bytes;
  *pointer = memory;
  return 0;
}
int cuMemFreeHost(void* pointer) {
  const Lock lock(mutex);
  pinned.erase(static_cast<char*>(pointer));
  delete[] static_cast<char*>(pointer);
  return begin("cuMemFreeHost");
}
int cuPointerGetAttribute(void* result, int, std::uintptr_t address) {
  const Lock lock(mutex);
  for (auto& [base, memory] : device_memory) {
    auto start = reinterpret_cast<std::uintptr_t>(base);
    if (address >= start && address < start + memory.size) {
      *static_cast<int*>(result) = memory.device;
      return begin("cuPointerGetAttribute");
    }
  }
  return invalid_value;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_STANDIN";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == out_of_memory ? "out of memory" : "a rule was broken";
  return 0;
}

// ------------------------------------------------------------------------------------------------ for the test

void* standin_allocate(std::size_t bytes, int device) {
  const Lock lock(mutex);
  const int file = memfd_create("device", 0);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return nullptr;
  auto* address = static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0));
  auto* shadow = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  device_memory[address] = Memory{bytes, shadow, device};
  return address;
}
void* standin_shadow(void* address) {
  const Lock lock(mutex);
  return device_memory[static_cast<char*>(address)].shadow;
}
void* standin_stream(int device) {
  const Lock lock(mutex);
  streams.push_back(new Stream{&contexts[device], {}});
  return streams.back();
}
// A kernel that takes `queries` of time (none and more: for as long as the gate is closed) and then writes.
void standin_kernel(void* stream, void* address, const void* data, std::size_t bytes, int queries) {
  const Lock lock(mutex);
  char* target = device_memory[static_cast<char*>(address)].shadow;
  std::string copy(static_cast<const char*>(data), bytes);
  static_cast<Stream*>(stream)->tasks.push_back([=]() mutable {
    if (queries < 0 ? !gate : queries-- > 0) return false;
    std::memcpy(target, copy.data(), bytes);
    return true;
  });
}
void standin_open_gate() {
  const Lock lock(mutex);
  gate = true;
}
// What a producer does in __dlpack__: `stream` waits for what it has enqueued on `own`.
void standin_order(void* own, void* stream) {
  const Lock lock(mutex);
  auto* event = new Event{nullptr, 1, 0};
  static_cast<Stream*>(own)->tasks.push_back([event] { return event->reached = 1, true; });
  static_cast<Stream*>(stream)->tasks.push_back([event] { return event->reached == 1; });
}
int standin_calls(const char* name) {
  const Lock lock(mutex);
  return calls[name];
}
void standin_fail(const char* name) {
  const Lock lock(mutex);
  failing = name;
}
void* standin_current() { return current.empty() ? nullptr : current.back(); }
}
