// The pulse of a process: memory shared with its keeper (keeper.py, which reads this layout), a process that ends this one
// when it stands still as a whole, its guard included.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ulfm {

struct Pulse {
  std::atomic<std::uint64_t> beats;    // moves for as long as the guard runs
  std::atomic<double> limit;           // seconds that it may stand still; 0: for ever
  std::atomic<std::uint32_t> current;  // which of `where` is whole: a process can be stopped while it writes the other
  char identity[228];
  char where[2][256];
};
static_assert(offsetof(Pulse, limit) == 8 && offsetof(Pulse, current) == 16 && offsetof(Pulse, identity) == 20 &&
                  offsetof(Pulse, where) == 248 && sizeof(Pulse) == 760,
              "keeper.py knows this layout");
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "a lock would not be shared between processes");

// As much of `text` as there is room for, and a zero.
template <std::size_t room>
void copy_text(const std::string& text, char (&to)[room]) {
  const std::size_t length = std::min(text.size(), room - 1);
  std::copy_n(text.begin(), length, to);
  to[length] = '\0';
}

}  // namespace ulfm
