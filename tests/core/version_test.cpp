// version.hpp says the version; CMake and Conan read it there. What repeats it says the same.
#include <octavo/core/error.hpp>
#include <octavo/core/version.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace version_test {

using octavo::message;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// What the pattern's group is in a file of the project, each once.
std::set<std::string> found(const std::string& path, const std::string& pattern) {
  const std::string text = content(path);
  const std::regex regex(pattern);
  std::set<std::string> all;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    all.insert((*match)[1]);
  }
  return all;
}

const std::string minor_version = message(octavo::version_major, '.', octavo::version_minor);
const std::string version = message(minor_version, '.', octavo::version_patch);

TEST(Version, TextMatchesNumbers) { EXPECT_EQ(octavo::version_string, version); }

#define OCTAVO_TEXT_OF(name) #name
#define OCTAVO_TEXT(macro) OCTAVO_TEXT_OF(macro)

TEST(Version, InlineNamespaceHasMinorVersion) {
  const std::string name = message("::inline v", octavo::version_major, '_', octavo::version_minor);
  const std::string abi = OCTAVO_TEXT(OCTAVO_ABI);
  EXPECT_TRUE(abi == name || abi == name + "_cudnn") << abi;
}

TEST(Version, MatchesVcpkgPort) {
  const auto port = nlohmann::json::parse(content("packaging/vcpkg/ports/octavo/vcpkg.json"));
  EXPECT_EQ(port["version"], version);
}

TEST(Version, MatchesDocumentationAndBuildFiles) {
  EXPECT_EQ(found("docs/install.md", R"(octavo/(\d+\.\d+\.\d+))"), std::set{version});
  EXPECT_EQ(found("README.md", R"(\*\*Status\*\*: version (\d+\.\d+);)"), std::set{minor_version});
  for (const char* file : {"docs/install.md", "conanfile.py", "cmake/octavoConfig.cmake",
                           "packaging/vcpkg/ports/octavo/usage", "test_package/CMakeLists.txt",
                           "tests/package/CMakeLists.txt"}) {
    EXPECT_EQ(found(file, R"(find_package\(octavo (\d+\.\d+))"), std::set{minor_version}) << file;
  }
}

}  // namespace version_test
