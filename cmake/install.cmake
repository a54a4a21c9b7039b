# What `make install` puts where: headers, both libraries, the command, and the files by which pkg-config and CMake find
# them. Everything is relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/mla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS mla_shared mla_static EXPORT mla-targets)
if(TARGET mla_cli)
    install(TARGETS mla_cli)
    install(FILES cli/mla.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES tests/data/deepseek_decode.safetensors DESTINATION ${CMAKE_INSTALL_DATADIR}/mla) # mla demo
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mla)
install(EXPORT mla-targets NAMESPACE mla:: FILE mla-config.cmake DESTINATION ${package_dir})
if(PROJECT_VERSION_MAJOR GREATER 0)
    set(compatibility SameMajorVersion)
else()
    set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(mla-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mla-config-version.cmake DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pcfiledir /${pkgconfig_dir} /)
configure_file(cmake/mla.pc.in mla.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mla.pc DESTINATION ${pkgconfig_dir})
