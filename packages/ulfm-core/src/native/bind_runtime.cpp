#include "bindings.hpp"
#include "runtime.hpp"

namespace py = pybind11;

namespace ulfm {

void register_runtime(py::module_& module) {
  module.def("library_version", &library_version);
  module.def("initialized", &initialized);
  module.def("finalized", &finalized);
  module.def("thread_multiple", &thread_multiple);
  module.def("cuda_aware", &cuda_aware);
  module.def("leave", &leave, py::arg("code"), py::arg("finalize"), py::arg("seconds"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace ulfm
