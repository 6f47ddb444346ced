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

// Finalizes MPI if asked to, for at most `seconds`, then ends the process with `code`, running nothing else.
[[noreturn]] void leave(int code, bool finalize, double seconds);

}  // namespace ulfm
