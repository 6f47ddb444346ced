#include "requests.hpp"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>

namespace ulfm {
namespace {

std::string mismatch(int expected, int received) {
  return "a peer sent " + std::to_string(received) + " bytes where " + std::to_string(expected) +
         " were expected; the ranks must call the same collectives in the same order, with equal sizes and types";
}

// Whether MPI knows already that this peer is gone. Local, and without any progress.
bool known_dead(MPI_Comm comm, int peer) {
  MPI_Group failed = MPI_GROUP_NULL;
  check(MPIX_Comm_get_failed(comm, &failed), "failures");
  int count = 0;
  MPI_Group_size(failed, &count);
  int found = MPI_UNDEFINED;
  if (count > 0) {
    MPI_Group everyone = MPI_GROUP_NULL;
    MPI_Comm_group(comm, &everyone);
    MPI_Group_translate_ranks(everyone, 1, &peer, failed, &found);
    MPI_Group_free(&everyone);
  }
  MPI_Group_free(&failed);
  return found != MPI_UNDEFINED;
}

}  // namespace

void Pause::operator()() {
  constexpr int yields = 16;
  constexpr int longest_nap_us = 100;
  ++polls_;
  if (polls_ <= yields) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(10 * (polls_ - yields), longest_nap_us)));
}

MPI_Status wait(MPI_Request& request, const char* operation) {
  Pause pause;
  for (;;) {
    int done = 0;
    MPI_Status status;
    status.MPI_ERROR = MPI_SUCCESS;
    const int code = MPI_Test(&request, &done, &status);
    check(code, operation);
    if (done != 0) return status;
    pause();
  }
}

std::function<void()> Transfers::before_draining;

Transfers::~Transfers() {
  const bool open = std::any_of(transfers_.begin(), transfers_.end(),
                                [](const Transfer& transfer) { return transfer.request != MPI_REQUEST_NULL; });
  if (!open) return;
  if (before_draining) before_draining();
  MPIX_Comm_revoke(comm_);
  for (auto& [request, incoming] : transfers_) {
    // After the revocation every request completes, with an error or without; the guard bounds this loop.
    try {
      while (request != MPI_REQUEST_NULL) wait(request, "drain");
    } catch (const std::exception&) {
      // An error also completes a request, except when only an unmatched wildcard is pending, which is not used here.
      request = MPI_REQUEST_NULL;
    }
  }
}

std::size_t Transfers::send(const void* data, std::size_t bytes, int peer, int tag) {
  // Open MPI 5.0.9 takes the transport away from a peer when a message to it has failed, even one that was sent long ago
  // and is complete for its sender, and crashes in the next MPI_Isend to it (mca_pml_ob1_isend reads the first transport
  // of an empty list). Both the failed message and the mark on the peer come from this thread's own progress, so
  // that nothing can come between this question and the send.
  if (known_dead(comm_, peer)) throw Fault(MPIX_ERR_PROC_FAILED, "send");
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "send");
  transfers_.push_back({request, -1});
  return transfers_.size() - 1;
}

std::size_t Transfers::receive(void* data, std::size_t bytes, int peer, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "receive");
  transfers_.push_back({request, static_cast<int>(bytes)});
  return transfers_.size() - 1;
}

void Transfers::finish(std::size_t ticket) { finish(transfers_[ticket]); }

void Transfers::finish(Transfer& transfer) {
  const MPI_Status status = wait(transfer.request, "transfer");
  if (transfer.incoming < 0) return;
  int received = 0;
  MPI_Get_count(&status, MPI_BYTE, &received);
  // MPI itself refuses a message that is too long.
  if (received != transfer.incoming) throw MpiError(MPI_ERR_TRUNCATE, mismatch(transfer.incoming, received));
}

void Transfers::finish_all() {
  for (Transfer& transfer : transfers_) {
    if (transfer.request != MPI_REQUEST_NULL) finish(transfer);
  }
  transfers_.clear();
}

}  // namespace ulfm
