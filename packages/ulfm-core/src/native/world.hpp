// A communicator that survives: the paper's four phases, detect / repair / record / reduce.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective.hpp"
#include "engine.hpp"
#include "guard.hpp"
#include "subgroup.hpp"

namespace ulfm {

// What one agreement over the whole world said. Equal on every rank that returned from it.
struct Agreement {
  bool all_alive = false;  // nobody has died since the world was last repaired
  bool flag = false;       // the AND of the flags of everyone who took part
  bool all_leave = false;  // all of them are leaving the job
};

// What a repair left every survivor with. Everything but the timings is equal on all of them.
struct Repair {
  std::int64_t epoch = 0;
  std::vector<int> members;             // initial ranks of the survivors, in order
  std::vector<std::int64_t> records;    // members.size() rows of record_size
  std::size_t record_size = 0;
  bool condemned = false;               // this process belongs to a replica that lost a rank: it must leave now
  int rounds = 0;                       // 1, or more when ranks died during the repair
  double repair_seconds = 0.0;          // revoke, shrink, fence, split
  double record_seconds = 0.0;
};

struct Limits {
  double wait = 1800.0;    // for peers that may be computing: reductions, agreements
  double recovery = 60.0;  // for the parts of a repair that depend on nobody's computing
};

enum class Detection : int { deferred, guarded };

class World {
 public:
  // Collective over `initial`. Ranks [k * replica_size, (k + 1) * replica_size) form replica k. With `communicators` the
  // application gets some of its own, which the world repairs along with itself.
  World(MPI_Comm initial, int replica_size, Detection detection, Limits limits, bool communicators);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const noexcept { return rank_; }
  int initial_size() const noexcept { return initial_size_; }
  int replica_size() const noexcept { return replica_size_; }
  std::int64_t epoch() const;
  std::vector<int> members() const;
  std::vector<int> known_failed() const;  // local knowledge: differs between ranks until something agrees it
  MPI_Comm world_handle() const;
  MPI_Comm group_handle() const;
  // The application's own, or MPI_COMM_NULL.
  MPI_Comm application_world() const;
  MPI_Comm application_group() const;
  int group_rank() const;
  int group_size() const;
  Guard& guard() noexcept { return *guard_; }
  bool quiesced() const noexcept { return quiesced_.load(); }
  // A failure is known: skip what is queued, and make the collectives of the others fail as well, who would wait for
  // this rank's part for ever.
  void quiesce() noexcept;
  Detection detection() const noexcept { return detection_; }

  // --- Reduce: over the cross-replica group of this position, or over `among` (this rank is one of it). `task` runs
  // on the communication thread, in the order of the calls; `keep` is what must live until it has ended.
  std::shared_ptr<Work> collective(std::string name, std::shared_ptr<Subgroup> among, std::function<void(Ring&)> task,
                                   std::shared_ptr<void> keep);
  // Anything else that must run between those, in order, on the communication thread.
  std::shared_ptr<Work> run(std::string name, std::function<void()> task);

  // --- Detect: over the whole world.
  std::shared_ptr<Work> agree(bool flag, bool leaving, std::shared_ptr<Agreement> result);
  // --- Repair and record: over the whole world, after an agreement that did not pass.
  std::shared_ptr<Work> repair(std::vector<std::int64_t> record, std::shared_ptr<Repair> result);

  // Ends the threads, once what is queued has been done.
  void stop();

  // Called on the communication thread at the start of each phase of a repair ("revoke", "shrink", "fence", "split",
  // "record"), with the round.
  std::function<void(const std::string&, int)> on_phase;

 private:
  void over_group(const std::function<void(Ring&)>& task);
  bool agree_on(MPI_Comm comm, unsigned* flags, const char* operation);
  bool agree_on(MPI_Comm comm, bool* flag, const char* operation);
  bool attempt(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result, MPI_Comm* next);
  void await_death_of(const std::vector<int>& alive, const std::vector<int>& members) const;
  void phase(const char* name, int round);
  void bound(const char* name, double seconds);
  MPI_Comm shrink(MPI_Comm comm);
  Ring ring_of(MPI_Comm comm) const;
  std::vector<int> initial_ranks_of(MPI_Comm comm) const;
  std::vector<int> unbroken(const std::vector<int>& alive) const;
  void join();
  void require_equal_settings(MPI_Comm comm) const;
  void detect(Ring& ring) const;
  void revoke_all() const;
  // The world's communicators, all made from `whole`.
  struct Communicators {
    MPI_Comm world = MPI_COMM_NULL;
    MPI_Comm group = MPI_COMM_NULL;
    MPI_Comm application_world = MPI_COMM_NULL;
    MPI_Comm application_group = MPI_COMM_NULL;
  };
  Communicators made_from(MPI_Comm whole) const;
  void adopt(const Communicators& made, std::vector<int> members);

  const MPI_Comm initial_;
  const int replica_size_;
  const Detection detection_;
  const Limits limits_;
  const bool communicators_;
  int rank_ = 0;
  int initial_size_ = 0;

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
