"""Conan 2 recipe:

    conan create . -s compiler.cppstd=20    # not needed if the profile sets C++20

The package contains the files that `cmake --install` installs, and consumers use it the same way:
find_package(octavo 0.1 COMPONENTS cuda). The CUDA Toolkit, cuDNN, PCRE2, utf8proc, zlib and Zstandard
are those of the system.
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Octavo(ConanFile):
    name = "octavo"
    description = "Mixed-precision transformers as C++20 templates"
    license = "Apache-2.0"
    topics = ("transformer", "training", "fp8", "cuda", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    exports_sources = ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*")
    no_copy_source = True

    def set_version(self):
        header = os.path.join(self.recipe_folder, "include", "octavo", "core", "version.hpp")
        self.version = re.search(r'version_string = "(.+)"', load(self, header)).group(1)

    def validate(self):
        try:
            check_min_cppstd(self, 20)
        except ConanInvalidConfiguration as error:
            raise ConanInvalidConfiguration(
                f"{error} Pass -s compiler.cppstd=20, or set compiler.cppstd=20 in the profile"
            ) from error

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("BUILD_EXAMPLES", "BUILD_TESTS", "BUILD_BENCHMARKS", "BUILD_DOCS", "CUDA",
                     "INSTALL_COMMAND"):
            toolchain.cache_variables[f"OCTAVO_{part}"] = "OFF"
        toolchain.cache_variables["CMAKE_INSTALL_LIBDIR"] = "lib"
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        # CMake finds the installed octavoConfig.cmake, which looks for threads and CUDA itself.
        self.cpp_info.set_property("cmake_find_mode", "none")
        core = self.cpp_info.components["octavo"]
        core.builddirs = [os.path.join("lib", "cmake", "octavo")]
        # The same for other generators.
        core.set_property("cmake_target_name", "octavo::octavo")
        core.system_libs = ["pthread"]
        cuda = self.cpp_info.components["cuda"]
        cuda.set_property("cmake_target_name", "octavo::cuda")
        cuda.requires = ["octavo"]
        cuda.defines = ["OCTAVO_WITH_CUDA=1"]
        cuda.system_libs = ["cudart", "cublasLt"]
        for component in (core, cuda):
            component.bindirs = []
            component.libdirs = []
