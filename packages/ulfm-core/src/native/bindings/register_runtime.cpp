#include "register.hpp"
#include "device.hpp"
#include "runtime.hpp"

namespace py = pybind11;

namespace ulfm {

void register_runtime(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const DeviceError& device_error) {
      py::set_error(py::module_::import("ulfm_core.errors").attr("UlfmError"), device_error.what());
    }
  });
  py::enum_<Transport>(module, "Transport")
      .value("NONE", Transport::none)
      .value("MPI", Transport::mpi)
      .value("STAGING", Transport::staging);
  module.def("device_transport", &device_transport, py::call_guard<py::gil_scoped_release>());
  module.def("library_version", &library_version);
  module.def("initialized", &initialized);
  module.def("finalized", &finalized);
  module.def("thread_multiple", &thread_multiple);
  module.def("cuda_aware", &cuda_aware);
  module.def("finalize", &finalize, py::arg("code"), py::arg("seconds"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace ulfm
