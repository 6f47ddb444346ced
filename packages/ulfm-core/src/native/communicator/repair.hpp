// Repair and record: from a world in which somebody died to one of whole replicas, with a table of what each has done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "communicators.hpp"
#include "guard.hpp"

namespace ulfm {

// What a repair left every survivor with. Everything but the timings is equal on all of them.
struct Repair {
  std::int64_t epoch = 0;
  std::vector<int> members;             // initial ranks of the survivors, in order
  std::vector<std::int64_t> records;    // members.size() rows of record_size
  std::size_t record_size = 0;
  bool condemned = false;               // this process belongs to a replica that lost a rank: it must leave now
  int rounds = 0;                       // 1, or more when ranks died during the repair
  double repair_seconds = 0.0;          // revoke, shrink, fence, split
  double record_seconds = 0.0;
};

// At the start of each phase ("revoke", "shrink", "fence", "split", "record"), with the round.
using OnPhase = std::function<void(const std::string&, int)>;

// For the communication thread: goes round until nobody dies meanwhile.
class Repairer {
 public:
  // `limit` in seconds bounds each phase, which depends on nobody's computing.
  Repairer(const Job& job, Guard& guard, double limit, const OnPhase& on_phase);

  // Collective over the survivors of `broken`. Fills in everything but the epoch. What it returns is not to be used
  // when this rank is condemned: the guard then ends it, in case it does not leave by itself.
  Communicators repair(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result);

 private:
  bool attempt(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result, Communicators* made);
  void await_death_of(const std::vector<int>& alive, const std::vector<int>& members) const;
  void phase(const char* name, int round);
  void bound(const char* name, double seconds);

  const Job& job_;
  Guard& guard_;
  const double limit_;
  const OnPhase& on_phase_;
};

}  // namespace ulfm
