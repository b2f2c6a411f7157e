// What programs compiled on Debian 12 call and glibc 2.28 lacks, and what Debian has of {fmt} only
// as a shared library. runtime/cmake/old_glibc.py links it.
#include <cstdint>
#include <ctime>
#include <fmt/format-inl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/random.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API locale_ref::locale_ref(const std::locale &);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char *, const char *);
template FMT_API void vformat_to(buffer<char> &, string_view,
                                 basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
} // namespace detail
FMT_END_NAMESPACE

extern "C" {

/// 0: the C++ runtime counts references atomically, as if there were always threads.
char __libc_single_threaded = 0;

uint32_t arc4random() noexcept {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number)
    ;
  return number;
}

struct mallinfo2 mallinfo2() noexcept {
  struct mallinfo old = mallinfo(); // with 32 bits each
  auto wide = [](int value) { return size_t{static_cast<unsigned>(value)}; };
  return {wide(old.arena),    wide(old.ordblks), wide(old.smblks),  wide(old.hblks),
          wide(old.hblkhd),   wide(old.usmblks), wide(old.fsmblks), wide(old.uordblks),
          wide(old.fordblks), wide(old.keepcost)};
}

/// Waits until the same moment of the clock that the older function knows.
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const timespec *until) {
  timespec now = {}, end = {};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &end);
  constexpr int64_t kSecond = 1'000'000'000;
  int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  left = (left < 0 ? 0 : left) + end.tv_nsec;
  end.tv_sec += left / kSecond;
  end.tv_nsec = left % kSecond;
  return pthread_cond_timedwait(condition, mutex, &end);
}

} // extern "C"
