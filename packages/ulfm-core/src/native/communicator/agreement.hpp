// Detect: one agreement over all ranks of a communicator.
#pragma once

#include "mpi_ulfm.hpp"

namespace ulfm {

// What one agreement over the whole world said. Equal on every rank that returned from it.
struct Agreement {
  bool all_alive = false;  // nobody has died since the world was last repaired
  bool flag = false;       // the AND of the flags of everyone who took part
  bool all_leave = false;  // all of them are leaving the job
};

// `flags` becomes the AND, bit by bit. False when somebody is dead.
bool agree_on(MPI_Comm comm, unsigned* flags, const char* operation);
bool agree_on(MPI_Comm comm, bool* flag, const char* operation);

// The world's agreement, in which a rank may also say that it is about to leave the job.
Agreement agree(MPI_Comm world, bool flag, bool leaving);

}  // namespace ulfm
