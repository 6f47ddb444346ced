#include "agreement.hpp"

#include "requests.hpp"

namespace ulfm {

bool agree_on(MPI_Comm comm, unsigned* flags, const char* operation) {
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

bool agree_on(MPI_Comm comm, bool* flag, const char* operation) {
  unsigned flags = *flag ? 1U : 0U;
  const bool all_alive = agree_on(comm, &flags, operation);
  *flag = flags != 0U;
  return all_alive;
}

Agreement agree(MPI_Comm world, bool flag, bool leaving) {
  constexpr unsigned flag_bit = 1U;
  constexpr unsigned leaving_bit = 2U;
  unsigned flags = (flag ? flag_bit : 0U) | (leaving ? leaving_bit : 0U);
  Agreement said;
  said.all_alive = agree_on(world, &flags, "agreement");
  said.flag = (flags & flag_bit) != 0U;
  said.all_leave = (flags & leaving_bit) != 0U;
  return said;
}

}  // namespace ulfm
