#include "guard.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ulfm {
namespace {

constexpr auto period = std::chrono::milliseconds(5);
constexpr auto frozen = std::chrono::seconds(1);  // a nap longer than this was none of the process's making

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

std::string with_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

void replace(std::string& text, const std::string& name, const std::string& value) {
  const auto at = text.find(name);
  if (at != std::string::npos) text.replace(at, name.size(), value);
}

std::string filled_in(std::string line, const std::string& reason) {
  std::string escaped;
  for (const char c : reason) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  char time[32];
  std::snprintf(time, sizeof time, "%.6f", std::chrono::duration<double>(now).count());
  replace(line, "{time}", time);
  replace(line, "{reason}", escaped);
  return line;
}

}  // namespace

Guard::Guard(MPI_Comm everyone, std::string identity, int exit_code)
    : everyone_(everyone), identity_(std::move(identity)), exit_code_(exit_code) {
  MPI_Comm_group(everyone_, &group_);
  thread_ = std::thread([this] { run(); });
}

Guard::~Guard() { stop(); }

void Guard::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (pulse_ != nullptr) pulse_->limit.store(0.0);
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Guard::watch(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  watched_ = std::move(ranks);
}

void Guard::set_step_limit(double seconds) {
  const std::lock_guard lock(mutex_);
  step_limit_ = seconds;
  if (pulse_ != nullptr) pulse_->limit.store(seconds);
  beat_ = Clock::now();
}

void Guard::beat(const std::string& where) {
  const std::lock_guard lock(mutex_);
  where_ = where;
  tell_where();
  beat_ = Clock::now();
}

void Guard::publish(Pulse* pulse) {
  const std::lock_guard lock(mutex_);
  copy_text(identity_, pulse->identity);
  pulse_ = pulse;
  pulse_->limit.store(step_limit_);
  tell_where();
}

void Guard::set_last_words(int file, const std::string& line) {
  const std::lock_guard lock(mutex_);
  last_words_file_ = file;
  last_words_ = line;
}

void Guard::begin_operation(const std::string& name, double limit) {
  const std::lock_guard lock(mutex_);
  operation_ = name;
  operation_limit_ = limit;
  operation_begun_ = Clock::now();
}

void Guard::end_operation() {
  const std::lock_guard lock(mutex_);
  operation_.clear();
  operation_limit_ = 0.0;
}

void Guard::end_within(double seconds, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  deadline_reason_ = reason;
}

void Guard::begin_wait() {
  const std::lock_guard lock(mutex_);
  ++waiting_;
}

void Guard::end_wait() {
  const std::lock_guard lock(mutex_);
  --waiting_;
  beat_ = Clock::now();
}

void Guard::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Clock::time_point asleep = Clock::now();
    wake_.wait_for(lock, period);
    if (stopping_) break;
    forgive(Clock::now() - asleep);
    if (pulse_ != nullptr) pulse_->beats.fetch_add(1);
    int dead = -1;
    if (!watched_.empty()) {
      std::vector<int> ranks = watched_;
      lock.unlock();
      dead = dead_one_of(std::move(ranks));
      lock.lock();
    }
    const std::string reason = stopping_ ? "" : verdict(dead);
    if (!reason.empty()) end(reason);
  }
}

void Guard::forgive(Clock::duration slept) {
  if (slept < frozen) return;
  beat_ += slept;
  operation_begun_ += slept;
  if (deadline_ != Clock::time_point::max()) deadline_ += slept;
}

void Guard::tell_where() {
  if (pulse_ == nullptr) return;
  const std::uint32_t next = 1 - pulse_->current.load();
  copy_text(where_, pulse_->where[next]);
  pulse_->current.store(next);
}

std::string Guard::verdict(int dead) const {
  // Asked again: a rank that is leaving has stopped watching meanwhile.
  if (std::find(watched_.begin(), watched_.end(), dead) != watched_.end()) {
    return "rank " + std::to_string(dead) + " of its replica died: the replica is lost as a whole";
  }
  if (Clock::now() > deadline_) return deadline_reason_;
  if (operation_limit_ > 0.0 && seconds_since(operation_begun_) > operation_limit_) {
    return "'" + operation_ + "' has not returned for " + with_seconds(operation_limit_) + " (" + where_ + ")";
  }
  if (step_limit_ > 0.0 && waiting_ == 0 && seconds_since(beat_) > step_limit_) {
    return "no progress for " + with_seconds(step_limit_) + ", stuck at: " + where_;
  }
  return {};
}

int Guard::dead_one_of(std::vector<int> ranks) const {
  // A local call: it asks what the runtime knows already, the communication thread's polling brings the news.
  MPI_Group failed = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(everyone_, &failed) != MPI_SUCCESS) return -1;
  int count = 0;
  MPI_Group_size(failed, &count);
  int dead = -1;
  if (count > 0) {
    std::vector<int> found(ranks.size(), MPI_UNDEFINED);
    MPI_Group_translate_ranks(group_, static_cast<int>(ranks.size()), ranks.data(), failed, found.data());
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] != MPI_UNDEFINED) dead = ranks[i];
    }
  }
  MPI_Group_free(&failed);
  return dead;
}

void Guard::end(const std::string& reason) const {
  if (last_words_file_ >= 0) {
    const std::string words = filled_in(last_words_, reason);
    [[maybe_unused]] const auto written = write(last_words_file_, words.data(), words.size());
  }
  const std::string line = identity_ + ": " + reason + "; this process ends, the others go on without it\n";
  // write() and _exit(): neither needs a lock that the stuck thread may hold.
  [[maybe_unused]] const auto said = write(STDERR_FILENO, line.data(), line.size());
  _exit(exit_code_);
}

}  // namespace ulfm
