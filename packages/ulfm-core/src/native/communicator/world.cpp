#include "world.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "requests.hpp"

namespace ulfm {
namespace {

std::string identity_of(const Job& job) {
  return "ulfm-core: rank " + std::to_string(job.rank()) + " (replica " + std::to_string(job.seat().replica) +
         ", position " + std::to_string(job.seat().position) + ")";
}

}  // namespace

World::World(MPI_Comm initial, Seats seats, Detection detection, Limits limits, bool communicators, int guard_exit_code)
    : job_(initial, std::move(seats), communicators), detection_(detection), limits_(limits) {
  guard_ = std::make_unique<Guard>(initial, identity_of(job_), guard_exit_code);
  engine_ = std::make_unique<Engine>(*guard_);
  engine_->on_failure = [this] { quiesce(); };
  Transfers::before_draining = [this] { guard_->begin_operation("drain after a failure", limits_.recovery); };

  const auto set_up = engine_->submit("set-up", limits_.wait, [this] {
    try {
      join();
    } catch (const std::exception&) {
      MPIX_Comm_revoke(job_.initial());  // the job cannot go on: let the others know
      throw;
    }
    return Outcome::ok;
  });
  if (set_up->wait() != Outcome::ok) {
    const std::string message = set_up->message();
    stop();
    throw std::runtime_error("the world could not be set up: " + message);
  }
}

void World::join() {
  MPI_Comm world = duplicate(job_.initial());
  require_equal_settings(world);
  const Communicators made = job_.made_from(world);
  bool flag = true;
  if (!agree_on(world, &flag, "first agreement")) {
    throw std::runtime_error("a rank died while the world was being set up: start the job again");
  }
  adopt(made, job_.initial_ranks_of(world));
}

World::~World() { stop(); }

void World::stop() {
  if (getpid() != owner_) {
    engine_.release();  // NOLINT: there is no thread to end, only the memory of one
    guard_.release();   // NOLINT
    return;
  }
  if (engine_) engine_->stop();
  Transfers::before_draining = nullptr;
  if (guard_) guard_->stop();
}

void World::quiesce() noexcept {
  quiesced_.store(true);
  revoke(communicators());  // of what all are known to have
}

// Ranks that disagree about these would wait for each other in different operations.
void World::require_equal_settings(MPI_Comm comm) const {
  constexpr std::size_t count = 4;
  Ring ring = ring_of(comm);
  const std::int64_t mine[count] = {job_.seats().replica_size(), job_.seats().digest(),
                                    static_cast<std::int64_t>(detection_), job_.for_application() ? 1 : 0};
  std::int64_t least[count];
  std::int64_t most[count];
  ulfm::all_reduce(ring, Op::min, DType::i64, mine, least, count);
  ulfm::all_reduce(ring, Op::max, DType::i64, mine, most, count);
  if (least[0] != most[0]) {
    throw std::invalid_argument("ranks were given different replica sizes, " + std::to_string(least[0]) + " to " +
                                std::to_string(most[0]) + ": give all the same");
  }
  if (least[1] != most[1]) throw std::invalid_argument("ranks were given different seats: give all the same");
  if (least[2] != most[2]) throw std::invalid_argument("ranks were given different detection modes: give all the same");
  if (least[3] != most[3]) {
    throw std::invalid_argument("some ranks asked for communicators and some did not: give all the same");
  }
}

std::int64_t World::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::vector<int> World::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

Communicators World::communicators() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

int World::group_rank() const {
  const std::lock_guard lock(mutex_);
  return group_.rank;
}

int World::group_size() const {
  const std::lock_guard lock(mutex_);
  return group_.size;
}

void World::adopt(const Communicators& made, std::vector<int> members) {
  Ring ring = ring_of(made.group);
  const std::lock_guard lock(mutex_);
  made_ = made;
  group_ = ring;
  members_ = std::move(members);
}

// ---------------------------------------------------------------------------------------------------- reduce

std::shared_ptr<Work> World::collective(std::string name, std::shared_ptr<Subgroup> among,
                                        std::function<void(Ring&)> task, std::shared_ptr<void> keep) {
  auto unless_quiesced = [this, among = std::move(among), task = std::move(task)] {
    if (quiesced_.load()) return Outcome::quiesced;
    if (among == nullptr) {
      over_group(task);
    } else {
      // Without a communicator of its own there is nothing to agree on first: failures surface from the operation
      // itself, in both detection modes.
      task(among->ring(communicators().world, members(), epoch(), job_.rank()));
    }
    return Outcome::ok;
  };
  return engine_->submit(std::move(name), limits_.wait, std::move(unless_quiesced), std::move(keep));
}

void World::over_group(const std::function<void(Ring&)>& task) {
  Ring ring;
  {
    const std::lock_guard lock(mutex_);
    ring = group_;
  }
  if (detection_ == Detection::guarded) detect(ring);
  task(ring);
  const std::lock_guard lock(mutex_);
  group_.sequence = ring.sequence;
}

// ---------------------------------------------------------------------------------------------------- detect

// The paper's order: make sure that everyone of the group is there before any data moves. By what this rank knows of
// deaths and a barrier, and not by MPI's agreement: that can only be interrupted by a death, and a rank that has seen a
// failure in an earlier operation skips this one and goes on to the world's agreement. So ranks may come to different
// answers here, and the world's agreement, at the end of the step, has the last word.
void World::detect(Ring& ring) const {
  const std::vector<int> dead = known_failed();
  const std::vector<int> alive = members();
  for (const int rank : dead) {
    if (std::binary_search(alive.begin(), alive.end(), rank)) throw Fault(MPIX_ERR_PROC_FAILED, "detect");
  }
  ulfm::barrier(ring);
}

std::shared_ptr<Work> World::agree(bool flag, bool leaving, std::shared_ptr<Agreement> result) {
  return engine_->submit("agreement", limits_.wait, [=, result = std::move(result)] {
    *result = ulfm::agree(communicators().world, flag, leaving);
    return Outcome::ok;
  });
}

// ---------------------------------------------------------------------------------------------------- repair, record

std::shared_ptr<Work> World::repair(std::vector<std::int64_t> record, std::shared_ptr<Repair> result) {
  return engine_->submit("repair", limits_.recovery, [this, record = std::move(record), result = std::move(result)] {
    const Communicators broken = communicators();
    revoke(broken);
    Repairer repairer(job_, *guard_, limits_.recovery, on_phase);
    const Communicators made = repairer.repair(broken.world, record, result.get());
    if (!result->condemned) adopt(made, result->members);
    {
      const std::lock_guard lock(mutex_);
      ++epoch_;
      result->epoch = epoch_;
    }
    quiesced_.store(false);
    return Outcome::ok;
  });
}

}  // namespace ulfm
