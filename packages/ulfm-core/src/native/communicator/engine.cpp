#include "engine.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <stdexcept>

namespace ulfm {
namespace {

// How often an idle communication thread drives MPI's progress.
constexpr auto idle_poll = std::chrono::milliseconds(5);
constexpr unsigned long timer_slack_ns = 1000;  // naps of tens of microseconds mean what they say

}  // namespace

void drive_progress() {
  int flag = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
}

Engine::Engine(Guard& guard) : guard_(guard) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Work> Engine::submit(std::string name, double limit, std::function<Outcome()> task,
                                     std::shared_ptr<void> keep) {
  if (getpid() != owner_) throw std::runtime_error("a forked child cannot communicate: only the rank itself can");
  auto work = std::make_shared<Work>(std::move(name), std::move(keep));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw std::runtime_error("the communication thread has stopped: this process is leaving");
    queue_.push_back(Entry{work, limit, std::move(task)});
  }
  wake_.notify_one();
  return work;
}

void Engine::run() {
  Work::this_thread_communicates();
  prctl(PR_SET_TIMERSLACK, timer_slack_ns, 0, 0, 0);
  std::unique_lock lock(mutex_);
  while (!stopping_ || !queue_.empty()) {
    if (queue_.empty()) {
      if (wake_.wait_for(lock, idle_poll) == std::cv_status::timeout && queue_.empty() && !stopping_) {
        lock.unlock();
        drive_progress();
        lock.lock();
      }
      continue;
    }
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    execute(entry);
    entry = Entry{};  // may be the last to hold the operation and its buffers: not while the lock is held
    lock.lock();
  }
}

void Engine::execute(Entry& entry) {
  guard_.begin_operation(entry.work->name(), entry.limit);
  entry.work->begin();
  Outcome outcome = Outcome::failed;
  int error_class = MPI_SUCCESS;
  std::string message;
  bool fatal = false;
  try {
    outcome = entry.task();
  } catch (const Fault& fault) {
    error_class = fault.error_class();
    message = fault.what();
  } catch (const std::exception& error) {
    message = error.what();
    fatal = true;
  }
  if (outcome == Outcome::failed && on_failure) on_failure();
  entry.task = nullptr;
  entry.work->finish(outcome, error_class, std::move(message), fatal);
  guard_.end_operation();  // callbacks count: one that blocks would hold up everything after it
}

}  // namespace ulfm
