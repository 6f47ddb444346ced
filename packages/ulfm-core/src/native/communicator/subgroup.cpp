#include "subgroup.hpp"

#include <algorithm>

namespace ulfm {
namespace {

// Equal on all members without a message. Two subgroups with one tag space do no harm: what two ranks exchange is in the
// same order on both.
int tag_space_of(const std::vector<int>& ranks) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<std::uint32_t>(rank)) * 16777619U;
  return 1 + static_cast<int>(hash % (Ring::tag_spaces - 1));
}

int index_in(const std::vector<int>& ranks, int rank) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank);
  return place == ranks.end() ? -1 : static_cast<int>(place - ranks.begin());
}

}  // namespace

Subgroup::Subgroup(std::vector<int> ranks) : ranks_(std::move(ranks)), tag_space_(tag_space_of(ranks_)) {}

std::vector<int> Subgroup::living(const std::vector<int>& members) const {
  std::vector<int> alive;
  for (const int rank : ranks_) {
    if (index_in(members, rank) >= 0) alive.push_back(rank);
  }
  return alive;
}

Ring& Subgroup::ring(MPI_Comm world, const std::vector<int>& members, std::int64_t epoch, int rank) {
  if (epoch != epoch_) {
    const std::vector<int> alive = living(members);
    ring_ = Ring{};
    ring_.comm = world;
    ring_.rank = index_in(alive, rank);
    ring_.size = static_cast<int>(alive.size());
    ring_.tag_space = tag_space_;
    for (const int other : alive) ring_.peers.push_back(index_in(members, other));
    epoch_ = epoch;
  }
  return ring_;
}

}  // namespace ulfm
