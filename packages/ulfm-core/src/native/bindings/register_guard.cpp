#include <pybind11/stl.h>

#include "register.hpp"
#include "guard.hpp"

namespace py = pybind11;

namespace ulfm {

void register_guard(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Guard>(module, "Guard")
      .def("watch", &Guard::watch, py::arg("ranks"), Release())
      .def("set_step_limit", &Guard::set_step_limit, py::arg("seconds"), Release())
      .def("beat", &Guard::beat, py::arg("where"), Release())
      .def(
          "publish",
          [](Guard& self, const py::buffer& page) {
            // Never freed before the process ends: the guard writes there.
            auto* held = new py::buffer_info(page.request(true));
            if (static_cast<std::size_t>(held->size * held->itemsize) < sizeof(Pulse)) {
              throw py::value_error("the page is too small for a pulse");
            }
            self.publish(static_cast<Pulse*>(held->ptr));
          },
          py::arg("page"))
      .def("set_last_words", &Guard::set_last_words, py::arg("file"), py::arg("line"), Release())
      .def("begin_wait", &Guard::begin_wait, Release())
      .def("end_wait", &Guard::end_wait, Release());
}

}  // namespace ulfm
