#include "world.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "requests.hpp"

namespace ulfm {
namespace {

constexpr int most_shrink_attempts = 100;
constexpr double seconds_to_leave = 5.0;  // for a condemned rank's last words; the others wait for it
// A rank that waits for all others in a repair has this many times the patience of one that does not, so that of those
// who are stuck together only the one ends that the others wait for.
constexpr double patience = 2.0;

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

World::World(MPI_Comm initial, int replica_size, Detection detection, Limits limits, bool communicators)
    : initial_(initial),
      replica_size_(replica_size),
      detection_(detection),
      limits_(limits),
      communicators_(communicators) {
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
  engine_->on_failure = [this] { quiesce(); };
  Transfers::before_draining = [this] { guard_->begin_operation("drain after a failure", limits_.recovery); };

  const auto set_up = engine_->submit("set-up", limits_.wait, [this] {
    try {
      join();
    } catch (const std::exception&) {
      MPIX_Comm_revoke(initial_);  // the job cannot go on: let the others know
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
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(initial_, &world), "duplicate the world");
  return_errors(world);
  require_equal_settings(world);
  const Communicators made = made_from(world);
  bool flag = true;
  if (!agree_on(world, &flag, "first agreement")) {
    throw std::runtime_error("a rank died while the world was being set up: start the job again");
  }
  adopt(made, initial_ranks_of(world));
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
  revoke_all();
}

// Of what all are known to have: wakes whoever waits in one of them for a rank that has seen a failure.
void World::revoke_all() const {
  Communicators made;
  {
    const std::lock_guard lock(mutex_);
    made = made_;
  }
  for (MPI_Comm comm : {made.world, made.group, made.application_world, made.application_group}) {
    if (comm != MPI_COMM_NULL) MPIX_Comm_revoke(comm);
  }
}

// Ranks that disagree about these would wait for each other in different operations.
void World::require_equal_settings(MPI_Comm comm) const {
  Ring ring = ring_of(comm);
  const std::int64_t mine[] = {replica_size_, static_cast<std::int64_t>(detection_), communicators_ ? 1 : 0};
  std::int64_t least[3];
  std::int64_t most[3];
  ulfm::all_reduce(ring, Op::min, DType::i64, mine, least, 3);
  ulfm::all_reduce(ring, Op::max, DType::i64, mine, most, 3);
  if (least[0] != most[0]) {
    throw std::invalid_argument("ranks were given different replica sizes, " + std::to_string(least[0]) + " to " +
                                std::to_string(most[0]) + ": give all the same");
  }
  if (least[1] != most[1]) throw std::invalid_argument("ranks were given different detection modes: give all the same");
  if (least[2] != most[2]) throw std::invalid_argument("some ranks asked for communicators and some did not: give all the same");
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
  return made_.world;
}

MPI_Comm World::application_world() const {
  const std::lock_guard lock(mutex_);
  return made_.application_world;
}

MPI_Comm World::application_group() const {
  const std::lock_guard lock(mutex_);
  return made_.application_group;
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

// Splits of `whole` and of nothing else: a rank that sees a failure in one wakes the others by revoking `whole`.
World::Communicators World::made_from(MPI_Comm whole) const {
  const auto by_position = [&](const char* what) {
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_split(whole, rank_ % replica_size_, rank_ / replica_size_, &group), what);
    return_errors(group);
    return group;
  };
  Communicators made;
  made.world = whole;
  made.group = replica_size_ == 1 ? whole : by_position("split by position");
  if (communicators_) {
    check(MPI_Comm_dup(whole, &made.application_world), "duplicate the world");
    return_errors(made.application_world);
    made.application_group = replica_size_ == 1 ? made.application_world : by_position("split by position");
  }
  return made;
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
      task(among->ring(world_handle(), members(), epoch(), rank_));
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

std::shared_ptr<Work> World::run(std::string name, std::function<void()> task) {
  return engine_->submit(std::move(name), limits_.wait, [task = std::move(task)] {
    task();
    return Outcome::ok;
  });
}

// ---------------------------------------------------------------------------------------------------- detect

// The paper's order: make sure that everyone is there before any data moves. Not by MPI's agreement: that can only be
// interrupted by a death, and a rank that has seen a failure in an earlier operation skips this one and goes on to the
// world's agreement. That one, at the end of the step, has the last word.
void World::detect(Ring& ring) const {
  const std::vector<int> dead = known_failed();
  const std::vector<int> alive = members();
  for (const int rank : dead) {
    if (std::binary_search(alive.begin(), alive.end(), rank)) throw Fault(MPIX_ERR_PROC_FAILED, "detect");
  }
  ulfm::barrier(ring);
}

// `flags` becomes the AND, bit by bit. False when somebody is dead.
bool World::agree_on(MPI_Comm comm, unsigned* flags, const char* operation) {
  int value = static_cast<int>(*flags);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPIX_Comm_iagree(comm, &value, &request), operation);
  bool all_alive = true;
  try {
    wait(request, operation);
  } catch (const Fault&) {
    all_alive = false;
  }
  *flags = static_cast<unsigned>(value);
  return all_alive;
}

bool World::agree_on(MPI_Comm comm, bool* flag, const char* operation) {
  unsigned flags = *flag ? 1U : 0U;
  const bool all_alive = agree_on(comm, &flags, operation);
  *flag = flags != 0U;
  return all_alive;
}

std::shared_ptr<Work> World::agree(bool flag, bool leaving, std::shared_ptr<Agreement> result) {
  constexpr unsigned flag_bit = 1U;
  constexpr unsigned leaving_bit = 2U;
  return engine_->submit("agreement", limits_.wait, [=, result = std::move(result)] {
    unsigned flags = (flag ? flag_bit : 0U) | (leaving ? leaving_bit : 0U);
    result->all_alive = agree_on(world_handle(), &flags, "agreement");
    result->flag = (flags & flag_bit) != 0U;
    result->all_leave = (flags & leaving_bit) != 0U;
    return Outcome::ok;
  });
}

// ---------------------------------------------------------------------------------------------------- repair, record

void World::phase(const char* name, int round) {
  bound(name, limits_.recovery);
  if (on_phase) on_phase(name, round);
  // Splits aside: who is stuck in one, while others have come through, is the one to end.
  const bool waits = std::strcmp(name, "split") != 0;
  bound(name, waits ? patience * limits_.recovery : limits_.recovery);
}

void World::bound(const char* name, double seconds) {
  guard_->begin_operation(std::string("repair: ") + name, seconds);
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

// One round: shrink, fence, split, record, and one agreement that closes it. False when it takes another one, because
// somebody died meanwhile or is about to leave; `next` is then the communicator to go on from. Every return is the same
// on all survivors, because it follows an agreement.
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
  const bool fenced = agree_on(survivors, &flag, "fence");
  const std::vector<int> alive = initial_ranks_of(survivors);
  const std::vector<int> members = unbroken(alive);
  if (fenced && members.size() != alive.size()) {
    result->condemned = !std::binary_search(members.begin(), members.end(), rank_);
    result->members = members;
    if (!result->condemned) await_death_of(alive, members);
  }
  result->repair_seconds += watch.lap();
  if (!fenced || members.size() != alive.size()) return result->condemned;

  Communicators made;
  bool complete = true;
  // Whoever sees a failure here wakes the others by revoking what everyone is known to have, and never a communicator
  // that some are still creating.
  try {
    phase("split", round);
    made = made_from(survivors);
    result->repair_seconds += watch.lap();
    phase("record", round);
    Ring ring = ring_of(survivors);
    std::vector<std::int64_t> table(record.size() * members.size(), 0);
    const std::size_t row = static_cast<std::size_t>(ring.rank) * record.size();
    std::copy(record.begin(), record.end(), table.begin() + static_cast<std::ptrdiff_t>(row));
    ulfm::all_reduce(ring, Op::sum, DType::i64, table.data(), table.data(), table.size());
    result->records = std::move(table);
  } catch (const Fault&) {
    complete = false;
    MPIX_Comm_revoke(survivors);
  } catch (const MpiError&) {
    MPIX_Comm_revoke(survivors);  // this rank is about to leave: the others go round without it
    throw;
  }
  bound("close", patience * limits_.recovery);
  flag = complete;
  const bool all_alive = agree_on(survivors, &flag, "close the repair");
  result->record_seconds += watch.lap();
  if (!all_alive || !flag) return false;

  result->members = members;
  adopt(made, members);
  return true;
}

// The rest of a replica that lost a rank leaves as soon as it knows, and the next round starts when it has: a
// communicator with those in it who leave is no place to split or to exchange records.
void World::await_death_of(const std::vector<int>& alive, const std::vector<int>& members) const {
  std::vector<int> leaving;
  std::set_difference(alive.begin(), alive.end(), members.begin(), members.end(), std::back_inserter(leaving));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(limits_.recovery / 2);
  Pause pause;
  while (std::chrono::steady_clock::now() < until) {
    const std::vector<int> dead = known_failed();
    if (std::includes(dead.begin(), dead.end(), leaving.begin(), leaving.end())) return;
    drive_progress();
    pause();
  }
}

std::shared_ptr<Work> World::repair(std::vector<std::int64_t> record, std::shared_ptr<Repair> result) {
  return engine_->submit("repair", limits_.recovery, [this, record = std::move(record), result = std::move(result)] {
    MPI_Comm broken = world_handle();
    revoke_all();
    result->record_size = record.size();
    for (bool repaired = false; !repaired;) {
      ++result->rounds;
      MPI_Comm next = MPI_COMM_NULL;
      repaired = attempt(broken, record, result.get(), &next);
      broken = next;
    }
    if (result->condemned) guard_->end_within(seconds_to_leave, "its replica has lost a rank: the replica is lost as a whole");
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
