// A communicator that survives: the paper's four phases, detect / repair / record / reduce.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agreement.hpp"
#include "communicators.hpp"
#include "engine.hpp"
#include "guard.hpp"
#include "repair.hpp"
#include "subgroup.hpp"

namespace ulfm {

struct Limits {
  double wait = 1800.0;    // for peers that may be computing: reductions, agreements
  double recovery = 60.0;  // for the parts of a repair that depend on nobody's computing
};

enum class Detection : int { deferred, guarded };

class World {
 public:
  // Collective over `initial`. With `communicators` the application gets some of its own, which the world repairs along
  // with itself. `guard_exit_code` is what a process ends with when its guard ends it.
  World(MPI_Comm initial, Seats seats, Detection detection, Limits limits, bool communicators, int guard_exit_code);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const noexcept { return job_.rank(); }
  int initial_size() const noexcept { return job_.size(); }
  std::int64_t epoch() const;
  std::vector<int> members() const;
  std::vector<int> known_failed() const { return job_.known_failed(); }
  int group_rank() const;
  int group_size() const;
  Communicators communicators() const;
  Guard& guard() noexcept { return *guard_; }
  Detection detection() const noexcept { return detection_; }
  bool quiesced() const noexcept { return quiesced_.load(); }
  // A failure is known: skip what is queued, and make the collectives of the others fail as well, who would wait for
  // this rank's part for ever.
  void quiesce() noexcept;

  // --- Reduce: over the cross-replica group of this position, or over `among` (this rank is one of it). `task` runs
  // on the communication thread, in the order of the calls; `keep` is what must live until it has ended.
  std::shared_ptr<Work> collective(std::string name, std::shared_ptr<Subgroup> among, std::function<void(Ring&)> task,
                                   std::shared_ptr<void> keep);

  // --- Detect: over the whole world.
  std::shared_ptr<Work> agree(bool flag, bool leaving, std::shared_ptr<Agreement> result);
  // --- Repair and record: over the whole world, after an agreement that did not pass.
  std::shared_ptr<Work> repair(std::vector<std::int64_t> record, std::shared_ptr<Repair> result);

  // Ends the threads, once what is queued has been done.
  void stop();

  OnPhase on_phase;  // called on the communication thread

 private:
  void join();
  void require_equal_settings(MPI_Comm comm) const;
  void adopt(const Communicators& made, std::vector<int> members);
  void over_group(const std::function<void(Ring&)>& task);
  void detect(Ring& ring) const;

  const Job job_;
  const Detection detection_;
  const Limits limits_;

  mutable std::mutex mutex_;  // the view below is written by the communication thread and read by others
  Communicators made_;
  Ring group_;
  std::vector<int> members_;
  std::int64_t epoch_ = 0;
  std::atomic<bool> quiesced_{false};

  const pid_t owner_ = getpid();  // a forked child has this object but not the threads
  std::unique_ptr<Guard> guard_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ulfm
