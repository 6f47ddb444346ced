// One register_* per concept; module.cpp calls them.
#pragma once

#include <pybind11/pybind11.h>

namespace ulfm {

void register_work(pybind11::module_& module);
void register_world(pybind11::module_& module);
void register_guard(pybind11::module_& module);
void register_runtime(pybind11::module_& module);

}  // namespace ulfm
