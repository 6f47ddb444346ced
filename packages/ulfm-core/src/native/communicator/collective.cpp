#include "collective.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "requests.hpp"

namespace ulfm {
namespace {

// With its header a segment fits the 64 KiB up to which Open MPI's tcp transport sends eagerly. Longer messages are
// negotiated with the receiver, and that does not survive failures: a receiver that has data to order from a peer that
// just died crashes (in mca_pml_ob1_recv_request_schedule_once), and on a revoked communicator a sender can wait for
// ever for the answer of a dead receiver.
constexpr std::size_t segment_bytes = 64 * 1024 - 512;
constexpr std::size_t receive_depth = 8;
// What is sent eagerly is buffered by a receiver that is late: it never gets further behind than this, for each peer.
// Short slabs are cheaper too: 32 segments took 15 to 30% more processor time than 8 (16 MiB, four ranks, two cores).
constexpr std::size_t slab_bytes = 8 * segment_bytes;
constexpr std::size_t small_message_bytes = 16 * 1024;

// A chunk for each of `size` ranks, cut into segments: `count` elements divided among them, or with a `stride` as many
// for each, that far apart.
struct Chunks {
  std::size_t count;
  std::size_t size;
  std::size_t segment;  // elements
  std::size_t stride = 0;

  std::size_t begin(std::size_t chunk) const { return stride != 0 ? stride * chunk : count * chunk / size; }
  std::size_t length(std::size_t chunk) const {
    return stride != 0 ? count / size : begin(chunk + 1) - begin(chunk);
  }
  std::size_t segments() const { return ((count + size - 1) / size + segment - 1) / segment; }
  std::size_t offset(std::size_t chunk, std::size_t index) const {
    return begin(chunk) + std::min(index * segment, length(chunk));
  }
  std::size_t elements(std::size_t chunk, std::size_t index) const {
    return offset(chunk, index + 1) - offset(chunk, index);
  }
};

std::size_t wrapped(int rank, std::size_t back, int size) {
  const auto modulus = static_cast<std::size_t>(size);
  return (static_cast<std::size_t>(rank) + modulus - back % modulus) % modulus;
}

const char* at(const void* base, std::size_t element, std::size_t width) {
  return static_cast<const char*>(base) + element * width;
}
char* at(void* base, std::size_t element, std::size_t width) { return static_cast<char*>(base) + element * width; }

// After it, rank r's chunk (r + 1) % size of `out` is the sum over all ranks; the rest of `out` is partial sums.
void ring_reduce_scatter(Ring& ring, Op op, DType dtype, const void* in, void* out, const Chunks& chunks) {
  const std::size_t width = size_of(dtype);
  const int left = ring.peer((ring.rank + ring.size - 1) % ring.size);
  const int right = ring.peer((ring.rank + 1) % ring.size);
  const int tag = ring.next_tag();
  const std::size_t steps = chunks.size - 1;
  const std::size_t segments = chunks.segments();
  const std::size_t items = steps * segments;

  std::vector<std::vector<char>> slots(std::min(receive_depth, items), std::vector<char>(chunks.segment * width));
  std::vector<std::size_t> tickets(items, 0);
  Transfers transfers(ring.comm);

  const auto incoming = [&](std::size_t item) { return wrapped(ring.rank, item / segments + 1, ring.size); };
  const auto post_receive = [&](std::size_t item) {
    const std::size_t elements = chunks.elements(incoming(item), item % segments);
    if (elements == 0) return;
    tickets[item] = transfers.receive(slots[item % slots.size()].data(), elements * width, left, tag);
  };
  for (std::size_t item = 0; item < slots.size(); ++item) post_receive(item);

  const auto own = static_cast<std::size_t>(ring.rank);
  if (in == nullptr) std::memset(at(out, chunks.begin(own), width), 0, chunks.length(own) * width);
  for (std::size_t index = 0; index < segments; ++index) {
    const std::size_t elements = chunks.elements(own, index);
    if (elements == 0) continue;
    const void* source = in != nullptr ? in : out;
    transfers.send(at(source, chunks.offset(own, index), width), elements * width, right, tag);
  }

  for (std::size_t item = 0; item < items; ++item) {
    const std::size_t chunk = incoming(item);
    const std::size_t index = item % segments;
    const std::size_t elements = chunks.elements(chunk, index);
    if (elements != 0) {
      transfers.finish(tickets[item]);
      const std::size_t offset = chunks.offset(chunk, index);
      const void* received = slots[item % slots.size()].data();
      if (in != nullptr) {
        combine(op, dtype, at(in, offset, width), received, at(out, offset, width), elements);
      } else {
        std::memcpy(at(out, offset, width), received, elements * width);
      }
      if (item + segments < items) transfers.send(at(out, offset, width), elements * width, right, tag);
    }
    if (item + slots.size() < items) post_receive(item + slots.size());
  }
  transfers.finish_all();
}

// Rank r starts with chunk `first_chunk(r) = (r + lead) % size` complete; after it every rank has all of them.
void ring_all_gather(Ring& ring, std::size_t width, void* data, const Chunks& chunks, int lead) {
  const int left = ring.peer((ring.rank + ring.size - 1) % ring.size);
  const int right = ring.peer((ring.rank + 1) % ring.size);
  const int tag = ring.next_tag();
  const std::size_t segments = chunks.segments();
  const std::size_t items = (chunks.size - 1) * segments;
  const int base = (ring.rank + lead) % ring.size;

  std::vector<std::size_t> tickets(items, 0);
  Transfers transfers(ring.comm);
  const auto incoming = [&](std::size_t item) { return wrapped(base, item / segments + 1, ring.size); };
  const auto post_receive = [&](std::size_t item) {
    const std::size_t chunk = incoming(item);
    const std::size_t elements = chunks.elements(chunk, item % segments);
    if (elements == 0) return;
    tickets[item] = transfers.receive(at(data, chunks.offset(chunk, item % segments), width), elements * width, left, tag);
  };
  const auto send = [&](std::size_t chunk, std::size_t index) {
    const std::size_t elements = chunks.elements(chunk, index);
    if (elements != 0) transfers.send(at(data, chunks.offset(chunk, index), width), elements * width, right, tag);
  };
  for (std::size_t item = 0; item < std::min(receive_depth, items); ++item) post_receive(item);
  for (std::size_t index = 0; index < segments; ++index) send(static_cast<std::size_t>(base), index);
  for (std::size_t item = 0; item < items; ++item) {
    const std::size_t chunk = incoming(item);
    if (chunks.elements(chunk, item % segments) != 0) transfers.finish(tickets[item]);
    if (item + segments < items) send(chunk, item % segments);
    if (item + receive_depth < items) post_receive(item + receive_depth);
  }
  transfers.finish_all();
}

// A binomial tree to rank 0 and back: few hops for what is small.
void tree_all_reduce(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count) {
  const std::size_t bytes = count * size_of(dtype);
  if (in == nullptr) {
    std::memset(out, 0, bytes);
  } else if (in != out) {
    std::memcpy(out, in, bytes);
  }
  const int tag = ring.next_tag();
  std::vector<char> received(bytes);
  for (int mask = 1; mask < ring.size; mask <<= 1) {
    Transfers transfers(ring.comm);
    if ((ring.rank & mask) != 0) {
      transfers.send(out, bytes, ring.peer(ring.rank - mask), tag);
      transfers.finish_all();
      break;
    }
    if (ring.rank + mask < ring.size) {
      transfers.receive(received.data(), bytes, ring.peer(ring.rank + mask), tag);
      transfers.finish_all();
      combine(op, dtype, out, received.data(), out, count);
    }
  }
  broadcast(ring, out, bytes, 0);
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i16:
      return MPI_INT16_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::u8:
      return MPI_UINT8_T;
    default:
      throw std::invalid_argument(std::string("MPI has no reduction for ") + name_of(dtype) +
                                  ": reduce it through host staging");
  }
}

MPI_Op mpi_op(Op op) {
  switch (op) {
    case Op::sum:
      return MPI_SUM;
    case Op::min:
      return MPI_MIN;
    case Op::max:
      return MPI_MAX;
    case Op::prod:
      return MPI_PROD;
  }
  return MPI_OP_NULL;
}

void reduce_wide(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count) {
  const std::size_t width = size_of(dtype);
  if (count * width <= small_message_bytes) return tree_all_reduce(ring, op, dtype, in, out, count);
  const Chunks chunks{count, static_cast<std::size_t>(ring.size), segment_bytes / width};
  ring_reduce_scatter(ring, op, dtype, in, out, chunks);
  ring_all_gather(ring, width, out, chunks, 1);
}

// The most elements to reduce in one go.
std::size_t slab_of(const Ring& ring, DType dtype) {
  return static_cast<std::size_t>(ring.size) * (slab_bytes / size_of(accumulator_of(dtype)));
}

// 16-bit floats: partial sums travel as float32, the finished sums as 16 bits.
void reduce_narrow(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count) {
  const std::unique_ptr<float[]> memory(new float[count]);  // not a vector, which would fill it with zeros
  float* const wide = memory.get();
  if (in != nullptr) widen(dtype, in, wide, count);
  const void* source = in != nullptr ? wide : nullptr;
  if (count * sizeof(float) <= small_message_bytes) {
    tree_all_reduce(ring, op, DType::f32, source, wide, count);
    narrow(dtype, wide, out, count);
    return;
  }
  const std::size_t width = size_of(dtype);
  const Chunks chunks{count, static_cast<std::size_t>(ring.size), segment_bytes / sizeof(float)};
  ring_reduce_scatter(ring, op, DType::f32, source, wide, chunks);
  const auto owned = static_cast<std::size_t>((ring.rank + 1) % ring.size);
  const std::size_t begin = chunks.begin(owned);
  narrow(dtype, wide + begin, at(out, begin, width), chunks.length(owned));
  ring_all_gather(ring, width, out, chunks, 1);
}

}  // namespace

void all_reduce(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count) {
  const std::size_t width = size_of(dtype);
  if (in == nullptr && op != Op::sum) throw std::invalid_argument("only a sum can be joined without contributing");
  if (count == 0) return;
  if (ring.size == 1) {
    if (in == nullptr) {
      std::memset(out, 0, count * width);
    } else if (in != out) {
      std::memcpy(out, in, count * width);
    }
    return;
  }
  const auto reduce = accumulator_of(dtype) == dtype ? reduce_wide : reduce_narrow;
  const std::size_t slab = slab_of(ring, dtype);
  for (std::size_t done = 0; done < count; done += slab) {
    const void* source = in != nullptr ? at(in, done, width) : nullptr;
    reduce(ring, op, dtype, source, at(out, done, width), std::min(slab, count - done));
  }
}

void all_reduce_by_mpi(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count) {
  const void* source = in == out ? MPI_IN_PLACE : in;
  constexpr std::size_t most = 1U << 30U;
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t part = std::min(most, count - done);
    const std::size_t width = size_of(dtype);
    check(MPI_Allreduce(source == MPI_IN_PLACE ? source : at(source, done, width), at(out, done, width),
                        static_cast<int>(part), mpi_type(dtype), mpi_op(op), ring.comm),
          "all-reduce");
  }
}

void broadcast(Ring& ring, void* data, std::size_t bytes, int root) {
  const int tag = ring.next_tag();
  const int relative = (ring.rank - root + ring.size) % ring.size;
  int mask = 1;
  while (mask < ring.size && (relative & mask) == 0) mask <<= 1;
  const int parent = relative == 0 ? MPI_PROC_NULL : ring.peer((ring.rank - mask + ring.size) % ring.size);
  std::vector<int> children;
  for (int child = mask >> 1; child > 0; child >>= 1) {
    if (relative + child < ring.size) children.push_back(ring.peer((ring.rank + child) % ring.size));
  }
  for (std::size_t begin = 0; begin < bytes; begin += segment_bytes) {
    const std::size_t part = std::min(segment_bytes, bytes - begin);
    Transfers transfers(ring.comm);
    if (relative != 0) {
      transfers.receive(at(data, begin, 1), part, parent, tag);
      transfers.finish_all();
    }
    for (const int child : children) transfers.send(at(data, begin, 1), part, child, tag);
    if ((begin + segment_bytes) % slab_bytes == 0) {  // go on when the children have come this far
      if (relative != 0) transfers.send(nullptr, 0, parent, tag);
      for (const int child : children) transfers.receive(nullptr, 0, child, tag);
    }
    transfers.finish_all();
  }
}

void all_gather(Ring& ring, const void* in, void* out, std::size_t bytes) {
  if (in != nullptr) std::memmove(at(out, static_cast<std::size_t>(ring.rank), bytes), in, bytes);
  if (ring.size == 1 || bytes == 0) return;
  const auto size = static_cast<std::size_t>(ring.size);
  for (std::size_t done = 0; done < bytes; done += slab_bytes) {
    const std::size_t part = std::min(slab_bytes, bytes - done);
    ring_all_gather(ring, 1, at(out, done, 1), Chunks{part * size, size, segment_bytes, bytes}, 0);
  }
}

void barrier(Ring& ring) {
  std::int64_t token = 0;
  all_reduce(ring, Op::sum, DType::i64, &token, &token, 1);
}

}  // namespace ulfm
