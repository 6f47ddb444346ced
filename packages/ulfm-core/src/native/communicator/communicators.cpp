#include "communicators.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "fault.hpp"

namespace ulfm {
namespace {

constexpr int most_shrink_attempts = 100;

// The ranks in `to` of everyone in `from`.
std::vector<int> translated(MPI_Group from, MPI_Group to) {
  int count = 0;
  MPI_Group_size(from, &count);
  std::vector<int> theirs(static_cast<std::size_t>(count));
  std::vector<int> ours(static_cast<std::size_t>(count));
  std::iota(theirs.begin(), theirs.end(), 0);
  MPI_Group_translate_ranks(from, count, theirs.data(), to, ours.data());
  return ours;
}

}  // namespace

void return_errors(MPI_Comm comm) { check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "set error handler"); }

Ring ring_of(MPI_Comm comm) {
  Ring ring;
  ring.comm = comm;
  check(MPI_Comm_rank(comm, &ring.rank), "rank");
  check(MPI_Comm_size(comm, &ring.size), "size");
  return ring;
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm made = MPI_COMM_NULL;
  check(MPI_Comm_dup(comm, &made), "duplicate the world");
  return_errors(made);
  return made;
}

MPI_Comm shrink(MPI_Comm comm) {
  for (int attempt = 0;; ++attempt) {
    MPI_Comm next = MPI_COMM_NULL;
    const int code = MPIX_Comm_shrink(comm, &next);
    if (code == MPI_SUCCESS) {
      return_errors(next);
      return next;
    }
    if (attempt == most_shrink_attempts || !is_fault(error_class_of(code))) check(code, "shrink");
  }
}

void revoke(const Communicators& made) noexcept {
  for (MPI_Comm comm : {made.world, made.group, made.application_world, made.application_group}) {
    if (comm != MPI_COMM_NULL) MPIX_Comm_revoke(comm);
  }
}

Job::Job(MPI_Comm initial, Seats seats, bool for_application)
    : initial_(initial), seats_(std::move(seats)), for_application_(for_application) {
  return_errors(initial_);
  check(MPI_Comm_rank(initial_, &rank_), "rank");
  check(MPI_Comm_size(initial_, &size_), "size");
  if (seats_.count() != size_) {
    throw std::invalid_argument(std::to_string(seats_.count()) + " seats do not fit the " + std::to_string(size_) +
                                " ranks of this job");
  }
}

MPI_Comm Job::by_position(MPI_Comm whole) const {
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_split(whole, seat().position, seat().replica, &group), "split by position");
  return_errors(group);
  return group;
}

Communicators Job::made_from(MPI_Comm whole) const {
  const bool one_position = seats_.replica_size() == 1;
  Communicators made;
  made.world = whole;
  made.group = one_position ? whole : by_position(whole);
  if (for_application_) {
    made.application_world = duplicate(whole);
    made.application_group = one_position ? made.application_world : by_position(whole);
  }
  return made;
}

std::vector<int> Job::initial_ranks_of(MPI_Comm comm) const {
  MPI_Group mine = MPI_GROUP_NULL;
  MPI_Group everyone = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &mine), "group");
  check(MPI_Comm_group(initial_, &everyone), "group");
  std::vector<int> ranks = translated(mine, everyone);
  MPI_Group_free(&mine);
  MPI_Group_free(&everyone);
  return ranks;
}

std::vector<int> Job::known_failed() const {
  MPI_Group failed = MPI_GROUP_NULL;
  MPI_Group everyone = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(initial_, &failed) != MPI_SUCCESS) return {};
  MPI_Comm_group(initial_, &everyone);
  std::vector<int> ranks = translated(failed, everyone);
  MPI_Group_free(&failed);
  MPI_Group_free(&everyone);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace ulfm
