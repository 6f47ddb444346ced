// What an MPI call can answer besides success.
#pragma once

#include <stdexcept>
#include <string>

#include "mpi_ulfm.hpp"

namespace ulfm {

// How an operation on the communication thread ended.
enum class Outcome : int {
  pending = 0,
  ok = 1,
  failed = 2,    // a peer died, or the communicator was revoked, while it ran
  quiesced = 3,  // not attempted: a failure was already known in this epoch
};

// A peer is gone or the communicator is revoked: the condition everything here is made to survive.
class Fault : public std::runtime_error {
 public:
  Fault(int error_class, const std::string& operation);
  int error_class() const noexcept { return error_class_; }

 private:
  int error_class_;
};

// Any other MPI error: a bug or a misconfiguration, never survivable.
class MpiError : public std::runtime_error {
 public:
  MpiError(int code, const std::string& operation);
};

// Success passes; a process failure or a revocation throws Fault; anything else throws MpiError.
void check(int code, const char* operation);

// True for the error classes of a process failure.
bool is_fault(int error_class) noexcept;
int error_class_of(int code) noexcept;

}  // namespace ulfm
