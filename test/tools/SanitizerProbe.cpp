// sanitizer_probe KIND: makes one mistake, so that a test can check whether this build detects it.
#include <climits>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>

int main(int argc, char **argv) {
  std::string_view kind = argc > 1 ? argv[1] : "";
  volatile int size = 4; // unknown to the compiler
  if (kind == "address") {
    char *bytes = new char[static_cast<size_t>(size)];
    std::memset(bytes, 0, static_cast<size_t>(size));
    volatile char behind = bytes[size]; // one byte beyond the end
    delete[] bytes;
    return behind & 0;
  }
  if (kind == "undefined") {
    volatile int most = INT_MAX;
    volatile int more = most + size; // overflows
    return more & 0;
  }
  if (kind == "thread") {
    int shared = 0; // written by two threads
    std::thread other([&] { shared += size; });
    shared += 1;
    other.join();
    return shared & 0;
  }
  return kind == "none" ? 0 : 2;
}
