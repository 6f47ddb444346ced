#include "runtime.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "mpi_ulfm.hpp"

namespace ulfm {

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

bool initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

bool thread_multiple() {
  int provided = MPI_THREAD_SINGLE;
  return MPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
}

bool cuda_aware() {
#if defined(OMPI_HAVE_MPI_EXT_CUDA) && OMPI_HAVE_MPI_EXT_CUDA
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

void finalize(int code, double seconds) {
  if (!initialized() || finalized()) return;
  const auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread([code, seconds, done] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    if (!done->load()) _exit(code);
  }).detach();
  MPI_Finalize();
  done->store(true);
}

}  // namespace ulfm
