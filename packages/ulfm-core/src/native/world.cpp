#include "world.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "requests.hpp"

namespace ulfm {
namespace {

constexpr int most_shrink_attempts = 100;

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void return_errors(MPI_Comm comm) { check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "set error handler"); }

}  // namespace

World::World(MPI_Comm initial, int replica_size, Detection detection, Limits limits)
    : initial_(initial), replica_size_(replica_size), detection_(detection), limits_(limits) {
  return_errors(initial_);
  check(MPI_Comm_rank(initial_, &rank_), "rank");
  check(MPI_Comm_size(initial_, &initial_size_), "size");
  if (replica_size < 1 || initial_size_ % replica_size != 0) {
    throw std::invalid_argument("replica size " + std::to_string(replica_size) + " does not divide the " +
                                std::to_string(initial_size_) + " ranks of this job");
  }
  const int replica = rank_ / replica_size_;
  const int position = rank_ % replica_size_;
  guard_ = std::make_unique<Guard>(initial_, "ulfm-core: rank " + std::to_string(rank_) + " (replica " +
                                                 std::to_string(replica) + ", position " + std::to_string(position) +
                                                 ")");
  engine_ = std::make_unique<Engine>(*guard_);
  // Whoever sees a failure tells the others of its group, or they would wait for this rank's next message for ever.
  engine_->on_failure = [this] {
    quiesced_.store(true);
    const MPI_Comm group = group_handle();
    if (group != MPI_COMM_NULL) MPIX_Comm_revoke(group);
  };

  const auto set_up = engine_->submit("set-up", limits_.recovery, [this, replica, position] {
    MPI_Comm world = MPI_COMM_NULL;
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_dup(initial_, &world), "duplicate the world");
    return_errors(world);
    if (replica_size_ == 1) {
      group = world;
    } else {
      check(MPI_Comm_split(world, position, replica, &group), "split by position");
      return_errors(group);
    }
    bool flag = true;
    if (!agree_on(world, &flag, "first agreement")) {
      throw std::runtime_error("a rank died while the world was being set up: start the job again");
    }
    adopt(world, group, initial_ranks_of(world));
    return Outcome::ok;
  });
  if (set_up->wait() != Outcome::ok) {
    const std::string message = set_up->message();
    stop();
    throw std::runtime_error("the world could not be set up: " + message);
  }
}

World::~World() { stop(); }

void World::stop() {
  if (engine_) engine_->stop();
  if (guard_) guard_->stop();
}

std::int64_t World::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::vector<int> World::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

MPI_Comm World::world_handle() const {
  const std::lock_guard lock(mutex_);
  return world_;
}

MPI_Comm World::group_handle() const {
  const std::lock_guard lock(mutex_);
  return group_.comm;
}

int World::group_rank() const {
  const std::lock_guard lock(mutex_);
  return group_.rank;
}

int World::group_size() const {
  const std::lock_guard lock(mutex_);
  return group_.size;
}

std::vector<int> World::known_failed() const {
  MPI_Group failed = MPI_GROUP_NULL;
  MPI_Group everyone = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(initial_, &failed) != MPI_SUCCESS) return {};
  MPI_Comm_group(initial_, &everyone);
  int count = 0;
  MPI_Group_size(failed, &count);
  std::vector<int> theirs(static_cast<std::size_t>(count));
  std::vector<int> ours(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) theirs[static_cast<std::size_t>(i)] = i;
  MPI_Group_translate_ranks(failed, count, theirs.data(), everyone, ours.data());
  MPI_Group_free(&failed);
  MPI_Group_free(&everyone);
  std::sort(ours.begin(), ours.end());
  return ours;
}

Ring World::ring_of(MPI_Comm comm) const {
  Ring ring;
  ring.comm = comm;
  check(MPI_Comm_rank(comm, &ring.rank), "rank");
  check(MPI_Comm_size(comm, &ring.size), "size");
  return ring;
}

std::vector<int> World::initial_ranks_of(MPI_Comm comm) const {
  MPI_Group mine = MPI_GROUP_NULL;
  MPI_Group everyone = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &mine), "group");
  check(MPI_Comm_group(initial_, &everyone), "group");
  int size = 0;
  MPI_Group_size(mine, &size);
  std::vector<int> theirs(static_cast<std::size_t>(size));
  std::vector<int> ours(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) theirs[static_cast<std::size_t>(i)] = i;
  MPI_Group_translate_ranks(mine, size, theirs.data(), everyone, ours.data());
  MPI_Group_free(&mine);
  MPI_Group_free(&everyone);
  return ours;
}

void World::adopt(MPI_Comm world, MPI_Comm group, std::vector<int> members) {
  Ring ring = ring_of(group);
  const std::lock_guard lock(mutex_);
  world_ = world;
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
      over_subgroup(*among, task);
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
  if (detection_ == Detection::guarded) {
    // The paper's order: ask whether everyone is there before any data moves. The group's agreement is enough here,
    // since the world's agreement at the end of the step has the last word.
    bool flag = true;
    if (!agree_on(ring.comm, &flag, "detect")) throw Fault(MPIX_ERR_PROC_FAILED, "detect");
  }
  task(ring);
  const std::lock_guard lock(mutex_);
  group_.sequence = ring.sequence;
}

// Without a communicator of its own there is nothing to agree on first: failures surface from the operation itself, in
// both detection modes.
void World::over_subgroup(Subgroup& among, const std::function<void(Ring&)>& task) {
  Ring& ring = among.ring(world_handle(), members(), epoch(), rank_);
  try {
    task(ring);
  } catch (const std::exception&) {
    // The communicator is the world's, which `on_failure` leaves alone when the groups have their own.
    MPIX_Comm_revoke(ring.comm);
    throw;
  }
}

std::shared_ptr<Work> World::run(std::string name, std::function<void()> task) {
  return engine_->submit(std::move(name), limits_.wait, [task = std::move(task)] {
    task();
    return Outcome::ok;
  });
}

// ---------------------------------------------------------------------------------------------------- detect

bool World::agree_on(MPI_Comm comm, bool* flag, const char* operation) {
  int value = *flag ? 1 : 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPIX_Comm_iagree(comm, &value, &request), operation);
  bool all_alive = true;
  try {
    wait(request, operation);
  } catch (const Fault&) {
    all_alive = false;
  }
  *flag = value != 0;
  return all_alive;
}

std::shared_ptr<Work> World::agree(bool flag, std::shared_ptr<Agreement> result) {
  return engine_->submit("agreement", limits_.wait, [this, flag, result = std::move(result)] {
    result->flag = flag;
    result->all_alive = agree_on(world_handle(), &result->flag, "agreement");
    return Outcome::ok;
  });
}

// ---------------------------------------------------------------------------------------------------- repair, record

void World::phase(const char* name, int round) {
  guard_->begin_operation(std::string("repair: ") + name, limits_.recovery);
  if (on_phase) on_phase(name, round);
}

MPI_Comm World::shrink(MPI_Comm comm) {
  for (int attempt = 0;; ++attempt) {
    MPI_Comm next = MPI_COMM_NULL;
    const int code = MPIX_Comm_shrink(comm, &next);
    if (code == MPI_SUCCESS) {
      return_errors(next);
      return next;
    }
    if (attempt == most_shrink_attempts || !is_fault(error_class_of(code))) check(code, "shrink");
  }
}

std::vector<int> World::unbroken(const std::vector<int>& alive) const {
  std::vector<int> living(static_cast<std::size_t>(initial_size_ / replica_size_), 0);
  for (const int rank : alive) ++living[static_cast<std::size_t>(rank / replica_size_)];
  std::vector<int> kept;
  for (const int rank : alive) {
    if (living[static_cast<std::size_t>(rank / replica_size_)] == replica_size_) kept.push_back(rank);
  }
  return kept;
}

// One round: shrink, fence, split, record, and one agreement that closes it. False when somebody died meanwhile;
// `next` is then the communicator to go on from. Every return is the same on all survivors, because it follows an
// agreement.
bool World::attempt(MPI_Comm broken, const std::vector<std::int64_t>& record, Repair* result, MPI_Comm* next) {
  const int round = result->rounds;
  Stopwatch watch;
  phase("revoke", round);
  MPIX_Comm_revoke(broken);
  phase("shrink", round);
  const MPI_Comm survivors = shrink(broken);
  *next = survivors;
  phase("fence", round);
  bool flag = true;
  // The fence: nobody revokes `survivors` before all have it.
  if (!agree_on(survivors, &flag, "fence")) {
    result->repair_seconds += watch.lap();
    return false;
  }

  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm group = MPI_COMM_NULL;
  const std::vector<int> alive = initial_ranks_of(survivors);
  const std::vector<int> members = unbroken(alive);
  const bool condemned = std::find(members.begin(), members.end(), rank_) == members.end();
  bool complete = true;
  try {
    phase("split", round);
    if (members.size() == alive.size()) {
      world = survivors;
    } else {
      check(MPI_Comm_split(survivors, condemned ? MPI_UNDEFINED : 0, rank_, &world), "split off the condemned");
      if (!condemned) return_errors(world);
    }
    if (!condemned) {
      group = world;
      if (replica_size_ > 1) {
        check(MPI_Comm_split(world, rank_ % replica_size_, rank_ / replica_size_, &group), "split by position");
        return_errors(group);
      }
    }
    result->repair_seconds += watch.lap();
    phase("record", round);
    if (!condemned) {
      Ring ring = ring_of(world);
      std::vector<std::int64_t> table(record.size() * members.size(), 0);
      const std::size_t row = static_cast<std::size_t>(ring.rank) * record.size();
      std::copy(record.begin(), record.end(), table.begin() + static_cast<std::ptrdiff_t>(row));
      ulfm::all_reduce(ring, Op::sum, DType::i64, table.data(), table.data(), table.size());
      result->records = std::move(table);
    }
  } catch (const Fault&) {
    // Others may sit in the split or in the record and wait for this rank: wake them. Allowed since the fence passed.
    complete = false;
    MPIX_Comm_revoke(survivors);
    if (world != MPI_COMM_NULL && world != survivors) MPIX_Comm_revoke(world);
  }
  flag = complete;
  const bool all_alive = agree_on(survivors, &flag, "close the repair");
  result->record_seconds += watch.lap();
  if (!all_alive || !flag) return false;

  result->condemned = condemned;
  result->members = members;
  if (!condemned) adopt(world, group, members);
  return true;
}

std::shared_ptr<Work> World::repair(std::vector<std::int64_t> record, std::shared_ptr<Repair> result) {
  return engine_->submit("repair", limits_.recovery, [this, record = std::move(record), result = std::move(result)] {
    MPI_Comm broken = world_handle();
    const MPI_Comm group = group_handle();
    if (group != broken) MPIX_Comm_revoke(group);
    result->record_size = record.size();
    for (bool repaired = false; !repaired;) {
      ++result->rounds;
      MPI_Comm next = MPI_COMM_NULL;
      repaired = attempt(broken, record, result.get(), &next);
      broken = next;
    }
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
