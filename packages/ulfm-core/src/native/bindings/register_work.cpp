#include "register.hpp"
#include "work.hpp"

namespace py = pybind11;

namespace ulfm {
namespace {

constexpr double signal_poll_seconds = 0.1;

}  // namespace

void register_work(py::module_& module) {
  py::enum_<Outcome>(module, "Outcome")
      .value("PENDING", Outcome::pending)
      .value("OK", Outcome::ok)
      .value("FAILED", Outcome::failed)
      .value("QUIESCED", Outcome::quiesced);

  py::class_<Work, std::shared_ptr<Work>>(module, "Work")
      .def_property_readonly("name", &Work::name)
      .def("done", &Work::done)
      // Comes back to Python now and then, so that its signal handlers run (Ctrl-C, a scheduler's warning).
      .def("wait",
           [](Work& self) {
             for (bool ended = false; !ended;) {
               {
                 const py::gil_scoped_release release;
                 ended = self.wait_for(signal_poll_seconds);
               }
               if (!ended && PyErr_CheckSignals() != 0) throw py::error_already_set();
             }
             self.release();
             return self.outcome();
           })
      .def("wait_for", &Work::wait_for, py::arg("seconds"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("outcome", &Work::outcome)
      .def_property_readonly("error_class", &Work::error_class)
      .def_property_readonly("message", &Work::message)
      .def_property_readonly("fatal", &Work::fatal)
      .def_property_readonly("seconds", &Work::seconds)
      .def("when_done", [](const std::shared_ptr<Work>& self, py::function then) {
        // The function is released on whichever thread drops it last: with the GIL.
        const std::shared_ptr<py::function> held(new py::function(std::move(then)), [](py::function* function) {
          const py::gil_scoped_acquire gil;
          delete function;
        });
        const py::gil_scoped_release release;
        self->when_done([held] {
          const py::gil_scoped_acquire gil;
          try {
            (*held)();
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("ulfm_core Work.when_done");
          }
        });
      });
}

}  // namespace ulfm
