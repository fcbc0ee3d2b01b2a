// A child process that does not outlive the test that started it.
#pragma once

#include <csignal>

#include <sys/prctl.h>
#include <unistd.h>

/// To be called in a child right after the fork: it gets the signal when the thread that forked
/// ends, however that ends, so that a test which is killed leaves no process behind.
/// @param parent  that forked, which may have ended before
inline void end_with_parent(pid_t parent, int signal) {
  ::prctl(PR_SET_PDEATHSIG, signal);
  if (::getppid() != parent) ::_exit(128 + signal);
}
