#include "register.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The native part of ulfm_core: see ulfm_core.world for what to use.";
  ulfm::register_work(module);
  ulfm::register_guard(module);
  ulfm::register_world(module);
  ulfm::register_runtime(module);
}
