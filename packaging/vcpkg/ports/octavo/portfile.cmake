# An overlay port: it installs the sources of the repository that contains it, and downloads nothing.
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../..")
set(VCPKG_BUILD_TYPE release) # header-only

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DOCTAVO_BUILD_EXAMPLES=OFF
        -DOCTAVO_BUILD_TESTS=OFF
        -DOCTAVO_BUILD_BENCHMARKS=OFF
        -DOCTAVO_BUILD_DOCS=OFF
        -DOCTAVO_CUDA=OFF
        -DOCTAVO_INSTALL=ON
        -DOCTAVO_INSTALL_COMMAND=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/octavo)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/share/doc")

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
