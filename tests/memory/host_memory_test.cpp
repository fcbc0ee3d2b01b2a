// What control groups leave of the host's memory, from folders as Linux writes them.
#include <octavo/memory/host_memory.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "support/temporary_folder.hpp"

namespace host_memory_test {

using octavo::detail::available_in_groups;

constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

class ControlGroups : public support::TemporaryFolder {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  /// A group that may use `most` and uses `used`, of which `files` are files' contents.
  void make_group(const std::string& group, const std::string& most, int used, int files) const {
    write(group + "/memory.max", most + "\n");
    write(group + "/memory.current", std::to_string(used) + "\n");
    write(group + "/memory.stat", "anon 7\nfile 5\ninactive_file " + std::to_string(files - 1) +
                                      "\nactive_file 1\nslab 3\n");
  }

  [[nodiscard]] std::size_t available() const {
    return available_in_groups(folder_ / "root", folder_ / "membership");
  }
};

TEST_F(ControlGroups, UsesNarrowestGroupOnPath) {
  write("membership", "12:cpu:/elsewhere\n0::/slice/unit\n");
  make_group("root/slice/unit", "900", 100, 1);
  EXPECT_EQ(available(), 801u);
  make_group("root/slice", "500", 400, 1);
  EXPECT_EQ(available(), 101u);
  make_group("root", "300", 250, 1);
  EXPECT_EQ(available(), 51u);
  make_group("root/elsewhere", "10", 9, 1);
  EXPECT_EQ(available(), 51u) << "another group";
}

TEST_F(ControlGroups, CountsFileCacheAsAvailable) {
  write("membership", "0::/\n");
  make_group("root", "1000", 990, 700);
  EXPECT_EQ(available(), 710u);
  make_group("root", "1000", 500, 700);
  EXPECT_EQ(available(), 1000u) << "counted a little later";
  make_group("root", "1000", 1200, 1);
  EXPECT_EQ(available(), 0u);
}

TEST_F(ControlGroups, IgnoresUnknownLimits) {
  EXPECT_EQ(available(), all);
  write("membership", "0::/\n");
  make_group("root", "max", 990, 1);
  EXPECT_EQ(available(), all);
  write("root/memory.max", "1000\n");
  std::filesystem::remove(folder_ / "root/memory.current");
  EXPECT_EQ(available(), all);
}

}  // namespace host_memory_test
