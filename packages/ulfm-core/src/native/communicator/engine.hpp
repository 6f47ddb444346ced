// The communication thread: every MPI call of the process, in one order.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "guard.hpp"
#include "work.hpp"

namespace ulfm {

// Failure knowledge arrives only while somebody does this. For the communication thread.
void drive_progress();

class Engine {
 public:
  explicit Engine(Guard& guard);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs `task` after everything submitted before it. What it throws becomes the outcome: Fault is a failure, anything
  // else a fatal error; `on_failure` hears of both first. `limit` in seconds bounds it (0: no bound).
  std::shared_ptr<Work> submit(std::string name, double limit, std::function<Outcome()> task,
                               std::shared_ptr<void> keep = nullptr);
  void stop();

  // Called on the communication thread right after a task threw.
  std::function<void()> on_failure;

 private:
  struct Entry {
    std::shared_ptr<Work> work;
    double limit;
    std::function<Outcome()> task;
  };
  void run();
  void execute(Entry& entry);

  Guard& guard_;
  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ulfm
