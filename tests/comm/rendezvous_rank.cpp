// A rank of scripts/two_hosts_test.sh: rendezvous_rank TIME_OUT_MS GATHERS. Meets the others as its
// launcher says, gathers so often, and ends with 0; or with 3 and what it threw.
#include <octavo/comm/rendezvous.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <span>
#include <thread>
#include <vector>

int main(int, char** arguments) {
  try {
    const std::chrono::milliseconds timeout(std::atoi(arguments[1]));
    octavo::Rendezvous ranks(octavo::read_launch(), timeout);
    for (int i = 0; i < std::atoi(arguments[2]); ++i) {
      const int own = 1000 * ranks.rank() + i;
      std::vector<int> all(static_cast<std::size_t>(ranks.size()));
      ranks.all_gather_sync(std::as_bytes(std::span(&own, 1)),
                            std::as_writable_bytes(std::span(all)), "targets of a step");
      for (int rank = 0; rank < ranks.size(); ++rank) {
        octavo::require<octavo::CommError>(all[static_cast<std::size_t>(rank)] == 1000 * rank + i,
                                           "rank ", rank, " sent another's number");
      }
      if (i == 10) std::cout << "gathers" << std::endl;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
