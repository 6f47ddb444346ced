// What this process knows of its MPI, and the way out of it.
#pragma once

#include <string>

namespace ulfm {

std::string library_version();
bool initialized();
bool finalized();
bool thread_multiple();
// Whether MPI takes CUDA device memory.
bool cuda_aware();

// Finalizes MPI. After a failure that may hang: past `seconds` the process ends with `code`.
void finalize(int code, double seconds);

}  // namespace ulfm
