#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "register.hpp"
#include "buffer.hpp"
#include "device_collective.hpp"
#include "world.hpp"

namespace py = pybind11;

namespace ulfm {
namespace {

using Among = std::shared_ptr<Subgroup>;

std::optional<std::uintptr_t> handle_of(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) return std::nullopt;
  return reinterpret_cast<std::uintptr_t>(comm);
}

// (replica, position) of every rank, in the order of the ranks.
Seats seats_of(const std::vector<std::pair<int, int>>& pairs) {
  std::vector<Seat> seats;
  for (const auto& [replica, position] : pairs) seats.push_back(Seat{replica, position});
  return Seats(std::move(seats));
}

// Ending a world waits for its threads, which may need Python's lock to end.
struct DeletedWithoutGil {
  void operator()(World* world) const {
    const py::gil_scoped_release release;
    delete world;
  }
};

void require_same_shape(const Buffer& in, const Buffer& out, std::size_t times) {
  if (in.dtype == out.dtype && in.count * times == out.count && (in.device == nullptr) == (out.device == nullptr)) return;
  throw py::value_error("source has " + std::to_string(in.count) + " elements of " + name_of(in.dtype) +
                        ", destination " + std::to_string(out.count) + " of " + name_of(out.dtype) + ", expected " +
                        std::to_string(in.count * times) + " of the same type in the same kind of memory");
}

int index_in(const World& world, const Among& among) {
  if (among == nullptr) return world.group_rank();
  const std::vector<int> alive = among->living(world.members());
  return static_cast<int>(std::find(alive.begin(), alive.end(), world.rank()) - alive.begin());
}

std::size_t size_of(const World& world, const Among& among) {
  return among == nullptr ? static_cast<std::size_t>(world.group_size()) : among->living(world.members()).size();
}

// Buffers of an operation. Its task only looks at them: they may need Python's lock to be let go of, which the
// communication thread had better not wait for.
struct Pair {
  Buffer in;
  Buffer out;
};

void require_apart(const Buffer& in, const Buffer& out) {
  const auto* source = static_cast<const char*>(in.data);
  const auto* destination = static_cast<const char*>(out.data);
  if (in.data == out.data && in.count == out.count) return;  // in place
  if (source < destination + out.bytes() && destination < source + in.bytes()) {
    throw py::value_error("source and destination overlap: pass the same buffer, or two that are apart");
  }
}

std::shared_ptr<Work> submit_all_reduce(World& world, const py::object& source, const py::object& destination, Op op,
                                        bool contribute, Among among) {
  if (!contribute && op != Op::sum) throw py::value_error("only a sum can be joined without contributing");
  const auto pair = std::make_shared<Pair>();
  const Buffer& out = pair->out = buffer_of(destination, "destination", true);
  const Buffer& in = pair->in = source.is(destination) ? out : buffer_of(source, "source", false);
  require_same_shape(in, out, 1);
  require_apart(in, out);
  const auto task = [&in, &out, op, contribute](Ring& ring) {
    if (out.device != nullptr) return all_reduce(ring, op, out.dtype, in.span(), out.span(), out.count, contribute);
    all_reduce(ring, op, out.dtype, contribute ? in.data : nullptr, out.data, out.count);
  };
  const py::gil_scoped_release release;
  return world.collective("all-reduce", std::move(among), task, pair);
}

std::shared_ptr<Work> submit_broadcast(World& world, const py::object& object, int root, Among among) {
  const auto kept = std::make_shared<Buffer>(buffer_of(object, "buffer", index_in(world, among) != root));
  const Buffer& buffer = *kept;
  const auto task = [&buffer, root](Ring& ring) {
    if (buffer.device != nullptr) return broadcast(ring, buffer.span(), buffer.bytes(), root);
    broadcast(ring, buffer.data, buffer.bytes(), root);
  };
  const py::gil_scoped_release release;
  return world.collective("broadcast", std::move(among), task, kept);
}

std::shared_ptr<Work> submit_all_gather(World& world, const py::object& source, const py::object& destination,
                                        Among among) {
  const auto pair = std::make_shared<Pair>();
  const Buffer& in = pair->in = buffer_of(source, "source", false);
  const Buffer& out = pair->out = buffer_of(destination, "destination", true);
  require_same_shape(in, out, size_of(world, among));
  require_apart(in, out);
  const auto task = [&in, &out](Ring& ring) {
    if (out.device != nullptr) return all_gather(ring, in.span(), out.span(), in.bytes());
    all_gather(ring, in.data, out.data, in.bytes());
  };
  const py::gil_scoped_release release;
  return world.collective("all-gather", std::move(among), task, pair);
}

}  // namespace

void register_world(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::enum_<Op>(module, "Op")
      .value("SUM", Op::sum)
      .value("MIN", Op::min)
      .value("MAX", Op::max)
      .value("PROD", Op::prod);
  py::enum_<Detection>(module, "Detection")
      .value("DEFERRED", Detection::deferred)
      .value("GUARDED", Detection::guarded);

  py::class_<Agreement, std::shared_ptr<Agreement>>(module, "Agreement")
      .def_readonly("all_alive", &Agreement::all_alive)
      .def_readonly("flag", &Agreement::flag)
      .def_readonly("all_leave", &Agreement::all_leave);

  py::class_<Repair, std::shared_ptr<Repair>>(module, "Repair")
      .def_readonly("epoch", &Repair::epoch)
      .def_readonly("members", &Repair::members)
      .def_readonly("condemned", &Repair::condemned)
      .def_readonly("rounds", &Repair::rounds)
      .def_readonly("repair_seconds", &Repair::repair_seconds)
      .def_readonly("record_seconds", &Repair::record_seconds)
      .def_property_readonly("records", [](const Repair& self) {
        py::list rows;
        for (std::size_t row = 0; row < self.members.size(); ++row) {
          py::list values;
          for (std::size_t i = 0; i < self.record_size && !self.records.empty(); ++i) {
            values.append(self.records[row * self.record_size + i]);
          }
          rows.append(py::tuple(values));
        }
        return rows;
      });

  py::class_<Subgroup, std::shared_ptr<Subgroup>>(module, "Subgroup")
      .def(py::init<std::vector<int>>(), py::arg("ranks"))
      .def_property_readonly("ranks", &Subgroup::ranks);

  py::class_<World, std::unique_ptr<World, DeletedWithoutGil>>(module, "World")
      .def(py::init([](std::uintptr_t handle, const std::vector<std::pair<int, int>>& seats, Detection detection,
                       double wait_limit, double recovery_limit, bool communicators, int guard_exit_code) {
             const py::gil_scoped_release release;
             return std::unique_ptr<World, DeletedWithoutGil>(
                 new World(reinterpret_cast<MPI_Comm>(handle), seats_of(seats), detection,
                           Limits{wait_limit, recovery_limit}, communicators, guard_exit_code));
           }),
           py::arg("handle"), py::kw_only(), py::arg("seats"), py::arg("detection"), py::arg("wait_limit"),
           py::arg("recovery_limit"), py::arg("communicators"), py::arg("guard_exit_code"))
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("initial_size", &World::initial_size)
      .def_property_readonly("epoch", &World::epoch)
      .def_property_readonly("members", &World::members)
      .def_property_readonly("group_rank", &World::group_rank)
      .def_property_readonly("group_size", &World::group_size)
      .def_property_readonly("quiesced", &World::quiesced)
      .def_property_readonly("detection", &World::detection)
      .def_property_readonly("guard", &World::guard, py::return_value_policy::reference_internal)
      .def_property_readonly("application_world", [](const World& self) { return handle_of(self.communicators().application_world); })
      .def_property_readonly("application_group", [](const World& self) { return handle_of(self.communicators().application_group); })
      .def("known_failed", &World::known_failed, Release())
      .def("quiesce", &World::quiesce, Release())
      .def("all_reduce", &submit_all_reduce, py::arg("source"), py::arg("destination"), py::kw_only(), py::arg("op"),
           py::arg("contribute"), py::arg("among"))
      .def("broadcast", &submit_broadcast, py::arg("buffer"), py::kw_only(), py::arg("root"), py::arg("among"))
      .def("all_gather", &submit_all_gather, py::arg("source"), py::arg("destination"), py::kw_only(),
           py::arg("among"))
      .def(
          "barrier",
          [](World& self, Among among) {
            return self.collective("barrier", std::move(among), [](Ring& ring) { barrier(ring); }, nullptr);
          },
          py::kw_only(), py::arg("among"), Release())
      .def(
          "agree",
          [](World& self, bool flag, bool leaving) {
            auto result = std::make_shared<Agreement>();
            return std::make_pair(self.agree(flag, leaving, result), result);
          },
          py::arg("flag"), py::kw_only(), py::arg("leaving"), Release())
      .def(
          "repair",
          [](World& self, std::vector<std::int64_t> record) {
            auto result = std::make_shared<Repair>();
            return std::make_pair(self.repair(std::move(record), result), result);
          },
          py::arg("record"), Release())
      .def(
          "on_phase",
          [](World& self, py::object call) {
            if (call.is_none()) {
              self.on_phase = nullptr;
              return;
            }
            // Never freed before the process ends: the communication thread may be about to call it.
            auto* held = new py::object(std::move(call));
            self.on_phase = [held](const std::string& phase, int round) {
              const py::gil_scoped_acquire gil;
              try {
                (*held)(phase, round);
              } catch (py::error_already_set& error) {
                error.discard_as_unraisable("ulfm_core on_phase");
              }
            };
          },
          py::arg("call"))
      .def("stop", &World::stop, Release());
}

}  // namespace ulfm
