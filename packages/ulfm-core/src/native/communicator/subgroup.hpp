// Some of the job's ranks that reduce among themselves, inside the world's communicator.
//
// Not a communicator of its own: creating one is collective, would have to be undone and redone at every repair, and
// ULFM deadlocks when overlapping communicators are revoked and shrunk in different orders. The messages travel in the
// world's communicator under tags of the subgroup's own, so a repaired world is all a subgroup needs to go on with
// those of its ranks that live.
#pragma once

#include <cstdint>
#include <vector>

#include "collective.hpp"

namespace ulfm {

class Subgroup {
 public:
  // Initial ranks, in the order of their indices in the subgroup.
  explicit Subgroup(std::vector<int> ranks);

  const std::vector<int>& ranks() const noexcept { return ranks_; }
  // Those of them among `members`, in order.
  std::vector<int> living(const std::vector<int>& members) const;

  // For the communication thread: the ring over those that live, `rank` being this process. Its sequence starts anew
  // with every epoch, since a failure leaves the ranks at different places in it.
  Ring& ring(MPI_Comm world, const std::vector<int>& members, std::int64_t epoch, int rank);

 private:
  const std::vector<int> ranks_;
  const int tag_space_;
  Ring ring_;
  std::int64_t epoch_ = -1;
};

}  // namespace ulfm
