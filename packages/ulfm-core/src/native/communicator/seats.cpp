#include "seats.hpp"

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace ulfm {

Seats::Seats(std::vector<Seat> of_rank) : of_rank_(std::move(of_rank)) {
  std::map<int, int> size;
  for (const Seat& seat : of_rank_) ++size[seat.replica];
  for (const auto& [replica, ranks] : size) {
    if (replica_size_ == 0) replica_size_ = ranks;
    if (ranks != replica_size_) {
      throw std::invalid_argument("replica " + std::to_string(replica) + " has " + std::to_string(ranks) +
                                  " ranks and others have " + std::to_string(replica_size_) + ": give all as many");
    }
  }
}

std::vector<int> Seats::unbroken(const std::vector<int>& alive) const {
  std::map<int, int> living;
  for (const int rank : alive) ++living[of(rank).replica];
  std::vector<int> kept;
  for (const int rank : alive) {
    if (living[of(rank).replica] == replica_size_) kept.push_back(rank);
  }
  return kept;
}

std::int64_t Seats::digest() const noexcept {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const Seat& seat : of_rank_) {
    hash = (hash ^ static_cast<std::uint32_t>(seat.replica)) * 16777619U;
    hash = (hash ^ static_cast<std::uint32_t>(seat.position)) * 16777619U;
  }
  return hash;
}

}  // namespace ulfm
