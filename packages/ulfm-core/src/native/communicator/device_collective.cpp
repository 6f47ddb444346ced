#include "device_collective.hpp"

namespace ulfm {
namespace {

void await(const DeviceSpan& span) { span.device->await(span.ready); }

char* part_of(void* base, int index, std::size_t bytes) {
  return static_cast<char*>(base) + static_cast<std::size_t>(index) * bytes;
}

// Every rank must answer the same, so this looks only at what all share. MPI sums 16-bit floats in 16 bits or not at
// all, and it needs a communicator for what a subgroup does with tags.
bool reduced_by_mpi(const Ring& ring, DType dtype) {
  return device_transport() == Transport::mpi && accumulator_of(dtype) == dtype && ring.peers.empty();
}

}  // namespace

void all_reduce(Ring& ring, Op op, DType dtype, const DeviceSpan& in, const DeviceSpan& out, std::size_t count,
                bool contribute) {
  const std::size_t bytes = count * size_of(dtype);
  await(in);
  await(out);
  if (reduced_by_mpi(ring, dtype)) {
    if (!contribute) out.device->clear(out.data, bytes);
    all_reduce_by_mpi(ring, op, dtype, contribute ? in.data : out.data, out.data, count);
    return;
  }
  void* host = pinned(bytes);
  if (contribute) in.device->to_host(host, in.data, bytes);
  all_reduce(ring, op, dtype, contribute ? host : nullptr, host, count);
  out.device->to_device(out.data, host, bytes);
}

void broadcast(Ring& ring, const DeviceSpan& data, std::size_t bytes, int root) {
  await(data);
  if (device_transport() == Transport::mpi) return broadcast(ring, data.data, bytes, root);
  void* host = pinned(bytes);
  if (ring.rank == root) data.device->to_host(host, data.data, bytes);
  broadcast(ring, host, bytes, root);
  if (ring.rank != root) data.device->to_device(data.data, host, bytes);
}

void all_gather(Ring& ring, const DeviceSpan& in, const DeviceSpan& out, std::size_t bytes) {
  const std::size_t total = bytes * static_cast<std::size_t>(ring.size);
  await(in);
  await(out);
  if (device_transport() == Transport::mpi) {
    out.device->within_device(part_of(out.data, ring.rank, bytes), in.data, bytes);
    all_gather(ring, nullptr, out.data, bytes);
    return;
  }
  void* host = pinned(total);
  in.device->to_host(part_of(host, ring.rank, bytes), in.data, bytes);
  all_gather(ring, nullptr, host, bytes);
  out.device->to_device(out.data, host, total);
}

}  // namespace ulfm
