#include <octavo/core/start_thread.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <pthread.h>

namespace start_thread_test {
bool is_refused = false;
}

// Calls of this program go here, in place of the C library's: the name is the linker's.
extern "C" {
int refusing_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                    void* argument) __asm__("pthread_create");

int refusing_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                    void* argument) {
  if (start_thread_test::is_refused) return EAGAIN;
  static const auto create =
      reinterpret_cast<decltype(&refusing_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, body, argument);
}
}

namespace start_thread_test {

TEST(StartThread, RunsItsBody) {
  int value = 0;
  octavo::detail::start_thread("a test", [&] { value = 1; }).join();
  EXPECT_EQ(value, 1);
}

TEST(StartThread, FailureNamesPurpose) {
  is_refused = true;
  std::string said;
  try {
    octavo::detail::start_thread("a test", [] {}).join();
  } catch (const octavo::Error& error) {
    said = error.what();
  }
  is_refused = false;
  EXPECT_EQ(said,
            "cannot start a thread for a test: Resource temporarily unavailable; raise the process "
            "limit (ulimit -u), or that of the job");
}

}  // namespace start_thread_test
