// The guard: a thread that ends this process when it can no longer be of use, so that nothing waits for ever.
//
// It watches three things and ends the process with a line that says where it stood:
//   * a peer of this process's own replica is dead (the replica is lost as a whole);
//   * an operation on the communication thread runs longer than its limit (a stalled MPI call cannot be interrupted
//     from within, only the process can end it);
//   * the application has reported no progress for the step limit although it is not waiting for others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mpi_ulfm.hpp"
#include "pulse.hpp"

namespace ulfm {

class Guard {
 public:
  // `everyone` is a communicator that is never freed: failures are looked up in it. `identity` starts the last line, and
  // `exit_code` is what this process ends with when its guard ends it.
  Guard(MPI_Comm everyone, std::string identity, int exit_code);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(std::vector<int> ranks);  // ranks of `everyone` whose death ends this process
  void set_step_limit(double seconds);  // 0: none
  void beat(const std::string& where);  // the application is alive, and here
  // What to write to `file` before this guard ends the process: `line`, in which {time} (seconds since the epoch) and
  // {reason} (as within a JSON string) are filled in. -1: nothing.
  void set_last_words(int file, const std::string& line);
  void publish(Pulse* pulse);           // for whoever watches this process from outside; never freed
  void stop();

  // An operation of the communication thread; `limit` in seconds, 0 for none.
  void begin_operation(const std::string& name, double limit);
  void end_operation();

  // This process has to leave, and the others wait for that.
  void end_within(double seconds, const std::string& reason);

  // The application waits for the communication thread: its own limit is suspended meanwhile.
  void begin_wait();
  void end_wait();

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void forgive(Clock::duration slept);  // time in which the whole process was stopped; with the lock held
  void tell_where();                    // with the lock held
  std::string verdict(int dead) const;  // why to end, or nothing; with the lock held
  int dead_one_of(std::vector<int> ranks) const;  // or -1; asks MPI, so without the lock
  [[noreturn]] void end(const std::string& reason) const;

  const MPI_Comm everyone_;
  MPI_Group group_ = MPI_GROUP_NULL;
  const std::string identity_;
  const int exit_code_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<int> watched_;
  double step_limit_ = 0.0;
  std::string where_ = "before its first step";
  Pulse* pulse_ = nullptr;
  Clock::time_point beat_ = Clock::now();
  std::string operation_;
  double operation_limit_ = 0.0;
  Clock::time_point operation_begun_;
  int waiting_ = 0;
  int last_words_file_ = -1;
  std::string last_words_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::string deadline_reason_;
  std::thread thread_;
};

}  // namespace ulfm
