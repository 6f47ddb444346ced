// Collectives over point-to-point messages.
//
// Why not MPI_Allreduce: a ring over plain messages can wait without burning a core, leaves its input untouched (the
// input is the snapshot), lets a spare add nothing without a buffer of zeros, sums 16-bit floats in float32, gives
// every rank bit-identical results, and rests only on the part of ULFM that is tested best. Each function throws
// Fault when a peer is gone; the communicator is then revoked, the output holds garbage, the input is whole.
#pragma once

#include <cstddef>
#include <vector>

#include "dtype.hpp"
#include "mpi_ulfm.hpp"

namespace ulfm {

// A communicator as the collectives need it. `sequence` makes the tags of successive operations differ.
struct Ring {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  unsigned sequence = 0;
  std::vector<int> peers;  // rank in `comm` of each index in the ring; empty when they are the same
  int tag_space = 0;  // of 32768 tags; 0 for a ring that is a whole communicator, the others are subgroups'

  // Together they stay below Open MPI's largest tag, 2^31 - 1.
  static constexpr unsigned tag_spaces = 65535;
  static constexpr unsigned tags = 32768;

  int peer(int index) const { return peers.empty() ? index : peers[static_cast<std::size_t>(index)]; }
  int next_tag() { return tag_space * static_cast<int>(tags) + static_cast<int>(sequence++ % tags); }
};

// out = op over the ranks of in. `in` may be null: this rank contributes the neutral element (sum only). in == out is allowed.
void all_reduce(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count);

// Host or device memory, by MPI's own algorithm: the way to a CUDA-aware MPI. `in` null is not allowed, and the ring
// must be the whole of its communicator.
void all_reduce_by_mpi(Ring& ring, Op op, DType dtype, const void* in, void* out, std::size_t count);

void broadcast(Ring& ring, void* data, std::size_t bytes, int root);

// out holds size * bytes; rank r's part is at r * bytes. `in` null: this rank's part is there already.
void all_gather(Ring& ring, const void* in, void* out, std::size_t bytes);

void barrier(Ring& ring);

}  // namespace ulfm
