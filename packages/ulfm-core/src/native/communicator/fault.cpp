#include "fault.hpp"

namespace ulfm {
namespace {

std::string describe(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "unknown MPI error";
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

Fault::Fault(int error_class, const std::string& operation)
    : std::runtime_error(operation + ": " + describe(error_class)), error_class_(error_class) {}

MpiError::MpiError(int code, const std::string& operation)
    : std::runtime_error(operation + ": " + describe(code)) {}

int error_class_of(int code) noexcept {
  int error_class = MPI_ERR_UNKNOWN;
  if (code == MPI_SUCCESS) return MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  return error_class;
}

bool is_fault(int error_class) noexcept {
  return error_class == MPIX_ERR_PROC_FAILED || error_class == MPIX_ERR_PROC_FAILED_PENDING ||
         error_class == MPIX_ERR_REVOKED;
}

void check(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  const int error_class = error_class_of(code);
  if (is_fault(error_class)) throw Fault(error_class, operation);
  throw MpiError(code, operation);
}

}  // namespace ulfm
