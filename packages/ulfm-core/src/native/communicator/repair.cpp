#include "repair.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "agreement.hpp"
#include "engine.hpp"
#include "requests.hpp"

namespace ulfm {
namespace {

constexpr double seconds_to_leave = 5.0;  // for a condemned rank's last words; the others wait for it
// A rank that waits for all others in a repair has this many times the patience of one that does not, so that of those
// who are stuck together only the one ends that the others wait for.
constexpr double patience = 2.0;

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Every rank's record, one row after the other.
std::vector<std::int64_t> exchanged(MPI_Comm comm, const std::vector<std::int64_t>& record) {
  Ring ring = ring_of(comm);
  std::vector<std::int64_t> table(record.size() * static_cast<std::size_t>(ring.size), 0);
  const std::size_t row = static_cast<std::size_t>(ring.rank) * record.size();
  std::copy(record.begin(), record.end(), table.begin() + static_cast<std::ptrdiff_t>(row));
  all_reduce(ring, Op::sum, DType::i64, table.data(), table.data(), table.size());
  return table;
}

}  // namespace

Repairer::Repairer(const Job& job, Guard& guard, double limit, const OnPhase& on_phase)
    : job_(job), guard_(guard), limit_(limit), on_phase_(on_phase) {}

Communicators Repairer::repair(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result) {
  Communicators made;
  made.world = broken;
  result->record_size = record.size();
  for (bool repaired = false; !repaired;) {
    ++result->rounds;
    repaired = attempt(made.world, record, result, &made);
  }
  if (result->condemned) {
    guard_.end_within(seconds_to_leave, "its replica has lost a rank: the replica is lost as a whole");
  }
  return made;
}

void Repairer::phase(const char* name, int round) {
  bound(name, limit_);
  if (on_phase_) on_phase_(name, round);
  // Splits aside: who is stuck in one, while others have come through, is the one to end.
  const bool waits = std::strcmp(name, "split") != 0;
  bound(name, waits ? patience * limit_ : limit_);
}

void Repairer::bound(const char* name, double seconds) {
  guard_.begin_operation(std::string("repair: ") + name, seconds);
}

// One round: shrink, fence, split, record, and one agreement that closes it. False when it takes another one, because
// somebody died meanwhile or is about to leave; `made->world` is then the communicator to go on from. Every return is
// the same on all survivors, because it follows an agreement.
bool Repairer::attempt(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result,
                       Communicators* made) {
  const int round = result->rounds;
  Stopwatch watch;
  phase("revoke", round);
  MPIX_Comm_revoke(broken);
  phase("shrink", round);
  const MPI_Comm survivors = shrink(broken);
  *made = Communicators{};
  made->world = survivors;
  phase("fence", round);
  bool flag = true;
  // The fence: nobody revokes `survivors` before all have it.
  const bool fenced = agree_on(survivors, &flag, "fence");
  const std::vector<int> alive = job_.initial_ranks_of(survivors);
  const std::vector<int> members = job_.seats().unbroken(alive);
  if (fenced && members.size() != alive.size()) {
    result->condemned = !std::binary_search(members.begin(), members.end(), job_.rank());
    result->members = members;
    if (!result->condemned) await_death_of(alive, members);
  }
  result->repair_seconds += watch.lap();
  if (!fenced || members.size() != alive.size()) return result->condemned;

  bool complete = true;
  // Whoever sees a failure here wakes the others by revoking what everyone is known to have, and never a communicator
  // that some are still creating.
  try {
    phase("split", round);
    *made = job_.made_from(survivors);
    result->repair_seconds += watch.lap();
    phase("record", round);
    result->records = exchanged(survivors, record);
  } catch (const Fault&) {
    complete = false;
    MPIX_Comm_revoke(survivors);
  } catch (const MpiError&) {
    MPIX_Comm_revoke(survivors);  // this rank is about to leave: the others go round without it
    throw;
  }
  bound("close", patience * limit_);
  flag = complete;
  const bool all_alive = agree_on(survivors, &flag, "close the repair");
  result->record_seconds += watch.lap();
  if (!all_alive || !flag) return false;

  result->members = members;
  return true;
}

// The rest of a replica that lost a rank leaves as soon as it knows, and the next round starts when it has: a
// communicator with those in it who leave is no place to split or to exchange records.
void Repairer::await_death_of(const std::vector<int>& alive, const std::vector<int>& members) const {
  std::vector<int> leaving;
  std::set_difference(alive.begin(), alive.end(), members.begin(), members.end(), std::back_inserter(leaving));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_ / 2);
  Pause pause;
  while (std::chrono::steady_clock::now() < until) {
    const std::vector<int> dead = job_.known_failed();
    if (std::includes(dead.begin(), dead.end(), leaving.begin(), leaving.end())) return;
    drive_progress();
    pause();
  }
}

}  // namespace ulfm
