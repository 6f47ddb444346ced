// One operation on the communication thread, and what became of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fault.hpp"

namespace ulfm {

class Work {
 public:
  // `keep` stays alive until the operation has ended, and from then on until release() or the end of this object.
  Work(std::string name, std::shared_ptr<void> keep) : name_(std::move(name)), keep_(std::move(keep)) {}

  const std::string& name() const noexcept { return name_; }
  bool done() const;
  // Blocks until the operation has ended, for at most `seconds`; true if it has. Throws std::logic_error on the
  // communication thread, which would wait for itself.
  bool wait_for(double seconds);
  // The same without a bound of its own: the guard ends a process whose operations stall.
  Outcome wait();
  // Lets go of the buffers of an operation that has ended. Not done by the communication thread, since it may need
  // Python's lock and would make the next operation wait for it.
  void release();
  Outcome outcome() const;
  int error_class() const;      // of a failed operation, else MPI_SUCCESS
  std::string message() const;  // of a failed operation, or of a bug (see fatal)
  bool fatal() const;           // ended by something that is no process failure
  double seconds() const;       // how long it ran, queueing excluded

  // Calls `then` on the communication thread once done, or at once when done already.
  void when_done(std::function<void()> then);

  // For the communication thread.
  static void this_thread_communicates() noexcept;
  void begin();
  void finish(Outcome outcome, int error_class, std::string message, bool fatal);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outcome outcome_ = Outcome::pending;
  int error_class_ = MPI_SUCCESS;
  bool fatal_ = false;
  std::string message_;
  Clock::time_point begun_;
  Clock::time_point ended_;
  std::vector<std::function<void()>> then_;
  std::shared_ptr<void> keep_;
};

}  // namespace ulfm
