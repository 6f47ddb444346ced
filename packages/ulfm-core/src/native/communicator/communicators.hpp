// The communicators of a world, and what MPI says of those who are in one.
#pragma once

#include <vector>

#include "collective.hpp"
#include "mpi_ulfm.hpp"
#include "seats.hpp"

namespace ulfm {

// All made from the first, and remade together by every repair.
struct Communicators {
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm group = MPI_COMM_NULL;  // this rank's position in all living replicas
  // The application's own, where it has asked for some.
  MPI_Comm application_world = MPI_COMM_NULL;
  MPI_Comm application_group = MPI_COMM_NULL;
};

// A rank of the job, by the communicator that the job began with. That one is never freed: failures are looked up in it.
class Job {
 public:
  Job(MPI_Comm initial, Seats seats, bool for_application);

  MPI_Comm initial() const noexcept { return initial_; }
  const Seats& seats() const noexcept { return seats_; }
  bool for_application() const noexcept { return for_application_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const Seat& seat() const { return seats_.of(rank_); }

  // Collective over `whole`. Splits of it and of nothing else: a rank that sees a failure in one wakes the others by
  // revoking `whole`.
  Communicators made_from(MPI_Comm whole) const;
  std::vector<int> initial_ranks_of(MPI_Comm comm) const;
  std::vector<int> known_failed() const;  // local knowledge: differs between ranks until something agrees it

 private:
  MPI_Comm by_position(MPI_Comm whole) const;

  const MPI_Comm initial_;
  const Seats seats_;
  const bool for_application_;
  int rank_ = 0;
  int size_ = 0;
};

// Must be set on every new communicator: MPI would end the process on an error otherwise.
void return_errors(MPI_Comm comm);
Ring ring_of(MPI_Comm comm);
// A duplicate, or the survivors. Both are collective.
MPI_Comm duplicate(MPI_Comm comm);
MPI_Comm shrink(MPI_Comm comm);
// Wakes whoever waits in one of them for a rank that has seen a failure.
void revoke(const Communicators& made) noexcept;

}  // namespace ulfm
