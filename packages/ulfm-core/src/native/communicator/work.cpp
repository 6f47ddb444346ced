#include "work.hpp"

#include <stdexcept>

namespace ulfm {
namespace {

thread_local bool communicates = false;

void refuse_to_wait_for_itself() {
  if (communicates) {
    throw std::logic_error("waiting on the communication thread: a callback must not wait for an operation");
  }
}

}  // namespace

void Work::this_thread_communicates() noexcept { communicates = true; }

bool Work::done() const {
  const std::lock_guard lock(mutex_);
  return outcome_ != Outcome::pending;
}

Outcome Work::wait() {
  refuse_to_wait_for_itself();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return outcome_ != Outcome::pending; });
  return outcome_;
}

bool Work::wait_for(double seconds) {
  refuse_to_wait_for_itself();
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [this] { return outcome_ != Outcome::pending; });
}

void Work::release() {
  std::shared_ptr<void> dropped;
  const std::lock_guard lock(mutex_);
  if (outcome_ != Outcome::pending) dropped.swap(keep_);
}

Outcome Work::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

int Work::error_class() const {
  const std::lock_guard lock(mutex_);
  return error_class_;
}

std::string Work::message() const {
  const std::lock_guard lock(mutex_);
  return message_;
}

bool Work::fatal() const {
  const std::lock_guard lock(mutex_);
  return fatal_;
}

double Work::seconds() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(ended_ - begun_).count();
}

void Work::when_done(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (outcome_ == Outcome::pending) {
      then_.push_back(std::move(then));
      return;
    }
  }
  then();
}

void Work::begin() {
  const std::lock_guard lock(mutex_);
  begun_ = Clock::now();
}

void Work::finish(Outcome outcome, int error_class, std::string message, bool fatal) {
  std::vector<std::function<void()>> then;
  {
    const std::lock_guard lock(mutex_);
    ended_ = Clock::now();
    outcome_ = outcome;
    error_class_ = error_class;
    message_ = std::move(message);
    fatal_ = fatal;
    then.swap(then_);
  }
  changed_.notify_all();
  for (const auto& call : then) call();
}

}  // namespace ulfm
