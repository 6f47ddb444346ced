// Point-to-point requests that are waited for politely and cleaned up after a fault.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

#include "fault.hpp"

namespace ulfm {

// How a thread waits for the network: it yields for a moment, then naps, so that a waiting rank leaves its core to
// a computing one (ranks often outnumber cores on test machines, and share them with the data loader on real ones).
class Pause {
 public:
  void operator()();
  void reset() { polls_ = 0; }

 private:
  int polls_ = 0;
};

// Waits for one request; throws Fault when its peer died or its communicator was revoked. Returns what came with it.
MPI_Status wait(MPI_Request& request, const char* operation);

// The outstanding transfers of one collective. Destroying it with transfers left over (an exception is passing)
// revokes the communicator and completes them, so that no buffer is touched after the collective has returned.
class Transfers {
 public:
  explicit Transfers(MPI_Comm comm) : comm_(comm) {}
  // Called when a drain begins: what it waits for depends on nobody's computing, so it can be bounded tightly.
  static std::function<void()> before_draining;
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Both return a ticket for finish().
  std::size_t send(const void* data, std::size_t bytes, int peer, int tag);
  std::size_t receive(void* data, std::size_t bytes, int peer, int tag);
  void finish(std::size_t ticket);
  void finish_all();

 private:
  struct Transfer {
    MPI_Request request;
    int incoming;  // bytes to receive, -1 for a send
  };
  void finish(Transfer& transfer);

  MPI_Comm comm_;
  std::deque<Transfer> transfers_;
};

}  // namespace ulfm
