#include "requests.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace ulfm {

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

void wait(MPI_Request& request, const char* operation) {
  Pause pause;
  for (;;) {
    int done = 0;
    MPI_Status status;
    status.MPI_ERROR = MPI_SUCCESS;
    const int code = MPI_Test(&request, &done, &status);
    check(code, operation);
    if (done != 0) return;
    pause();
  }
}

Transfers::~Transfers() {
  const bool open = std::any_of(requests_.begin(), requests_.end(),
                                [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
  if (!open) return;
  MPIX_Comm_revoke(comm_);
  for (MPI_Request& request : requests_) {
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
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "send");
  requests_.push_back(request);
  return requests_.size() - 1;
}

std::size_t Transfers::receive(void* data, std::size_t bytes, int peer, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &request), "receive");
  requests_.push_back(request);
  return requests_.size() - 1;
}

void Transfers::finish(std::size_t ticket) { wait(requests_[ticket], "transfer"); }

void Transfers::finish_all() {
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) wait(request, "transfer");
  }
  requests_.clear();
}

}  // namespace ulfm
