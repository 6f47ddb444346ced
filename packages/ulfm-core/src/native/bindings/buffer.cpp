#include "buffer.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace py = pybind11;

namespace ulfm {
namespace {

// The stable part of the DLPack ABI (dmlc/dlpack, version 0.x capsules named "dltensor").
struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
enum DLDeviceType { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
enum DLTypeCode { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

[[noreturn]] void refuse(const char* role, const std::string& why) {
  throw py::type_error(std::string(role) + ": " + why);
}

// Releases what Python owns from any thread.
std::shared_ptr<void> released_under_gil(void* thing, void (*release)(void*)) {
  return {thing, [release](void* held) {
            const py::gil_scoped_acquire gil;
            release(held);
          }};
}

std::optional<DType> dtype_of(char kind, std::size_t width) {
  switch (kind) {
    case 'f':
      if (width == 8) return DType::f64;
      if (width == 4) return DType::f32;
      if (width == 2) return DType::f16;
      break;
    case 'i':
      if (width == 8) return DType::i64;
      if (width == 4) return DType::i32;
      if (width == 2) return DType::i16;
      if (width == 1) return DType::i8;
      break;
    case 'u':
    case 'b':
      if (width == 1) return DType::u8;
      break;
    default:
      break;
  }
  return std::nullopt;
}

DType dtype_of_format(const char* role, const char* format, std::size_t width) {
  std::string code = format == nullptr ? "B" : format;
  if (!code.empty() && (code[0] == '@' || code[0] == '=' || code[0] == '<')) code.erase(0, 1);
  char kind = '?';
  if (code == "d" || code == "f" || code == "e") kind = 'f';
  if (code == "b" || code == "h" || code == "i" || code == "l" || code == "q") kind = 'i';
  if (code == "B" || code == "?") kind = 'u';
  const auto dtype = dtype_of(kind, width);
  if (!dtype) refuse(role, "elements of format '" + code + "' cannot be reduced; use float64/32/16, bfloat16, int64/32/16/8 or uint8");
  return *dtype;
}

Buffer from_buffer_protocol(const py::object& object, const char* role, bool writable) {
  auto view = std::make_unique<Py_buffer>();
  const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) {
    PyErr_Clear();
    throw py::value_error(std::string(role) + ": not a C-contiguous" + (writable ? ", writable" : "") + " buffer");
  }
  Buffer buffer;
  buffer.data = view->buf;
  const auto width = static_cast<std::size_t>(view->itemsize);
  buffer.count = width == 0 ? 0 : static_cast<std::size_t>(view->len) / width;
  const std::string format = view->format == nullptr ? "B" : view->format;
  buffer.owner = released_under_gil(view.release(), [](void* held) {
    auto* owned = static_cast<Py_buffer*>(held);
    PyBuffer_Release(owned);
    delete owned;
  });
  buffer.dtype = dtype_of_format(role, format.c_str(), width);
  return buffer;
}

bool contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return true;
}

Buffer from_dlpack(const py::object& object, const char* role) {
  const auto place = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  Device* device = place.first == kDLCUDA || place.first == kDLCUDAManaged ? &Device::at(place.second) : nullptr;
  // With a stream, the producer makes that stream wait for what it has enqueued.
  const py::capsule capsule = device == nullptr ? object.attr("__dlpack__")()
                                                : object.attr("__dlpack__")(py::arg("stream") = device->arrivals());
  if (std::string(capsule.name() == nullptr ? "" : capsule.name()) != "dltensor") {
    refuse(role, "its __dlpack__() returned no fresh 'dltensor' capsule");
  }
  auto* managed = capsule.get_pointer<DLManagedTensor>();
  const DLTensor& tensor = managed->dl_tensor;
  if (!contiguous(tensor)) throw py::value_error(std::string(role) + ": not contiguous; pass .contiguous()");
  std::optional<DType> dtype;
  const std::size_t width = tensor.dtype.bits / 8U;
  if (tensor.dtype.lanes == 1) {
    if (tensor.dtype.code == kDLFloat) dtype = dtype_of('f', width);
    if (tensor.dtype.code == kDLInt) dtype = dtype_of('i', width);
    if (tensor.dtype.code == kDLUInt || tensor.dtype.code == kDLBool) dtype = dtype_of('u', width);
    if (tensor.dtype.code == kDLBfloat && width == 2) dtype = DType::bf16;
  }
  if (!dtype) refuse(role, "this element type cannot be reduced; use float64/32/16, bfloat16, int64/32/16/8 or uint8");
  if (device == nullptr && place.first != kDLCPU && place.first != kDLCUDAHost) {
    refuse(role, "memory of DLPack device type " + std::to_string(place.first) + " is neither host nor CUDA memory");
  }
  Buffer buffer;
  buffer.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  buffer.count = 1;
  for (std::int32_t axis = 0; axis < tensor.ndim; ++axis) buffer.count *= static_cast<std::size_t>(tensor.shape[axis]);
  buffer.dtype = *dtype;
  buffer.device = device;
  if (device != nullptr) buffer.ready = device->mark();
  // The capsule is ours now: by the protocol it is renamed, and its tensor freed by us.
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  buffer.owner = released_under_gil(managed, [](void* held) {
    auto* owned = static_cast<DLManagedTensor*>(held);
    if (owned->deleter != nullptr) owned->deleter(owned);
  });
  return buffer;
}

Buffer from_cuda_array_interface(const py::object& object, const py::dict& interface, const char* role, bool writable) {
  const py::tuple data = interface["data"];
  if (writable && data[1].cast<bool>()) refuse(role, "read-only CUDA memory");
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    throw py::value_error(std::string(role) + ": not contiguous; pass a contiguous array");
  }
  const auto type = interface["typestr"].cast<std::string>();
  const auto dtype = type.size() < 3 ? std::nullopt : dtype_of(type[1], std::stoul(type.substr(2)));
  if (!dtype) refuse(role, "elements of type '" + type + "' cannot be reduced");
  Buffer buffer;
  buffer.data = reinterpret_cast<void*>(data[0].cast<std::uintptr_t>());
  buffer.count = 1;
  for (const auto extent : interface["shape"].cast<py::tuple>()) buffer.count *= extent.cast<std::size_t>();
  buffer.dtype = *dtype;
  buffer.device = &Device::of(buffer.data);
  if (interface.contains("stream") && !interface["stream"].is_none()) {
    buffer.device->follow(interface["stream"].cast<std::uintptr_t>());
  }
  buffer.ready = buffer.device->mark();
  buffer.owner = released_under_gil(py::object(object).release().ptr(),
                                    [](void* held) { Py_DECREF(static_cast<PyObject*>(held)); });
  return buffer;
}

}  // namespace

Buffer buffer_of(const py::object& object, const char* role, bool writable) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return from_buffer_protocol(object, role, writable);
  if (py::hasattr(object, "__dlpack__")) return from_dlpack(object, role);
  if (py::hasattr(object, "__cuda_array_interface__")) {
    return from_cuda_array_interface(object, object.attr("__cuda_array_interface__"), role, writable);
  }
  refuse(role, std::string("'") + Py_TYPE(object.ptr())->tp_name +
                   "' offers neither the buffer protocol nor __dlpack__ nor __cuda_array_interface__");
}

}  // namespace ulfm
