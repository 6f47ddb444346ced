// Who sits where: the replica, and the position inside it, of every initial rank.
#pragma once

#include <cstdint>
#include <vector>

namespace ulfm {

struct Seat {
  int replica = 0;
  int position = 0;
};

// Given from outside and never computed from a rank.
class Seats {
 public:
  // `of_rank[r]` is the seat of rank r. Throws std::invalid_argument if replicas differ in size.
  explicit Seats(std::vector<Seat> of_rank);

  int count() const noexcept { return static_cast<int>(of_rank_.size()); }
  const Seat& of(int rank) const { return of_rank_.at(static_cast<std::size_t>(rank)); }
  int replica_size() const noexcept { return replica_size_; }
  // Those of the ranks, which are in order, whose replicas are among them as a whole.
  std::vector<int> unbroken(const std::vector<int>& alive) const;
  // Tells two of them apart, but for chance.
  std::int64_t digest() const noexcept;

 private:
  const std::vector<Seat> of_rank_;
  int replica_size_ = 0;
};

}  // namespace ulfm
